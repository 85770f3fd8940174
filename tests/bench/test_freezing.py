"""The freezing benchmark at sizes too small to mean anything."""

from __future__ import annotations

import pytest
import torch

from workbench.bench import Finding, Request
from workbench.bench.questions import freeze
from workbench.methods.grad_freeze.freeze_optimizer import FreezeOpt


def measure() -> list[Finding]:
    request = Request(2, device=torch.device("cpu"), threads=(1,))
    return freeze.measure(
        request, widths=(4,), n_blocks=2, batch=2, side=4, groups=2, steps=3, types=(1, 0), shares=(0.5,)
    )


def test_ours_the_peer_and_switching_are_found_for_every_schedule() -> None:
    found = measure()
    kinds = [
        ": ours / limit",
        ": requires_grad of all, set every step / limit",
        ": switching / step",
        ", operations of torch: ours / limit",
    ]
    assert [one.what for one in found] == [
        f"freezing {name} 0.5, 1 thread{kind}" for name in ("interval", "continuous") for kind in kinds
    ]
    assert [one.estimate and one.estimate.rounds for one in found] == [2, 2, 2, 1] * 2
    assert all(one.estimate and one.estimate.value <= 1.0 for one in found[3::4]), [one.note for one in found]
    assert [one.goal for one in found[:3]] == [freeze.GOAL, None, freeze.SWITCHING_GOAL]


def test_another_schedule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = freeze._Schedule.frozen_groups
    monkeypatch.setattr(freeze._Schedule, "frozen_groups", lambda self: ours(self)[1:])
    assert [one.verdict for one in measure()] == ["differs", "differs"]


def test_a_step_that_trains_what_should_rest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreezeOpt, "enter_group", lambda self, index: None)
    found = measure()
    assert {one.verdict for one in found} == {"differs"}
    assert "weights differ" in found[0].note
