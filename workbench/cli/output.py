"""What commands print: sentences and tables for people, one JSON object for programs."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

__all__ = ["JsonOption", "plain", "print_json", "print_table", "say"]

_PIPE_WIDTH = 200

JsonOption = typer.Option(False, "--json", help="Print one JSON object on stdout and nothing else there.")


def say(text: str) -> None:
    """Print a line for a person on stdout."""
    typer.echo(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """Print a table with numbers aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    cells = [[_cell(value) for value in row] for row in rows]
    for i, column in enumerate(columns):
        numeric = bool(cells) and all(_is_number(row[i]) for row in cells)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=i < len(columns) - 1)
    for row in cells:
        table.add_row(*row)
    # Into a file or a pipe nothing is folded; on a terminal the last column takes what is left.
    console = Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)
    console.print(table, highlight=False)


def print_json(value: Any) -> None:
    """Print one JSON object; NaN and infinities become null, as JSON has none."""
    typer.echo(json.dumps(plain(value), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """Return a value as JSON knows it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.5g}"
    return "-" if value is None else str(value)


def _is_number(text: str) -> bool:
    try:
        float("nan" if text == "-" else text)
    except ValueError:
        return False
    return True
