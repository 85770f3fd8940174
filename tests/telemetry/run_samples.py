"""Sample records, as hypothesis strategies and as one plain list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

from hypothesis import strategies as st

from tests.kit.texts import texts
from workbench.core.records import Event, EventKind, ExponentCounts, StepRecord

__all__ = ["comparable", "events", "some_steps", "steps"]

_WHOLE = st.integers(0, 2**53)
_NUMBER = st.floats()

_HISTOGRAMS = st.builds(
    ExponentCounts,
    group=texts(8),
    lowest=st.integers(-1100, 1100),
    counts=st.lists(_WHOLE, max_size=5).map(tuple),
    zeros=_WHOLE,
    nonfinite=_WHOLE,
)
_METHOD_COLUMNS = st.dictionaries(
    st.sampled_from(["time.forward", "time.backward", "dim_reduce.rho", "online.auc"]), st.floats(allow_nan=False)
)

_OF_TYPE = {"int": _WHOLE, "float": _NUMBER, "bool": st.booleans()}

steps = st.builds(
    StepRecord,
    **{field.name: _OF_TYPE[str(field.type)] for field in fields(StepRecord) if str(field.type) in _OF_TYPE},
    group_scales=st.lists(_NUMBER, max_size=3).map(tuple),
    grad_exponents=st.lists(_HISTOGRAMS, max_size=2).map(tuple),
    columns=_METHOD_COLUMNS,
)

events = st.builds(
    Event,
    step=_WHOLE,
    kind=st.sampled_from(EventKind),
    subject=texts(20),
    value=_NUMBER,
    message=texts(20),
)


def comparable(records: Sequence[StepRecord] | Sequence[Event]) -> list[str]:
    """Return texts that are equal exactly when the records are; NaN equals NaN, 1.0 differs from 0.0 and -0.0."""
    return [repr(record) if isinstance(record, Event) else _step_text(record) for record in records]


def some_steps(first: int, n: int) -> list[StepRecord]:
    """Return steps that differ from each other; every fourth overflows, with an infinite norm."""
    return [
        StepRecord(
            step=step,
            seconds=0.5 * step,
            step_ms=250.0,
            loss=math.exp(-0.01 * step),
            loss_scale=1024.0,
            overflow=step % 4 == 3,
            skipped=step % 4 == 3,
            grad_norm=math.inf if step % 4 == 3 else 1.0 + step,
            samples=32,
            columns={"time.forward": 0.1 * step} if step % 2 else {},
        )
        for step in range(first, first + n)
    ]


def _step_text(record: StepRecord) -> str:
    columns = dict(sorted(record.columns.items()))
    return repr(record).rpartition(", columns=")[0] + repr(columns)
