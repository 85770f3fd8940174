"""What commands print, on rank 0 only: sentences and tables for people, one JSON object for programs."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from shutil import get_terminal_size
from typing import Any

import typer
from pydantic_core import to_jsonable_python

from workbench.core.rank_environment import is_first_rank
from workbench.core.text import printable

_ENDLESS = 10_000  # characters; wider than any table
_LAST_COLUMN_WIDTH = 24

JsonOption = typer.Option(False, "--json", help="Print one JSON object on stdout and nothing else there.")
DeviceOption = typer.Option("auto", metavar="NAME", help="auto, cpu, cuda (cuda:1) or npu.")
StorageOption = typer.Option(
    None, metavar="URL", envvar="WORKBENCH_STORAGE", help="Optuna storage URL. Default: SQLite in the study's folder."
)


def say(text: str) -> None:
    """Print a line for a person on stdout."""
    if is_first_rank():
        typer.echo(printable(text))


@contextmanager
def only_result_on_stdout(active: bool) -> Iterator[None]:
    """With ``--json``, and on ranks other than 0, send to stderr whatever else is printed to stdout in the block."""
    if not active and is_first_rank():
        yield
        return
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # not a file, as in notebooks and tests
        with redirect_stdout(sys.stderr):
            yield
        return
    sys.stdout.flush()
    kept = os.dup(descriptor)
    os.dup2(sys.stderr.fileno(), descriptor)  # below Python, so that workers and C libraries follow
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, descriptor)
        os.close(kept)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table with numbers aligned to the right; nothing is ever cut off.

    Where a terminal, or the 80 characters that a file gets, are too narrow for it, the last column is wrapped to the
    remaining width, or else put beneath each row. If the other columns alone do not fit, a terminal gets a paragraph of
    ``column: value`` lines for each row, and a file their lines as they are.
    """
    cells = [[printable(_cell(value)) for value in row] for row in rows]
    is_terminal, width = sys.stdout.isatty(), get_terminal_size().columns
    widths = [max([len(column), *(len(row[i]) for row in cells)]) for i, column in enumerate(columns)]
    remaining = width - sum(widths[:-1]) - 2 * (len(columns) - 1)
    if remaining >= min(widths[-1], _LAST_COLUMN_WIDTH):
        say(_table_text(columns, cells, width))
    elif remaining >= 0 or (not is_terminal and widths[-1] > _LAST_COLUMN_WIDTH):
        head, rule, *lines = _table_text(columns[:-1], [row[:-1] for row in cells], _ENDLESS).splitlines()
        beneath = [textwrap.indent(textwrap.fill(row[-1], width - 4), " " * 4) for row in cells]
        under = (part for pair in zip(lines, beneath, strict=True) for part in pair if part)
        say("\n".join([head, f"    {columns[-1]}", rule, *under]))
    elif is_terminal:
        longest = max(map(len, columns))
        named = (
            [f"{name:{longest}}  {cell}".rstrip() for name, cell in zip(columns, row, strict=True)] for row in cells
        )
        say("\n\n".join("\n".join(paragraph) for paragraph in named))
    else:
        say(_table_text(columns, cells, _ENDLESS))


def _table_text(columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> str:
    """Return a table whose last column is wrapped to the width; each of the others is as wide as it has to be."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, header_style="", show_edge=False, pad_edge=False)
    table.padding = (0, 1, 0, 0)  # one space to the right; the box adds another
    for i, column in enumerate(columns):
        is_numbers = bool(cells) and all(_is_number(row[i]) for row in cells)
        table.add_column(column, justify="right" if is_numbers else "left", no_wrap=i < len(columns) - 1)
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def print_json(value: Any) -> None:
    """Print one JSON object; NaN and infinities become null, as JSON has none."""
    if is_first_rank():
        typer.echo(json.dumps(plain(value), indent=2, allow_nan=False))


def quoted(argument: object) -> str:
    """Return an argument as it must be typed into a shell."""
    return shlex.quote(str(argument))


def plain(value: Any) -> Any:
    """Return a value, numbers of numpy among it, as plain JSON."""
    return to_jsonable_python(value, inf_nan_mode="null", fallback=lambda number: number.item())


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
