"""The benchmarks of what users feel, at sizes too small to mean anything: they run, and say what they measure."""

from __future__ import annotations

import functools

import pytest

from workbench.bench import Request
from workbench.bench.questions import commands, step_cost
from workbench.bench.rounds import interleaved


def test_step_cost_compares_loops_that_train_alike() -> None:
    found = step_cost.measure(Request(1), optimizers=["SGD with momentum"], steps=20)
    assert [one.unit for one in found] == ["x", "s", "x"]
    assert [one.goal for one in found] == [1.02, 8e-6, 0.90]
    assert all(one.estimate is not None for one in found)


def test_step_cost_times_nothing_where_weights_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_cost, "_DYNAMIC", {"boost": {"mode": "disable_all"}, "loss_scale": {"kind": "fixed"}})
    monkeypatch.setattr(step_cost._Loop, "_scaled", lambda loop: None)
    *_, scale = step_cost.measure(Request(1), optimizers=["Adam"], steps=20)
    assert (scale.verdict, scale.estimate) == ("differs", None)


@pytest.mark.slow
def test_commands_are_timed_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "interleaved", functools.partial(interleaved, warm_up=0))
    found = commands.measure(Request(1), trials=4)
    assert len(found) == 9
    assert all(one.estimate is not None and one.estimate.value > 0.0 for one in found)
