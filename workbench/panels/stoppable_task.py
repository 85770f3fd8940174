"""A task whose training ends at the next step when somebody asks for it, whatever function trains it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.tasks import Task

__all__ = ["StoppedError", "stoppable"]


class StoppedError(RuntimeError):
    """Work ended because somebody asked for it."""


def stoppable(task: Task, stop: Callable[[], bool]) -> Task:
    """Return the same task, asking before every batch whether to go on.

    Args:
        task: The task; it stays as it is.
        stop: Asked before every batch of training and evaluation; True ends the work with ``StoppedError``.
    """
    twin = copy.copy(task)
    for name in ("compute_loss", "update_metric"):
        # In the copy's own dictionary, where it comes before the method of its class, whatever class that is.
        object.__setattr__(twin, name, _asking(getattr(task, name), stop))
    return twin


def _asking(method: Callable[..., Any], stop: Callable[[], bool]) -> Callable[..., Any]:
    def asked(*arguments: Any, **options: Any) -> Any:
        if stop():
            raise StoppedError("stopped on request")
        return method(*arguments, **options)

    return asked
