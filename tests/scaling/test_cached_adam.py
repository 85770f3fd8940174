"""The cached step of torch's fused Adam against the step itself: same bits, same state, and never a stale list."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import ExponentialLR

from tests.kit.twins import through_file
from tests.scaling.stepped import give_gradients, parameters
from workbench.loss_scale import step_if_finite
from workbench.loss_scale.cached_adam import step_on_cached_lists

FINITE, INFINITE = torch.zeros(()), torch.ones(())


def groups(params: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.3, "weight_decay": 0.1}]


MAKERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "adam": lambda params: Adam(params, lr=0.1, fused=True),
    "adam with decay, upwards": lambda params: Adam(params, lr=0.1, weight_decay=0.1, maximize=True, fused=True),
    "adamw in groups": lambda params: AdamW(groups(params), lr=0.1, fused=True),
    "amsgrad": lambda params: Adam(params, lr=0.1, amsgrad=True, fused=True),
}


def assert_same(one: Optimizer, other: Optimizer) -> None:
    for group, twin in zip(one.param_groups, other.param_groups, strict=True):
        for p, q in zip(group["params"], twin["params"], strict=True):
            assert torch.equal(p, q)
            assert one.state[p].keys() == other.state[q].keys()
            for name, value in one.state[p].items():
                assert torch.equal(value, other.state[q][name]), name
                assert value.dtype == other.state[q][name].dtype


@pytest.mark.parametrize("name", MAKERS)
def test_every_step_is_torchs_own_bit_by_bit(name: str) -> None:
    params, twins = parameters(), parameters()
    optimizer, twin = MAKERS[name](params), MAKERS[name](twins)
    # Parameters without gradients, an overflow, and a step that somebody takes without us.
    for step, without in enumerate([(), (1,), (1,), (), (0, 1), (), (), (3,), ()]):
        give_gradients(params, step, without=without)
        give_gradients(twins, step, without=without)
        if step == 6:
            optimizer.step()
        else:
            step_if_finite(optimizer, INFINITE if step == 5 else FINITE)
        if step != 5:
            twin.step()
        assert_same(optimizer, twin)


def test_it_is_used_from_the_second_step_on_and_leaves_everything_unusual_alone() -> None:
    params = parameters()
    optimizer = Adam(params, lr=0.1, fused=True)
    give_gradients(params, 0)
    assert not step_on_cached_lists(optimizer, FINITE)  # there is no state yet
    optimizer.step()
    assert step_on_cached_lists(optimizer, FINITE)
    handle = optimizer.register_step_post_hook(lambda *_: None)
    assert not step_on_cached_lists(optimizer, FINITE)
    handle.remove()
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    assert not step_on_cached_lists(optimizer, FINITE)
    optimizer.param_groups[0]["lr"] = 0.1
    params[1].grad = torch.ones(40).to_sparse()
    before = copy.deepcopy(optimizer.state_dict())
    assert not step_on_cached_lists(optimizer, FINITE)
    assert str(optimizer.state_dict()) == str(before)
    assert not step_on_cached_lists(SGD(params, lr=0.1, fused=True), FINITE)


def test_a_scheduler_is_no_hindrance_and_another_step_is() -> None:
    params = parameters()
    optimizer = Adam(params, lr=0.1, fused=True)
    give_gradients(params, 0)
    optimizer.step()
    scheduler = ExponentialLR(optimizer, 0.5)
    assert step_on_cached_lists(optimizer, FINITE)
    scheduler.step()  # does not complain that it came before the optimizer
    calls: list[int] = []
    optimizer.step = lambda *_: calls.append(1)  # type: ignore[method-assign]
    step_if_finite(optimizer, FINITE)
    assert calls == [1]


def replaced(one: Optimizer, held: list[nn.Parameter], step: int) -> None:
    if step == 2:  # one tensor of the state
        one.state[held[0]]["exp_avg"] = torch.ones(4, 3)
    if step == 3:  # one entry of it
        one.state[held[1]] = {name: value.clone() for name, value in one.state[held[1]].items()}
        one.state[held[1]]["exp_avg_sq"].fill_(2.0)
    if step == 4:  # all of it
        one.load_state_dict(copy.deepcopy(one.state_dict()))
        one.state[held[2]]["step"].fill_(7.0)
    if step == 5:
        one.state[held[3]]["step"] = torch.tensor(3.0)
    if step == 6:  # what lies behind a tensor of it
        one.state[held[0]]["exp_avg"].data = torch.full((4, 3), 0.5)


def added(one: Optimizer, held: list[nn.Parameter], step: int) -> None:
    if step == 2:
        one.add_param_group({"params": held[2:]})


@pytest.mark.parametrize(("change", "n_at_first"), [(replaced, 4), (added, 2)], ids=["state", "parameters"])
def test_what_is_replaced_or_added_is_noticed(change: Callable[..., None], n_at_first: int) -> None:
    params, twins = parameters(), parameters()
    optimizer, twin = (Adam(p[:n_at_first], lr=0.1, fused=True) for p in (params, twins))
    for step in range(8):
        for one, held in ((optimizer, params), (twin, twins)):
            give_gradients(held, step)
            change(one, held, step)
        step_if_finite(optimizer, FINITE)
        twin.step()
        assert_same(optimizer, twin)


def test_gradients_are_not_kept() -> None:
    params = parameters()
    optimizer = Adam(params, lr=0.1, fused=True)
    for step in range(3):
        give_gradients(params, step)
        step_if_finite(optimizer, FINITE)
    kept = [weakref.ref(parameter.grad) for parameter in params if parameter.grad is not None]
    assert kept
    optimizer.zero_grad(set_to_none=True)
    assert [gradient() for gradient in kept] == [None] * len(kept)


def test_a_saved_state_and_a_copy_go_on_alone() -> None:
    params = parameters()
    optimizer = Adam(params, lr=0.1, fused=True)
    for step in range(3):
        give_gradients(params, step)
        step_if_finite(optimizer, FINITE)
    copied = copy.deepcopy(optimizer)
    loaded = Adam(copy.deepcopy(params), lr=0.1, fused=True)
    loaded.load_state_dict(through_file(optimizer.state_dict()))
    for one in (optimizer, copied, loaded):
        held = one.param_groups[0]["params"]
        give_gradients(held, 3)
        step_if_finite(one, FINITE)
    assert_same(optimizer, copied)
    assert_same(optimizer, loaded)
    assert float(optimizer.state[params[0]]["step"]) == 4.0
