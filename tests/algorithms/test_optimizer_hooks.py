from __future__ import annotations

import copy
from typing import Any

import torch
from torch.optim import SGD

from workbench.methods.optimizer_hooks import register_step_hooks, step_hooks


def make(order: list[str]) -> SGD:
    optimizer = SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)

    def note(word: str) -> Any:
        return lambda optimizer, args, kwargs: order.append(word)

    optimizer.register_step_pre_hook(note("before"))
    optimizer.register_step_pre_hook(note("just before"))
    optimizer.register_step_post_hook(note("after"))
    return optimizer


def test_hooks_that_torch_drops_from_a_copy_act_again_in_their_order() -> None:
    order: list[str] = []
    original = make(order)
    twin = copy.deepcopy(original)
    assert step_hooks(twin) == ([], []), "torch keeps hooks now; this module may go"
    register_step_hooks(twin, step_hooks(original))
    twin.step()
    assert order == ["before", "just before", "after"]


def test_a_hook_is_not_registered_twice() -> None:
    order: list[str] = []
    optimizer = make(order)
    register_step_hooks(optimizer, step_hooks(optimizer))
    optimizer.step()
    assert order == ["before", "just before", "after"]
