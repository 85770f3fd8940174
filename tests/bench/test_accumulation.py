"""The accumulation benchmark at sizes too small to mean anything."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from workbench.bench import Request
from workbench.bench.questions import accumulation

REQUEST = Request(1, device=torch.device("cpu"), threads=(1,))
TINY = {"width": 8, "depth": 1, "micro_batches": 3, "batch": 2}


def test_ours_the_peer_and_the_bytes_are_found_and_tensors_without_memory_do_not_count() -> None:
    left_behind = FakeTensorMode().from_tensor(torch.ones(3))
    ours, buffers, operations, held = accumulation.measure(REQUEST, **TINY)
    del left_behind
    assert ours.what == "accumulation 3 x 2, 1 thread: ours / native .grad"
    assert ours.estimate is not None
    assert buffers.what.endswith("separate buffers / native .grad")
    assert operations.estimate is not None
    assert operations.estimate.value <= 1.0, operations.note
    assert held.estimate is not None
    assert held.estimate.value == 1.0  # gradients, and nothing beside them
    assert held.note.startswith("1.00 times the parameters")


@pytest.mark.long
def test_buffers_of_their_own_would_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hoarding(accumulation._Boosted):
        def micro_batch(self, index: int) -> None:
            super().micro_batch(index)
            self.kept = [torch.zeros_like(parameter) for parameter in self.model.parameters()]

    monkeypatch.setattr(accumulation, "_Boosted", Hoarding)
    monkeypatch.setattr(Hoarding, "window", lambda self: None)
    held = accumulation.measure(REQUEST, **TINY)[-1]
    assert held.estimate is not None
    assert held.verdict == "missed"


def test_another_mean_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Summing(accumulation._Boosted):
        def micro_batch(self, index: int) -> None:
            super().micro_batch(index)
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(2)

    monkeypatch.setattr(accumulation, "_Boosted", Summing)
    monkeypatch.setattr(accumulation, "_held_bytes", lambda side: 1)  # which is not asked here
    assert accumulation.measure(REQUEST, **TINY)[0].verdict == "differs"
