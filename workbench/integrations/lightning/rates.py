"""The learning rates of a module's own schedulers, as a course that a run of any length can go through."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from workbench.methods.schedule.method import stretched


def course_of(
    optimizer: Optimizer, schedulers: Sequence[Any], total_steps: int, epoch_steps: float
) -> Callable[[Optimizer, int], LambdaLR] | None:
    """Return what makes a scheduler with the course of those on an optimizer, as `workbench.apply` takes it.

    None where there is none; a ValueError where one follows a metric. The schedulers, as Lightning describes them
    (``scheduler``, ``interval``, ``frequency``), are run through once and cannot be used afterwards: the optimizer gets
    back its highest rates. A momentum that they would have moved stays where it begins. Lengths are today's updates;
    those of an epoch are infinite for data without end.
    """
    if not schedulers:
        return None
    if any(isinstance(one.scheduler, ReduceLROnPlateau) for one in schedulers):
        raise ValueError(
            "ReduceLROnPlateau follows a metric, so that its course is not known beforehand; let configure_optimizers "
            "return a schedule over the steps or epochs, such as CosineAnnealingLR"
        )
    # OneCycleLR begins below its highest rate; what others begin with is the optimizer's own.
    highest = [float(group.get("max_lr", group.get("initial_lr", group["lr"]))) for group in optimizer.param_groups]
    course = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of schedulers that step before the optimizer
        for step in range(1, total_steps + 1):
            rates = zip(optimizer.param_groups, highest, strict=True)
            course.append(tuple(float(group["lr"]) / (top or 1.0) for group, top in rates))
            epoch, rest = divmod(step, epoch_steps)
            for one in schedulers:
                passed = step if one.interval == "step" else int(epoch) if rest == 0 else 0
                if passed and passed % one.frequency == 0:
                    one.scheduler.step()
    vars(optimizer).pop("step", None)  # a scheduler has put one that counts in front of the class's
    for group, rate in zip(optimizer.param_groups, highest, strict=True):
        group.pop("initial_lr", None)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    return functools.partial(stretched, course=course)
