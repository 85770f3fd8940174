from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from workbench.config import BoostConfig
from workbench.loss_scale.scaler import LossScaling


def parameter_with_gradient(gradient: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    return parameter


def test_unscaling_keeps_every_gradient_at_a_denormal_factor() -> None:
    scaling = LossScaling(2.0**127, drop_overflow_update=True)
    gradient, found_inf = torch.full((40,), 2.0**120), torch.zeros(())
    scaling.unscale_([parameter_with_gradient(gradient)], found_inf)
    assert torch.equal(gradient, torch.full((40,), 2.0**-7))


@pytest.mark.parametrize("kind", ["fixed", "dynamic"])
def test_a_scale_may_begin_below_one(kind: str) -> None:
    config = BoostConfig.from_dict({"loss_scale": {"kind": kind, "init": 2.0**-6, "minimum": 2.0**-7}})
    scaling = LossScaling.from_config(config, torch.device("cpu"))
    assert scaling.scale == 2.0**-6
    for expected in (2.0**-7, 2.0**-7) if kind == "dynamic" else (2.0**-6,):
        scaling.after_window(torch.tensor(True))
        assert scaling.scale == expected
