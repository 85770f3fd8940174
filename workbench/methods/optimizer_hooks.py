"""What is registered on an optimizer to act before and after its steps, so that it can move along with the optimizer.

torch leaves hooks behind when an optimizer is copied or pickled. A method that acts through a hook would then silently
stop acting, so whoever copies or rebuilds an optimizer carries them over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch.optim import Optimizer

__all__ = ["StepHooks", "register_step_hooks", "step_hooks"]


class StepHooks(NamedTuple):
    """Hooks of one optimizer, in the order in which they run."""

    before: list[Callable[..., Any]]
    after: list[Callable[..., Any]]


def step_hooks(optimizer: Optimizer) -> StepHooks:
    """Return the hooks that run before and after each step of an optimizer."""
    # torch has no public way to list the hooks of an optimizer; both names exist since torch 2.0.
    return StepHooks(
        list(optimizer._optimizer_step_pre_hooks.values()), list(optimizer._optimizer_step_post_hooks.values())
    )


def register_step_hooks(optimizer: Optimizer, hooks: StepHooks) -> None:
    """Register hooks that :func:`step_hooks` returned, behind those there are; the same one is not registered twice."""
    present = step_hooks(optimizer)
    for hook in hooks.before:
        if not any(hook is other for other in present.before):
            optimizer.register_step_pre_hook(hook)
    for hook in hooks.after:
        if not any(hook is other for other in present.after):
            optimizer.register_step_post_hook(hook)
