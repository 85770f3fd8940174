"""Optimizers by name: each gets the hyper-parameters of the section under its own names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from workbench.config import CompatibilityConfig, OptimizerConfig
from workbench.config.optimizer import HYPER_PARAMETERS
from workbench.optim import build_optimizer, change_optimizer_
from workbench.optim.adam_offload.optimizer import AdamOffload
from workbench.optim.factory import decaying_damping
from workbench.optim.thor.optimizer import Thor


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


@pytest.mark.parametrize("name", sorted(set(HYPER_PARAMETERS) - {"thor", "adam_offload"}))
def test_every_optimizer_of_a_search_trains_complex_parameters_too(name: str) -> None:
    net = network()
    net[0].register_parameter("spectrum", nn.Parameter(torch.randn(6, 6, dtype=torch.complex64)))
    optimizer = build_optimizer(OptimizerConfig(name=name), net)
    before = net[0].spectrum.detach().clone()
    (torch.view_as_real(net[0].spectrum).square().sum() + net(torch.randn(8, 4)).square().mean()).backward()
    optimizer.step()
    assert (net[0].spectrum.real != before.real).any()
    assert (net[0].spectrum.imag != before.imag).any()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch's Adagrad
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_what_takes_sparse_gradients_trains_a_table_that_gives_them(name: str) -> None:
    table = nn.Sequential(nn.Embedding(5, 2, sparse=True))
    optimizer = build_optimizer(OptimizerConfig(name=name), table)
    before = table[0].weight.detach().clone()
    table(torch.tensor([1, 3])).sum().backward()
    optimizer.step()
    assert (table[0].weight != before).any(dim=1).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "Muon", "thor"])
def test_weights_that_are_slices_are_trained_as_whole_ones(name: str) -> None:
    """Fused kernels of torch's walk through memory as if there were no gaps."""
    trained = []
    for is_slice in (False, True):
        net = network()
        columns = net[0].weight.detach().repeat(1, 2)[:, :4]
        net[0].weight = nn.Parameter(columns if is_slice else columns.contiguous())
        optimizer = build_optimizer(OptimizerConfig(name=name, lr=0.05), net)
        for inputs in torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(1)):
            optimizer.zero_grad()
            net(inputs).square().mean().backward()
            optimizer.step()
        trained.append(net[0].weight.detach())
    torch.testing.assert_close(*trained)


def test_a_fused_kernel_that_is_wrong_for_a_format_is_not_used() -> None:
    """Torch 2.13's fused SGD leaves half of every vector of 16-bit weights as it was."""
    net = nn.Linear(32, 32, dtype=torch.bfloat16)
    optimizer = build_optimizer(OptimizerConfig(name="SGD", lr=1.0), net)
    before = net.weight.detach().clone()
    net.weight.grad = torch.ones_like(net.weight)
    optimizer.step()
    assert (net.weight != before).all()


def test_thor_gets_what_the_section_says() -> None:
    section = OptimizerConfig(
        name="thor", lr=0.2, momentum=0.8, weight_decay=0.01, nesterov=True, damping=0.5, damping_decay=0.5,
        frequency=4, factor_decay=0.3, trace_threshold=0.02, kl_clip=0.01,
    )  # fmt: skip
    optimizer = build_optimizer(section, network(), CompatibilityConfig(thor_factors="mindspore"))
    assert isinstance(optimizer, Thor)
    group, rules = optimizer.param_groups[0], optimizer.preconditioner.rules
    assert (group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]) == (0.2, 0.8, 0.01, True)
    assert (rules.factors, rules.frequency, rules.factor_decay, rules.trace_threshold) == ("mindspore", 4, 0.3, 0.02)
    assert optimizer.kl_clip == 0.01
    dampings = []
    for _ in range(9):
        dampings.append(optimizer.param_groups[0]["damping"])
        optimizer.step()
    assert dampings == [0.5] * 4 + [0.25] * 4 + [0.125]


def test_damping_stays_above_what_rounding_takes() -> None:
    assert decaying_damping(10_000, initial=0.1, decay=0.5, frequency=2) == 1e-8


def test_adam_offload_gets_what_the_section_says() -> None:
    section = OptimizerConfig(name="adam_offload", lr=0.2, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.1, nesterov=True)
    optimizer = build_optimizer(section, network())
    assert isinstance(optimizer, AdamOffload)
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert optimizer.param_groups[0]["weight_decay"] == 0.1


def test_a_task_that_brings_thor_can_have_its_damping_changed() -> None:
    optimizer = Thor(network(), 0.1, 0.1, 0.9)
    change_optimizer_(optimizer, OptimizerConfig(damping=0.7, momentum=0.5))
    assert optimizer.param_groups[0]["damping"] == 0.7
    with pytest.raises(ValueError, match=r"`optimizer.frequency` is set, but Thor has no such parameter"):
        change_optimizer_(optimizer, OptimizerConfig(frequency=7))


def test_a_factor_on_the_rates_keeps_the_groups_apart() -> None:
    net = network()
    first, *others = net.parameters()
    optimizer = torch.optim.RMSprop([{"params": [first], "lr": 0.01}, {"params": others}], lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 5)  # which begins at `initial_lr`
    change_optimizer_(optimizer, OptimizerConfig(lr_factor=3.0))
    rates = [(group["lr"], group["initial_lr"]) for group in optimizer.param_groups]
    assert rates == [pytest.approx((0.03, 0.03)), pytest.approx((0.3, 0.3))]
    change_optimizer_(optimizer, OptimizerConfig(lr=0.5, lr_factor=3.0))
    assert [group["lr"] for group in optimizer.param_groups] == [1.5, 1.5]


def test_a_factor_on_rates_that_are_not_there_is_refused() -> None:
    class Still(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

    with pytest.raises(ValueError, match=r"`optimizer.lr_factor` is set, but Still has no such parameter"):
        change_optimizer_(Still(network().parameters()), OptimizerConfig(lr_factor=2.0))
    given = Thor(network(), lambda step: 0.1, 0.1, 0.9)
    with pytest.raises(ValueError, match=r"`optimizer.lr_factor` is set, but the Thor was given a rate for each step"):
        change_optimizer_(given, OptimizerConfig(lr_factor=2.0))


@pytest.mark.parametrize(
    ("name", "value"), [("damping", 0.0), ("frequency", 1), ("damping_decay", 1.5), ("kl_clip", 0.0)]
)
def test_values_out_of_range_are_refused_by_path(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"`optimizer.{name}` must"):
        OptimizerConfig(**{"name": "thor", name: value})
