"""What figures read: step and event tables, given as DataFrames or as plain records, and usual numbers of a column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from workbench.core.records import Event, StepRecord
from workbench.figures.thinning import MAXIMUM_MARKS, Floats, thin_marks

StepTable: TypeAlias = pd.DataFrame | Sequence[StepRecord]
EventTable: TypeAlias = pd.DataFrame | Sequence[Event] | None

WARM_UP_STEPS = 10
"""First steps of a run whose times are left out."""

STANDS_FOR = "stands_for"
"""Column of a table that was thinned: steps that a row stands for, itself included."""


class EventPoints(NamedTuple):
    """Steps at which something happened, where that stands in a figure, and what was said of it."""

    x: Floats
    y: Floats
    messages: tuple[str, ...]


def steps_frame(steps: StepTable) -> pd.DataFrame:
    """Return steps as a DataFrame with the columns of ``StepRecord`` and the methods' own; a table as it is."""
    if isinstance(steps, pd.DataFrame):
        return steps
    names = [f.name for f in fields(StepRecord) if f.name != "columns"]
    rows = [{**{name: getattr(record, name) for name in names}, **record.columns} for record in steps]
    return pd.DataFrame(rows, columns=None if rows else names)


def events_frame(events: EventTable) -> pd.DataFrame:
    """Return events as a DataFrame with columns step, kind, subject, value, message; empty for None."""
    if isinstance(events, pd.DataFrame):
        return events
    names = [f.name for f in fields(Event)]
    rows = [{name: getattr(event, name) for name in names} | {"kind": str(event.kind)} for event in events or ()]
    return pd.DataFrame(rows, columns=names)


def events_of(events: EventTable, *kinds: str) -> pd.DataFrame:
    """Return the events of these kinds, as ``events_frame`` does."""
    frame = events_frame(events)
    return frame[frame["kind"].astype(str).isin(kinds)]


def event_points(
    events: EventTable, kind: str, height: Callable[[Floats], Floats], most: int = MAXIMUM_MARKS
) -> tuple[EventPoints, int]:
    """Return the events of one kind, of many an even choice, at the height of their steps, and how many there are."""
    found = events_of(events, kind)
    kept = found.iloc[thin_marks(np.arange(len(found)), most)]
    steps = column(kept, "step")
    return EventPoints(steps, height(steps), tuple(map(str, kept["message"]))), len(found)


def column(frame: pd.DataFrame, name: str, default: float = float("nan")) -> Floats:
    """Return one numeric column as float64 ``[n]``, to be read only, or the default repeated when it is not there."""
    if name not in frame.columns:
        return np.full(len(frame), default)
    values = frame[name]
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "fiub":  # nothing is missing that has to be replaced
        return values.to_numpy().astype(np.float64, copy=False)
    return values.to_numpy(dtype=np.float64, na_value=np.nan)


def flags(frame: pd.DataFrame, name: str) -> npt.NDArray[np.bool_]:
    """Return one column of truth values ``[n]``; missing ones count as false."""
    if name in frame.columns and frame[name].dtype == np.bool_:
        return frame[name].to_numpy()
    truth: npt.NDArray[np.bool_] = np.nan_to_num(column(frame, name, 0.0), nan=0.0) != 0.0
    return truth


def filled_rows(cells: Sequence[Any]) -> list[int]:
    """Return the rows of a column of lists that hold something; pandas writes a missing list as NaN."""
    return [row for row, cell in enumerate(cells) if cell is not None and not isinstance(cell, float) and len(cell)]


def stands_for(frame: pd.DataFrame) -> Floats:
    """Return for how many steps each row stands ``[n]``: one, unless the table was thinned."""
    return column(frame, STANDS_FOR, 1.0)


def subjects_by_step(events: EventTable, kind: str) -> dict[int, str]:
    """Return step -> subject of the events of one kind; of several at one step the last one counts."""
    chosen = events_of(events, kind)
    return {int(step): str(subject) for step, subject in zip(chosen["step"], chosen["subject"], strict=True)}


def without_warm_up(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the steps after the first few, which allocate and compile; all of a run no longer than twice that."""
    return frame.iloc[WARM_UP_STEPS if len(frame) > 2 * WARM_UP_STEPS else 0 :]


def wasted_share(frame: pd.DataFrame) -> float:
    """Return the share of all micro-batches whose gradient was thrown away, in [0, 1]; NaN without steps.

    One dropped update throws away every micro-batch of its window, not only the one that closed it.
    """
    weights = stands_for(frame)
    wasted = float(np.nansum((column(frame, "accumulated", 1.0) * weights)[flags(frame, "skipped")]))
    return min(1.0, wasted / weights.sum()) if len(frame) else float("nan")


def log2_known(values: Floats) -> Floats:
    """Return log2 where it is finite, NaN elsewhere (a scale of 0, inf or NaN is not on such an axis)."""
    good = np.isfinite(values) & (values > 0)
    logarithms: Floats = np.log2(values, out=np.full_like(values, np.nan), where=good)
    return logarithms


def mean_known(values: Floats, weights: Floats | None = None) -> float:
    """Return the mean of the finite values, each with its weight; NaN without any."""
    known = np.isfinite(values)
    if not known.any():
        return float("nan")
    return float(np.average(values[known], weights=None if weights is None else weights[known]))


def last_known(values: Floats) -> float:
    """Return the last finite value; NaN without any."""
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else float("nan")
