"""Centralization: what the optimizer sees has zero mean, for every kind of weight decay."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.golden_files import golden_paths, load_npz
from tests.golden_networks import (
    assert_trajectory,
    build_loss,
    build_network,
    build_optimizer,
    golden_batch,
    load_initial_weights,
    optimizer_arguments,
)
from workbench.methods.grad_centralization.method import (
    centralize_,
    decays_decoupled,
    is_centralizable,
    register_centralization,
)
from workbench.methods.grad_freeze.method import FreezeOpt


@pytest.mark.parametrize("prefix", ["nogc", "gc"])
@pytest.mark.parametrize("path", golden_paths("grad_centralization_*.npz"), ids=lambda path: path.stem)
def test_golden_training_with_and_without_centralization(path: Path, prefix: str) -> None:
    meta, arrays = load_npz(path)
    net, loss = build_network(meta["net"]), build_loss(meta["loss"])
    load_initial_weights(net, arrays, prefix=f"{prefix}/")
    recorded = meta["groups"][str(prefix == "gc")]
    parameters = dict(net.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [parameters[name]], "grad_centralization": flag, **({} if is_decayed else {"weight_decay": 0.0})}
        for name, flag, is_decayed in zip(recorded["order"], recorded["gc_flags"], recorded["decay_flags"], strict=True)
    ]
    optimizer = build_optimizer(meta, groups)
    register_centralization(optimizer, rule="multiple_of_16")
    for step in range(len(arrays["x"])):
        x, y = golden_batch(arrays, step)
        value = loss(net(x), y)
        np.testing.assert_allclose(value.item(), meta["losses"][prefix][step], rtol=1e-4)
        (value * meta["sens"]).backward()
        # The reference centralizes before it divides by loss_scale, with the decay multiplied by it; both steps are
        # linear, so dividing first gives the same.
        for parameter in net.parameters():
            assert parameter.grad is not None
            parameter.grad /= optimizer_arguments(meta).get("loss_scale", 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert_trajectory(net, arrays, step + 1, prefix=f"{prefix}/")


SHAPES = st.lists(st.integers(1, 5), min_size=2, max_size=4)


@given(SHAPES, st.floats(0, 2), st.booleans(), st.integers(0, 99))
def test_what_the_optimizer_sees_has_zero_mean_per_output(
    shape: list[int], decay: float, maximize: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    gradient = torch.randn(shape, generator=generator, dtype=torch.float64)
    seen = (-gradient if maximize else gradient) + decay * weight
    expected = seen - seen.flatten(1).mean(1).view(-1, *[1] * (len(shape) - 1))
    centralized = gradient.clone()
    centralize_([centralized], [weight], decay, maximize=maximize)
    torch.testing.assert_close((-centralized if maximize else centralized) + decay * weight, expected)


BUILDS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "sgd-maximize": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, maximize=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "nadam-decoupled": lambda p: torch.optim.NAdam(p, lr=0.1, weight_decay=0.1, decoupled_weight_decay=True),
}


@pytest.mark.parametrize("name", BUILDS)
def test_the_hook_gives_the_step_of_an_optimizer_that_centralizes_inside(name: str) -> None:
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(3, 4))
    v = nn.Parameter(w.detach().clone())
    hooked = BUILDS[name]([{"params": [w], "grad_centralization": True}])
    register_centralization(hooked)
    explicit = BUILDS[name]([v])
    group = explicit.param_groups[0]
    decoupled = decays_decoupled(explicit, group)
    if not decoupled:
        group["weight_decay"] = 0.0
    sign = -1.0 if group["maximize"] else 1.0
    for step in range(3):
        gradient = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
        w.grad = gradient.clone()
        hooked.step()
        seen = sign * gradient + (0.0 if decoupled else 0.1) * v.detach()
        v.grad = sign * (seen - seen.mean(1, keepdim=True))
        explicit.step()
        torch.testing.assert_close(w, v)
    assert decoupled == (name in {"adamw", "nadam-decoupled"})


def test_a_scaled_gradient_in_a_fused_step_gets_a_scaled_decay() -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.ones(2, 3) * 2) for _ in range(2)]
    gradient = torch.arange(6.0).view(2, 3)
    for weight, scale in zip(weights, (1.0, 8.0), strict=True):
        optimizer = torch.optim.SGD(
            [{"params": [weight], "grad_centralization": True}], lr=0.1, weight_decay=0.3, fused=True
        )
        register_centralization(optimizer)
        weight.grad = gradient * scale
        optimizer.grad_scale = torch.tensor(scale)  # type: ignore[attr-defined]
        optimizer.found_inf = torch.tensor(0.0)  # type: ignore[attr-defined]
        optimizer.step()
    torch.testing.assert_close(weights[0], weights[1])


def test_only_flagged_groups_and_tensors_with_two_axes_are_centralized() -> None:
    shapes = [(2, 16), (2, 5), (4,)]
    flagged = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    other = nn.Parameter(torch.zeros(2, 16))
    idle = nn.Parameter(torch.zeros(2, 16))
    groups = [{"params": [*flagged, idle], "grad_centralization": True}, {"params": [other]}]
    for rule, expected in (("every_weight", [0.0, 0.0, 1.0]), ("multiple_of_16", [0.0, 1.0, 1.0])):
        optimizer = torch.optim.SGD(copy.copy(groups), lr=1.0)
        handle = register_centralization(optimizer, rule)  # type: ignore[arg-type]
        for parameter in [*flagged, other]:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert [p.grad.mean().item() for p in flagged if p.grad is not None] == expected
        assert other.grad is not None
        assert other.grad.mean() == 1
        assert idle.grad is None
        handle.remove()
        flagged[0].grad = torch.ones(2, 16)
        optimizer.step()
        assert flagged[0].grad.mean() == 1


def test_centralizing_twice_is_centralizing_once() -> None:
    weight, gradient = torch.randn(3, 4), torch.randn(3, 4)
    once, twice = gradient.clone(), gradient.clone()
    centralize_([once], [weight], 0.3)
    for _ in range(2):
        centralize_([twice], [weight], 0.3)
    torch.testing.assert_close(once, twice)
    centralize_([])


def test_sparse_gradients_are_left_alone() -> None:
    embedding = nn.Embedding(4, 3, sparse=True)
    optimizer = torch.optim.SGD([{"params": list(embedding.parameters()), "grad_centralization": True}], lr=1.0)
    register_centralization(optimizer)
    embedding(torch.tensor([1])).sum().backward()
    before = embedding.weight.detach().clone()
    optimizer.step()
    torch.testing.assert_close(before[1] - embedding.weight[1], torch.ones(3))


def test_shapes_decide_by_rule() -> None:
    assert is_centralizable((3, 5))
    assert not is_centralizable((3,))
    assert is_centralizable((3, 32, 1, 1), "multiple_of_16")
    assert not is_centralizable((3, 5), "multiple_of_16")


def test_wrong_arguments_are_named() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer"):
        register_centralization(Tensor())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='`rule` must be "every_weight" or "multiple_of_16"'):
        register_centralization(optimizer, "sometimes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="before it is wrapped for freezing"):
        register_centralization(FreezeOpt(optimizer))
