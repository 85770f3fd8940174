from __future__ import annotations

from workbench.core.records import Event, EventKind, StepRecord
from workbench.panels.live_trace import LiveTrace


def record(step: int, **columns: float) -> StepRecord:
    return StepRecord(step=step, seconds=step / 10, step_ms=2.0, loss=1.0 / (step + 1), columns=columns)


def test_blocks_become_one_table_in_order_and_a_time_that_is_not_known_is_missing() -> None:
    trace = LiveTrace()
    trace.add([record(0, **{"time.data": 1.0}), record(1)], [])
    trace.add([record(2, **{"time.forward": 1.5})], [])
    trace.add([], [])
    table = trace.steps
    assert table["step"].tolist() == [0, 1, 2]
    assert table["loss"].tolist() == [1.0, 0.5, 1 / 3]
    assert table["overflow"].dtype == bool
    assert table["time.data"].fillna(-1.0).tolist() == [1.0, -1.0, -1.0]
    assert table["time.forward"].fillna(-1.0).tolist() == [-1.0, -1.0, 1.5]
    assert trace.steps is table, "looking again joins nothing"


def test_a_long_run_in_small_blocks_keeps_every_step_and_earlier_tables_stay_as_they_were() -> None:
    trace = LiveTrace()
    for begin in range(0, 900, 9):
        trace.add([record(step) for step in range(begin, begin + 9)], [])
        if begin == 90:
            early = trace.steps
    assert trace.steps["step"].tolist() == list(range(900))
    assert trace.steps["loss"].tolist() == [1.0 / (step + 1) for step in range(900)]
    assert early["step"].tolist() == list(range(99))


def test_evaluations_are_told_apart_from_what_happened_to_the_scale() -> None:
    trace = LiveTrace()
    assert trace.steps.empty
    up = Event(3, EventKind.SCALE_UP, "", 4.0)
    trace.add([], [Event(9, EventKind.EVALUATION, "accuracy", 0.75), up])
    assert trace.evaluations == [(10, 0.75)]
    assert trace.events == [up]
