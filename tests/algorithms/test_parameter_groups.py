"""Names, chunks, nested groups, rebuilt optimizers and the hooks that follow them."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

from tests.golden_files import golden_paths, load_json
from tests.kit.twins import assert_close
from workbench.core.torch_internals import step_hooks
from workbench.methods.parameter_groups import (
    named_trainable_parameters,
    plain_name,
    rebuild_optimizer,
    register_step_hooks,
    split_into_chunks,
    split_into_nested_groups,
)

NAMES = st.lists(
    st.sampled_from(["conv.weight", "bn1.gamma", "fc.bias", "norm.weight", "x_bn.conv.weight"]), max_size=40
)


@pytest.mark.parametrize("path", golden_paths("freeze_parameter_groups*.json"), ids=lambda path: path.stem)
def test_golden_groups_have_the_recorded_names_and_none_are_a_value_error(path: Any) -> None:
    data = load_json(path)
    for case in data["cases"]:
        groups = split_into_nested_groups(data["parameter_names"][case["net"]], case["n_groups"])
        assert [len(group) for group in groups] == case["group_lengths"], case["net"]
        assert [group[0] for group in groups] == case["group_first_name"], case["net"]
    for key, groups in data["full_examples"].items():
        net, n_groups = key.split("|")
        assert split_into_nested_groups(data["parameter_names"][net], int(n_groups)) == groups
    assert data["zero_groups"] == "ZeroDivisionError"
    with pytest.raises(ValueError, match="`param_groups` must be at least 1, got 0"):
        split_into_nested_groups(["a.weight"], 0)
    with pytest.raises(TypeError, match="`param_groups` must be an integer"):
        split_into_nested_groups(["a.weight"], 2.0)  # type: ignore[arg-type]


@given(NAMES)
def test_chunks_put_together_are_the_list_and_hold_three_names_before_the_next_begins(names: list[str]) -> None:
    chunks = split_into_chunks(names)
    assert [name for chunk in chunks for name in chunk] == names
    assert all(len(chunk) >= 3 for chunk in chunks[:-1])
    assert all("bn" not in chunk[0] and "bias" not in chunk[0] for chunk in chunks[1:])


@given(NAMES, st.integers(1, 12))
def test_groups_are_nested_suffixes_and_the_first_is_everything(names: list[str], n_groups: int) -> None:
    groups = split_into_nested_groups(names, n_groups)
    assert len(groups) == n_groups
    assert groups[0] == names
    for larger, smaller in itertools.pairwise(groups):
        assert larger[len(larger) - len(smaller) :] == smaller


def test_names_lose_the_prefixes_of_wrappers() -> None:
    assert plain_name("module.layer1.conv.weight") == "layer1.conv.weight"
    assert plain_name("_orig_mod.module.fc.bias") == "fc.bias"
    assert plain_name("body._orig_mod.fc.bias") == "body.fc.bias"
    compiled = torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager")
    assert isinstance(compiled, nn.Module)
    assert [name for name, _ in named_trainable_parameters(compiled)] == ["0.weight", "0.bias"]


def test_frozen_parameters_are_not_trainable_ones_and_tied_ones_appear_once() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    net[0].bias.requires_grad_(False)
    assert [name for name, _ in named_trainable_parameters(net)] == ["0.weight", "1.bias"]


@pytest.mark.parametrize(
    "build",
    [
        lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.9), fused=True),
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.2),
        lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
    ],
    ids=["sgd", "fused-adam", "adamw", "rmsprop"],
)
def test_a_rebuilt_optimizer_continues_as_the_old_one_would(build: Any) -> None:
    nets = [nn.Linear(3, 2), nn.Linear(3, 2)]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers = [build(net.parameters()) for net in nets]
    for step in range(4):
        if step == 2:  # the same groups, split in two
            old = optimizers[1]
            options = {key: value for key, value in old.param_groups[0].items() if key != "params"}
            groups = [{"params": [p], **options} for p in old.param_groups[0]["params"]]
            optimizers[1] = rebuild_optimizer(old, groups)
            assert type(optimizers[1]) is type(old)
            assert optimizers[1].defaults == old.defaults
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            net(torch.ones(4, 3) * (step + 1)).square().mean().backward()
            optimizer.step()
    assert_close(nets[0], nets[1])
    old, new = (getattr(optimizer, "_step_supports_amp_scaling", None) for optimizer in optimizers)
    assert old == new


def test_an_optimizer_with_an_unusual_constructor_is_refused_with_a_reason() -> None:
    class Odd(SGD):
        def __init__(self, params: Any, flavour: str) -> None:
            super().__init__(params, lr=0.1)

    optimizer = Odd(nn.Linear(2, 1).parameters(), "sweet")
    with pytest.raises(TypeError, match="Odd cannot be rebuilt"):
        rebuild_optimizer(optimizer, optimizer.param_groups)


# Hooks


def test_hooks_that_torch_drops_from_a_copy_act_again_in_their_order() -> None:
    order: list[str] = []
    original = SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    original.register_step_pre_hook(lambda *_: order.append("before"))
    original.register_step_pre_hook(lambda *_: order.append("just before"))
    original.register_step_post_hook(lambda *_: order.append("after"))
    twin = copy.deepcopy(original)
    assert step_hooks(twin) == ([], []), "torch keeps hooks now; this module may go"
    for _ in range(2):  # none is registered twice
        register_step_hooks(twin, step_hooks(original))
    twin.step()
    rebuild_optimizer(original, original.param_groups).step()
    assert order == ["before", "just before", "after"] * 2
