from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from workbench import apply
from workbench.config import BoostConfig
from workbench.loss_scale.scaler import LossScaling
from workbench.training import Boosted


def parameter_with_gradient(gradient: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    return parameter


@pytest.mark.parametrize("size", [40, 5_000, 60_000, 200_000])
def test_unscaling_keeps_every_gradient_at_a_denormal_factor(size: int) -> None:
    scaling = LossScaling(2.0**127, drop_overflow_update=True)
    gradient, found_inf = torch.full((size,), 2.0**120), torch.zeros(())
    scaling.unscale_([parameter_with_gradient(gradient)], found_inf)
    assert torch.equal(gradient, torch.full((size,), 2.0**-7))


def dynamic() -> Boosted:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    config = {"boost": {"mode": "disable_all"}, "loss_scale": {"kind": "dynamic", "init": 8.0, "window": 2}}
    return apply(config, net, torch.optim.SGD(net.parameters(), 0.1, fused=True))


def test_each_outcome_keeps_the_scale_of_its_step() -> None:
    boosted, outcomes = dynamic(), []
    for step in range(7):
        x = torch.full((2, 3), torch.inf if step == 4 else 1.0)
        boosted.backward(boosted.model(x).square().mean())
        outcomes.append(boosted.step())
    boosted.loss_scaling.set(torch.tensor(2.0))
    boosted.loss_scaling.scale.mul_(2.0)
    boosted.backward(boosted.model(torch.ones(2, 3)).square().mean())
    assert float(boosted.step().loss_scale) == 4.0  # by hand, and earlier outcomes say what they said
    assert [float(one.loss_scale) for one in outcomes] == [8.0, 8.0, 16.0, 16.0, 32.0, 16.0, 16.0]
    assert [float(one.loss_scale_after) for one in outcomes] == [8.0, 16.0, 16.0, 32.0, 16.0, 16.0, 32.0]
    assert [bool(one.overflow) for one in outcomes] == [step == 4 for step in range(7)]


@pytest.mark.parametrize("shape", [(), (1,)], ids=["scalar", "one element"])
def test_a_backward_pass_that_begins_with_the_scale_gives_a_scaled_loss_s_gradients(shape: tuple[int, ...]) -> None:
    boosted, x = dynamic(), torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    (boosted.model(x).square().mean() * 8.0).backward()
    wanted = [p.grad.clone() for p in boosted.model.parameters() if p.grad is not None]
    boosted.optimizer.zero_grad()
    boosted.backward(boosted.model(x).square().mean().reshape(shape))
    found = [p.grad for p in boosted.model.parameters() if p.grad is not None]
    assert len(found) == 4
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_an_optimizer_that_clears_gradients_in_its_own_way_is_asked_to() -> None:
    cleared: list[bool] = []

    class Own(torch.optim.SGD):
        def zero_grad(self, set_to_none: bool = True) -> None:
            cleared.append(set_to_none)
            super().zero_grad(set_to_none)

    net = nn.Linear(3, 1)
    boosted = apply({"boost": {"mode": "disable_all"}}, net, Own(net.parameters(), 0.1))
    boosted.backward(net(torch.ones(2, 3)).square().mean())
    boosted.step()
    assert cleared == [True, True], "before an update and after it"
    assert net.weight.grad is None


def test_a_fused_sgd_gets_the_buffers_of_parameters_whose_gradients_come_late() -> None:
    late, early = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*early.parameters(), *late.parameters()], 0.1, momentum=0.9, fused=True)
    boosted = apply({"boost": {"mode": "disable_all"}}, nn.ModuleList([early, late]), optimizer)
    for step in range(4):
        boosted.backward(sum(net(torch.ones(2, 3)).square().mean() for net in (early, late)[: 1 + step // 2]))
        boosted.step()
    assert all(optimizer.state[p]["momentum_buffer"] is not None for p in late.parameters())


@pytest.mark.parametrize("kind", ["fixed", "dynamic"])
def test_a_scale_may_begin_below_one(kind: str) -> None:
    config = BoostConfig.from_dict({"loss_scale": {"kind": kind, "init": 2.0**-6, "minimum": 2.0**-7}})
    scaling = LossScaling.from_config(config, torch.device("cpu"))
    assert scaling.scale == 2.0**-6
    for expected in (2.0**-7, 2.0**-7) if kind == "dynamic" else (2.0**-6,):
        scaling.after_window(torch.tensor(True))
        assert scaling.scale == expected
