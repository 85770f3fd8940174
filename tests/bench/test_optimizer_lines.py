"""The optimizer's lines of the bench, tiny: findings come, and a side that computes something else is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from workbench.bench.benchmark import Request
from workbench.bench.contest import Side
from workbench.bench.questions import adam, loss_scale, muon, tensors
from workbench.optim.adam_offload.optimizer import AdamOffload

REQUEST = Request(1, peers=True, device=torch.device("cpu"), threads=(1,))
TINY = ((64, 4),)


def test_sizes_have_words() -> None:
    assert [tensors.words((1_000_000, 60)), tensors.words((64, 4))] == ["1 M in 60", "64 in 4"]


def test_the_scaled_tail_is_measured_beside_its_limit() -> None:
    ours, limit = loss_scale.measure_tail(REQUEST, sizes=TINY, goals=(1e9,))
    assert ours.verdict == "met"
    assert "4" in ours.what
    assert limit.estimate is not None


def test_a_tail_that_skips_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(loss_scale.ScaledTail):
        def __call__(self) -> None:
            self._found_inf.zero_()
            self.scaling.unscale_(self.parameters, self._found_inf)
            self.optimizer.step()

    monkeypatch.setattr(loss_scale, "ScaledTail", Careless)
    (finding,) = loss_scale.measure_tail(REQUEST, sizes=TINY, goals=(None,))
    assert finding.verdict == "differs"


def test_the_scaled_step_is_measured_beside_torchs_scaler() -> None:
    ours, peer = loss_scale.measure_scaled_step(REQUEST, nets=(loss_scale.Perceptron(1, 8, 4, 1e9),))
    assert ours.verdict == "met"
    assert peer.what.startswith("scaled step, 1 x 8 batch 4, 1 thread: GradScaler")


def test_group_scales_are_measured_against_one() -> None:
    (finding,) = loss_scale.measure_group_scale(REQUEST, sizes=((64, 4),), groups=2)
    assert finding.estimate is not None


@pytest.mark.long
def test_host_adam_is_measured_in_both_formats_and_absent_peers_are_named() -> None:
    found = adam.measure(REQUEST, sizes=TINY, goals=(1e9,))
    ours = [finding for finding in found if ": ours /" in finding.what]
    assert [finding.estimate is not None for finding in ours] == [True, True]
    assert {finding.what.split(": ")[1].split(" /")[0] for finding in found} == {
        "ours",
        "limit",
        "DeepSpeed",
        "torchao",
    }


def test_another_rate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(parameters: list[nn.Parameter]) -> Side:
        return AdamOffload(parameters, learning_rate=1.1 * adam._RATE, eps=1e-15).step

    monkeypatch.setattr(adam, "_ours", hasty)
    found = adam.measure(REQUEST, sizes=TINY, goals=(None,))
    assert found[0].verdict == "differs"


@pytest.mark.slow
def test_muon_is_measured_beside_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "_of_transformer", lambda: [torch.randn(4, 8)])
    found = muon.measure(REQUEST, steps=(3,), images=(2, 3, 8, 8))
    ours = [finding for finding in found if ": ours /" in finding.what]
    assert [finding.estimate is not None for finding in ours] == [True, True]
    assert any("torch.optim.Muon" in finding.what for finding in found)
    monkeypatch.setattr(muon, "_EXACTNESS", 0.0)
    assert [finding.verdict for finding in muon.measure(REQUEST, steps=(3,), images=(2, 3, 8, 8))] == ["differs"] * 2
