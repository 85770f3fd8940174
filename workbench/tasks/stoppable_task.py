"""A task that can stop whatever is training, evaluating or timing it, at the next batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from workbench.tasks.task import Task


class StoppedError(RuntimeError):
    """Work ended because it was asked to."""


def stoppable(task: Task, stop: Callable[[], bool]) -> Task:
    """Return the same task, which raises a `StoppedError` before the next batch once ``stop`` returns true."""

    def asking(method: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*arguments: Any, **options: Any) -> Any:
            if stop():
                raise StoppedError("stopped on request")
            return method(*arguments, **options)

        return asked

    twin = copy.copy(task)
    for name in ("compute_loss", "update_metric"):
        # In the copy's own dictionary, where it comes before the method of its class, whatever class that is.
        object.__setattr__(twin, name, asking(getattr(task, name)))
    object.__setattr__(twin, "with_own_loss", lambda: stoppable(task.with_own_loss(), stop))
    return twin
