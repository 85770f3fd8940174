"""How often the host waits where AdamOffload's gradients leave during the backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.accelerator.standin import forget_waits, waits
from workbench.nn import AdamOffload

pytestmark = pytest.mark.accelerator


@pytest.mark.parametrize("overflows", [False, True])
def test_gradients_that_left_are_unscaled_with_waits_for_their_buckets_alone(
    overflows: bool, standin: torch.device
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(standin)
    optimizer = AdamOffload(model, learning_rate=0.01, offload_gradients=True, bucket_bytes=64)
    inputs = torch.randn(3, 4).to(standin)
    scale, flag = torch.full((1,), 8.0).to(standin), torch.zeros(1).to(standin)
    model(inputs).sum().backward()  # the first gradients leave in `step`
    optimizer.step()
    (model(inputs).sum() * (float("inf") if overflows else 8.0)).backward()
    expected = [state["exp_avg"].clone() for state in optimizer.state.values()]
    forget_waits()
    optimizer.unscale_offloaded_(lambda parameter: scale, flag)
    assert set(waits()) <= {"event.synchronize"}
    assert flag.item() == float(overflows)
    optimizer.step_with_found_inf(flag)
    moved = [
        not torch.equal(state["exp_avg"], old) for state, old in zip(optimizer.state.values(), expected, strict=True)
    ]
    assert any(moved) is not overflows
