"""Step hooks of an optimizer, carried over to its copies.

torch leaves hooks behind when an optimizer is copied or pickled; a method that acts through one would silently stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from workbench.core.torch_internals import step_hooks

__all__ = ["Hooks", "register_step_hooks", "step_hooks"]

Hooks = tuple[list[Callable[..., Any]], list[Callable[..., Any]]]


def register_step_hooks(optimizer: Optimizer, hooks: Hooks) -> None:
    """Register hooks behind those there are; the same one is not registered twice."""
    registers = optimizer.register_step_pre_hook, optimizer.register_step_post_hook
    for register, wanted, present in zip(registers, hooks, step_hooks(optimizer), strict=True):
        for hook in wanted:
            if not any(hook is other for other in present):
                register(hook)
