"""The benchmark of offloading, on a CPU: what it says without an accelerator, and its parts at a small size."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import Adam, Optimizer

from workbench.bench import Request
from workbench.bench.questions import offload

CPU = torch.device("cpu")
REQUEST = Request(2, peers=True, device=CPU)
TINY = offload.Encoder(layers=1, width=16, batch=2, tokens=4)


def test_without_an_accelerator_that_is_said() -> None:
    (finding,) = offload.measure(REQUEST)
    assert finding.verdict == "absent"
    assert "accelerator" in finding.note


def test_every_line_is_measured() -> None:
    ours, early, torchao, state = offload.measure_encoder(REQUEST, TINY)
    assert ours.what.endswith("ours / Adam on the device")
    assert early.what.endswith("ours with offload_gradients / Adam on the device")
    for finding in (ours, early):
        assert finding.estimate is not None
        assert 0 < finding.estimate.low <= finding.estimate.high
    assert torchao.verdict == "absent"  # its offloading needs a device to offload from
    assert state.estimate is not None
    assert state.estimate.value == pytest.approx(2.0, rel=0.05)  # both moments: the host is the device here
    assert state.verdict == "missed"


def test_another_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def faster(weights: list[nn.Parameter]) -> Optimizer:
        return Adam(weights, lr=2e-4, fused=True)

    monkeypatch.setattr(offload, "_ours", faster)
    (finding,) = offload.measure_encoder(REQUEST, TINY)
    assert finding.verdict == "differs"
