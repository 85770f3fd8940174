"""Centralization: what the optimizer sees has zero mean; which groups it is split into, and how it is rebuilt."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.golden_files import golden_paths, load_json, load_npz
from tests.golden_networks import (
    assert_trajectory,
    build_loss,
    build_network,
    build_optimizer,
    golden_batch,
    load_initial_weights,
    optimizer_arguments,
)
from tests.kit.twins import assert_close
from workbench.methods.grad_centralization.method import (
    OptimizerProcess,
    centralize_,
    decays_decoupled,
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
            parameter.grad /= optimizer_arguments(meta).get("loss_scale", 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert_trajectory(net, arrays, step + 1, prefix=f"{prefix}/")


SHAPES = st.lists(st.integers(1, 5), min_size=2, max_size=4)


@settings(max_examples=40)
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
    rules: dict[Any, list[float]] = {"every_weight": [0.0, 0.0, 1.0], "multiple_of_16": [0.0, 1.0, 1.0]}
    for rule, expected in rules.items():
        optimizer = torch.optim.SGD(copy.copy(groups), lr=1.0)
        handle = register_centralization(optimizer, rule)
        for parameter in [*flagged, other]:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert [p.grad.mean().item() for p in flagged if p.grad is not None] == expected
        assert other.grad.mean() == 1
        assert idle.grad is None
        handle.remove()
        flagged[0].grad = torch.ones(2, 16)
        optimizer.step()
        assert flagged[0].grad.mean() == 1


def test_sparse_gradients_are_left_alone() -> None:
    embedding = nn.Embedding(4, 3, sparse=True)
    optimizer = torch.optim.SGD([{"params": list(embedding.parameters()), "grad_centralization": True}], lr=1.0)
    register_centralization(optimizer)
    embedding(torch.tensor([1])).sum().backward()
    before = embedding.weight.detach().clone()
    optimizer.step()
    torch.testing.assert_close(before[1] - embedding.weight[1], torch.ones(3))


def test_wrong_arguments_are_named() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer"):
        register_centralization(Tensor())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='`rule` must be "every_weight" or "multiple_of_16"'):
        register_centralization(optimizer, "sometimes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="before it is wrapped for freezing"):
        register_centralization(FreezeOpt(optimizer))
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer, got Linear"):
        OptimizerProcess(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="process its optimizer before it is wrapped"):
        OptimizerProcess(FreezeOpt(optimizer))


# Splitting by name and module type, and rebuilding with state


GOLDEN = pytest.mark.parametrize("path", golden_paths("optimizer_process*.json"), ids=lambda path: path.stem)


class FullNormalization(nn.Module):
    """Stands for a fully normalized head: other methods know it by its mark only."""

    is_full_normalization = True

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.multiplier = nn.Parameter(torch.ones(1))


def recorded_network() -> nn.Module:
    net = nn.Module()
    net.conv1 = nn.Conv2d(3, 4, 3, bias=False)
    net.bn1 = nn.BatchNorm2d(4)
    net.dw = nn.Conv2d(4, 4, 3, groups=4, bias=False)
    net.bn2 = nn.BatchNorm2d(4)
    net.pw = nn.Conv2d(4, 6, 1)
    net.grp = nn.Conv2d(6, 6, 1, groups=2, bias=False)
    net.ln = nn.LayerNorm((2, 3))  # a two-dimensional scale: only the module's type says that it is none to centralize
    net.fc = nn.Linear(6, 3)
    return net


def recorded_head() -> nn.Module:
    net = nn.Module()
    net.fc1 = nn.Linear(3, 3)
    net.fc2 = FullNormalization()
    return net


def tensors(value: Any, parameters: dict[str, nn.Parameter]) -> Any:
    """Replace recorded names by parameters."""
    return [
        {key: [parameters[n] for n in entry] if key.endswith("params") else entry for key, entry in group.items()}
        for group in value
    ]


def names(groups: list[dict[str, Any]], parameters: dict[str, nn.Parameter]) -> list[dict[str, Any]]:
    by_identity = {id(p): name for name, p in parameters.items()}
    return [
        {k: [by_identity[id(p)] for p in entry] if k.endswith("params") else entry for k, entry in group.items()}
        for group in groups
    ]


@GOLDEN
def test_golden_splitting_for_centralization(path: Path) -> None:
    cases = load_json(path)["cases"]
    splits = {key: case for key, case in cases.items() if key.startswith("gc_")}
    assert len(splits) > 1
    head = splits["gc_with_fn_layer"]  # a fully normalized layer, which is not centralized
    head["input"] = [{"params": [name.split("_backbone.")[1] for name in head["names"]]}]
    for key, case in splits.items():
        net = recorded_head() if case is head else recorded_network()
        parameters = dict(net.named_parameters())
        process = OptimizerProcess(torch.optim.SGD(net.parameters(), lr=0.1))
        groups = process.build_gc_params_group(process.build_params_dict(net), tensors(case["input"], parameters))
        assert names(groups, parameters) == case["output"], key


@GOLDEN
def test_golden_round_trip_keeps_class_flags_and_decay(path: Path) -> None:
    cases = load_json(path)["cases"]
    recorded = cases["roundtrip_grouped"]
    net = recorded_network()
    parameters = dict(net.named_parameters())
    process = OptimizerProcess(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01))
    process.add_grad_centralization(net)
    optimizer = process.generate_new_optimizer()
    assert [n for group in names(optimizer.param_groups, parameters) for n in group["params"]] == recorded["order"]
    flags = [group["grad_centralization"] for group in optimizer.param_groups for _ in group["params"]]
    assert flags == recorded["gc_flags"]
    decays = [group["weight_decay"] > 0 for group in optimizer.param_groups for _ in group["params"]]
    assert decays == recorded["decay_flags"]
    assert type(optimizer) is torch.optim.SGD
    # Difference: the reference does not split a plain parameter list; torch has no such thing, the list is one group.
    assert cases["roundtrip_plain_list"]["gc_flags"] is None


@GOLDEN
def test_golden_error_for_an_iterator_is_no_error_here(path: Path) -> None:
    assert load_json(path)["cases"]["iterator_params"].startswith("ValueError")
    net = recorded_network()
    process = OptimizerProcess(torch.optim.SGD(iter(net.parameters()), lr=0.1))
    process.add_grad_centralization(net)
    new = process.generate_new_optimizer()
    assert {id(p) for group in new.param_groups for p in group["params"]} == {id(p) for p in net.parameters()}


@pytest.mark.parametrize("fused", [False, True])
def test_state_and_arguments_move_along(fused: bool) -> None:
    torch.manual_seed(0)
    nets = [nn.Linear(4, 3), nn.Linear(4, 3)]
    nets[1].load_state_dict(nets[0].state_dict())
    old = torch.optim.AdamW(nets[0].named_parameters(), lr=0.1, betas=(0.7, 0.9), weight_decay=0.1, fused=fused)
    parts = [{"params": [nets[1].weight], "grad_centralization": True}, {"params": [nets[1].bias]}]
    other = torch.optim.AdamW(parts, lr=0.1, betas=(0.7, 0.9), weight_decay=0.1, fused=fused)

    def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        net(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()

    step(nets[0], old)
    step(nets[1], other)
    register_centralization(other)
    process = OptimizerProcess(old)
    process.add_grad_centralization(nets[0])
    new = process.generate_new_optimizer()
    assert [group["param_names"] for group in new.param_groups] == [["weight"], ["bias"]]
    assert new.defaults == old.defaults
    for _ in range(3):
        step(nets[0], new)
        step(nets[1], other)
    assert_close(nets[0], nets[1])


def test_parameters_outside_the_network_are_not_centralized_and_tied_ones_belong_to_the_first_module() -> None:
    net, prototypes = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Parameter(torch.zeros(3, 2))
    net[1].weight = net[0].weight
    process = OptimizerProcess(torch.optim.SGD([*net.parameters(), prototypes], lr=0.1))
    assert process.build_params_dict(net)[net[1].weight] == ("0.weight", net[0])
    process.add_grad_centralization(net)
    flagged = [p for group in process.origin_params if group.get("grad_centralization") for p in group["params"]]
    assert [id(p) for p in flagged] == [id(net[0].weight)]
    groups = [{"params": [net[0].weight], "lr": 0.5}, {"params": [net[0].bias]}]
    new = OptimizerProcess(torch.optim.SGD(groups, lr=0.1)).generate_new_optimizer()  # no centralization
    assert [group["lr"] for group in new.param_groups] == [0.5, 0.1]
    assert "grad_centralization" not in new.param_groups[0]


def test_centralization_without_any_weight_warns_that_it_has_no_effect() -> None:
    net = nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1, groups=2))
    process = OptimizerProcess(torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match="gradient centralization has no effect"):
        process.add_grad_centralization(net)
    assert not any(group["grad_centralization"] for group in process.generate_new_optimizer().param_groups)


def test_centralization_still_acts_inside_a_freezing_optimizer() -> None:
    for state in ("shared", "per_group"):
        net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False))
        process = OptimizerProcess(torch.optim.SGD(net.parameters(), lr=1.0))
        process.add_grad_centralization(net)
        groups = [list(net.parameters()), list(net[1].parameters())]
        optimizer = FreezeOpt(process.generate_new_optimizer(), groups, [1, 0], state=state)  # type: ignore[arg-type]
        for _ in range(2):
            before = net[1].weight.detach().clone()
            optimizer.begin_step()
            net(torch.randn(4, 3)).square().sum().backward()
            optimizer.step()
            change: Tensor = net[1].weight.detach() - before
            assert change.abs().max() > 1e-3
            torch.testing.assert_close(change.mean(1), torch.zeros(2), atol=1e-5, rtol=0)
            optimizer.zero_grad()
