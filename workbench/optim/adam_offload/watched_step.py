"""Step hooks and profiling at the cost of a look, where nobody asked for either.

torch wraps the step of every optimizer in a range for its profiler and in two chains of hooks. Beside a kernel that has
just driven everything else out of the caches that takes as long as gathering the gradients of a hundred parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from torch.autograd import profiler
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

__all__ = ["hooked_when_watched"]

O = TypeVar("O", bound=Optimizer)  # noqa: E741  # an optimizer
P = ParamSpec("P")
R = TypeVar("R")


def hooked_when_watched(step: Callable[Concatenate[O, P], R]) -> Callable[Concatenate[O, P], R]:
    """Decorate the ``step`` of an optimizer class: hooks run as torch runs them, if there are any.

    Args:
        step: The method.
    """
    watched = Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def either(self: O, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if (
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
            or profiler._is_profiler_enabled
        ):
            return watched(self, *args, **kwargs)
        return step(self, *args, **kwargs)

    either.hooked = True  # type: ignore[attr-defined]  # torch's mark: it does not wrap the method again
    return either
