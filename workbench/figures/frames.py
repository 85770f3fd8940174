"""What figures read: step and event tables, given as DataFrames or as plain records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from workbench.core.records import Event, StepRecord

__all__ = ["EventTable", "StepTable", "column", "events_frame", "flags", "steps_frame", "subjects_by_step"]

StepTable: TypeAlias = pd.DataFrame | Sequence[StepRecord]
EventTable: TypeAlias = pd.DataFrame | Sequence[Event] | None


def steps_frame(steps: StepTable) -> pd.DataFrame:
    """Return steps as a DataFrame with the columns of ``StepRecord`` and the methods' own columns.

    Args:
        steps: A recorded run's ``steps`` table (returned as it is), or records straight from a running trace.
    """
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


def column(frame: pd.DataFrame, name: str, default: float = float("nan")) -> npt.NDArray[np.float64]:
    """Return one numeric column as float64 ``[n]``, or the default repeated when the run does not have it."""
    if name not in frame.columns:
        return np.full(len(frame), default)
    values = frame[name]
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "fiub":  # nothing is missing that has to be replaced
        return values.to_numpy().astype(np.float64)
    return values.to_numpy(dtype=np.float64, na_value=np.nan)


def flags(frame: pd.DataFrame, name: str) -> npt.NDArray[np.bool_]:
    """Return one column of truth values ``[n]``; missing ones count as false."""
    values = column(frame, name, 0.0)
    truth: npt.NDArray[np.bool_] = np.nan_to_num(values, nan=0.0) != 0.0
    return truth


def subjects_by_step(events: pd.DataFrame, kind: str) -> dict[int, str]:
    """Return step -> subject of the events of one kind; of several at one step the last one counts."""
    if events.empty:
        return {}
    chosen = events[events["kind"].astype(str) == kind]
    steps: list[Any] = chosen["step"].tolist()
    return {int(step): str(subject) for step, subject in zip(steps, chosen["subject"].tolist(), strict=True)}
