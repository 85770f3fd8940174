"""Splitting for centralization by name and module type, and rebuilding with state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.golden_files import golden_paths, load_json
from tests.kit.twins import assert_close
from workbench.methods.grad_centralization.method import OptimizerProcess, register_centralization
from workbench.methods.grad_freeze.method import FreezeOpt

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
    splits = {key: case for key, case in cases.items() if key.startswith("gc_") and key != "gc_with_fn_layer"}
    assert splits
    net = recorded_network()
    parameters = dict(net.named_parameters())
    process = OptimizerProcess(torch.optim.SGD(net.parameters(), lr=0.1))
    for case in splits.values():
        groups = process.build_gc_params_group(process.build_params_dict(net), tensors(case["input"], parameters))
        assert names(groups, parameters) == case["output"]


@GOLDEN
def test_golden_fully_normalized_layers_are_not_centralized(path: Path) -> None:
    case = load_json(path)["cases"]["gc_with_fn_layer"]
    net = recorded_head()
    parameters = dict(net.named_parameters())
    process = OptimizerProcess(torch.optim.SGD(net.parameters(), lr=0.1))
    origin = [{"params": [parameters[name.split("_backbone.")[1]] for name in case["names"]]}]
    groups = process.build_gc_params_group(process.build_params_dict(net), origin)
    assert names(groups, parameters) == case["output"]


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


def test_without_centralization_the_groups_stay() -> None:
    net = nn.Linear(2, 2)
    groups = [{"params": [net.weight], "lr": 0.5}, {"params": [net.bias]}]
    new = OptimizerProcess(torch.optim.SGD(groups, lr=0.1)).generate_new_optimizer()
    assert [group["lr"] for group in new.param_groups] == [0.5, 0.1]
    assert "grad_centralization" not in new.param_groups[0]


def test_parameters_outside_the_network_are_not_centralized() -> None:
    net, prototypes = nn.Linear(2, 2), nn.Parameter(torch.zeros(3, 2))
    process = OptimizerProcess(torch.optim.SGD([*net.parameters(), prototypes], lr=0.1))
    process.add_grad_centralization(net)
    flagged = [p for group in process.origin_params if group.get("grad_centralization") for p in group["params"]]
    assert [id(p) for p in flagged] == [id(net.weight)]


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


def test_wrong_optimizers_are_refused() -> None:
    net = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer, got Linear"):
        OptimizerProcess(net)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="process its optimizer before it is wrapped"):
        OptimizerProcess(FreezeOpt(torch.optim.SGD(net.parameters(), lr=0.1)))


def test_a_tied_parameter_belongs_to_the_first_module_that_holds_it() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    process = OptimizerProcess(torch.optim.SGD(net.parameters(), lr=0.1))
    assert process.build_params_dict(net)[net[1].weight] == ("0.weight", net[0])
