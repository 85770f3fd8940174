from __future__ import annotations

import pytest

from workbench.core.records import Event, EventKind, StepRecord
from workbench.figures.loss_scale import loss_scale_numbers
from workbench.figures.step_time import step_time_numbers
from workbench.panels import live_trace
from workbench.panels.live_trace import LiveTrace


def record(step: int, **columns: float) -> StepRecord:
    return StepRecord(step=step, seconds=step / 10, step_ms=2.0, loss=1.0 / (step + 1), columns=columns)


def test_blocks_become_one_table_in_order_and_a_time_that_is_not_known_is_missing() -> None:
    trace = LiveTrace()
    trace.add([record(0, **{"time.data": 1.0}), record(1)], [])
    trace.add([record(2, **{"time.forward": 1.5})], [])
    trace.add([], [])
    table = trace.steps
    known = {name: table[name].fillna(-1.0).tolist() for name in ("step", "loss", "time.data", "time.forward")}
    times = {"time.data": [1.0, -1.0, -1.0], "time.forward": [-1.0, -1.0, 1.5]}
    assert known == {"step": [0, 1, 2], "loss": [1.0, 0.5, 1 / 3]} | times
    assert table["overflow"].dtype == bool
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


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a trace keep a tenth of its steps, so that a tenth of them makes a long run."""
    monkeypatch.setattr(live_trace, "_MOST_STEPS", 4_000)


@pytest.mark.usefixtures("few_steps")
def test_a_very_long_run_takes_no_more_memory_and_its_figures_still_count_every_step() -> None:
    def long_record(step: int) -> StepRecord:
        overflow, after = step % 100 == 99, 2.0 ** (step % 100 != 99)
        return StepRecord(
            step=step, seconds=0.0, step_ms=1.0 + step % 2, loss=1.0, loss_scale=2.0, loss_scale_after=after,
            overflow=overflow, skipped=overflow, columns={"time.forward": 0.5},
        )  # fmt: skip

    trace, sizes = LiveTrace(), []
    for begin in range(0, 10_000, 50):
        trace.add([long_record(step) for step in range(begin, begin + 50)], [])
        if begin % 1000 == 0:
            sizes.append(int(trace.steps.memory_usage(deep=True).sum()))
    assert max(sizes) < 600_000
    table = trace.steps
    assert table["step"].is_monotonic_increasing
    assert table["step"].iloc[-1] == 9_999
    assert table.loc[table["overflow"], "step"].tolist() == list(range(99, 10_000, 100)), "no overflow is left out"
    scale, times = loss_scale_numbers(table), step_time_numbers(table)
    assert (scale.n_steps, scale.n_overflows, scale.wasted_share) == (10_000, 100, 0.01)
    assert times.n_steps == pytest.approx(10_000, abs=100), "less the warm-up"
    assert times.step_ms == pytest.approx(1.5, rel=0.02), "neighbours that take turns"


@pytest.mark.usefixtures("few_steps")
def test_overflows_in_every_step_are_thinned_too_and_still_counted() -> None:
    trace = LiveTrace()
    for begin in range(0, 5000, 50):
        trace.add([StepRecord(begin + i, 0.0, 1.0, 1.0, overflow=True, skipped=True) for i in range(50)], [])
    numbers = loss_scale_numbers(trace.steps)
    assert len(trace.steps) <= 4_000
    assert (numbers.n_steps, numbers.n_overflows, numbers.wasted_share) == (5000, 5000, 1.0)


def test_evaluations_are_told_apart_from_what_happened_to_the_scale() -> None:
    trace = LiveTrace()
    assert trace.steps.empty
    up = Event(3, EventKind.SCALE_UP, "", 4.0)
    trace.add([], [Event(9, EventKind.EVALUATION, "accuracy", 0.75), up])
    assert trace.evaluations == [(10, 0.75)]
    assert trace.events == [up]
