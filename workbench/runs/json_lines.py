"""Append-only JSON lines: what a run is made of while it is being written.

One line is one record, a JSON object without the fields at their default. A line counts only once its line end is
there, so a process killed in the middle of a write leaves a torn tail that every reader passes over. ``NaN`` and
``Infinity`` are written as such: a loss that became inf is exactly what somebody will look for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from workbench.core.records import Event, ExponentCounts, StepRecord
from workbench.runs.errors import RunError

_STEP_DEFAULTS = {f.name: f.default for f in fields(StepRecord) if f.name not in {"grad_exponents", "columns"}}
_step_values = attrgetter(*_STEP_DEFAULTS)
_HISTOGRAM_FIELDS = [f.name for f in fields(ExponentCounts)]
_histogram_values = attrgetter(*_HISTOGRAM_FIELDS)

# For the fields every line must have; a reader never needs them, an empty table does not either.
_BLANK_VALUES = {"step": 0, "seconds": math.nan, "step_ms": math.nan, "loss": math.nan, "kind": ""}


def field_defaults(record: type[StepRecord] | type[Event]) -> dict[str, Any]:
    """Return the value that a field left out of a line stands for, by field name, ``columns`` left out."""
    return {
        field.name: _BLANK_VALUES.get(field.name, field.default) for field in fields(record) if field.name != "columns"
    }


def encode_steps(records: Iterable[StepRecord]) -> bytes:
    """Return one line per step; reading them back gives equal records, NaN and inf included."""
    return _encode(map(_step_row, records))


def encode_events(events: Iterable[Event]) -> bytes:
    """Return one line per event."""
    return _encode(map(_event_row, events))


def intact_size(content: bytes) -> int:
    """Return how many bytes are whole lines, before a tail torn off by a kill or the NUL bytes of a power cut."""
    hole = content.find(b"\0")
    return content.rfind(b"\n", 0, hole if hole >= 0 else len(content)) + 1


def read_rows(path: Path, *, chunk: int = 65_536) -> Iterator[list[dict[str, Any]]]:
    """Yield the whole lines of a file, possibly still growing, in lists of at most ``chunk`` to bound the memory.

    A torn tail is passed over; a whole line that is not a JSON object is a RunError.
    """
    rows: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n") or b"\0" in line:
                break
            try:
                row = json.loads(line.decode())
            except (ValueError, RecursionError):  # no JSON, or nested without end
                row = None
            if not isinstance(row, dict):
                raise RunError(f"{path}: line {number} is not a JSON object; the file was damaged after it was written")
            rows.append(row)
            if len(rows) == chunk:
                yield rows
                rows = []
    if rows:
        yield rows


def _step_row(record: StepRecord) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for (name, default), value in zip(_STEP_DEFAULTS.items(), _step_values(record), strict=True):
        # A NaN is left out only where NaN is the default: a loss scale that became NaN must be seen again.
        if value != default and (value == value or default == default):
            row[name] = value
    if record.grad_exponents:
        histograms = [dict(zip(_HISTOGRAM_FIELDS, _histogram_values(h), strict=True)) for h in record.grad_exponents]
        row["grad_exponents"] = [histogram | {"group": _storable(histogram["group"])} for histogram in histograms]
    row.update(record.columns)
    return row


def _event_row(event: Event) -> dict[str, Any]:
    rest = {"subject": _storable(event.subject), "value": event.value, "message": _storable(event.message)}
    said = {name: value for name, value in rest.items() if value == value and value != ""}
    return {"step": event.step, "kind": event.kind, **said}


def _storable(text: str) -> str:
    # A message may quote a file name with undecodable bytes; Parquet holds UTF-8 only.
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _plain_number(value: Any) -> Any:
    if not hasattr(value, "item"):  # NumPy numbers have it; json knows only Python's own
        raise TypeError(f"a record must hold plain numbers and text, got {type(value).__name__}")
    return value.item()


_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=_plain_number).encode


def _encode(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(_to_json(row) + "\n" for row in rows).encode("ascii")
