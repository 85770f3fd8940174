"""The schedule in training: fewer passes, and the learning rate's course over them."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from workbench.config import Plan
from workbench.methods.protocol import Method
from workbench.methods.schedule.method import shaped
from workbench.methods.schedule.section import ScheduleSection

__all__ = ["ScheduleMethod"]


class ScheduleMethod(Method):
    """Shortens the run and gives the rate its course, unless that is the task's own."""

    @staticmethod
    def is_in_effect(plan: Plan) -> bool:
        """Return whether the schedule differs from the task's own."""
        return plan.is_in_effect("schedule")

    def length(self, n_batches: float) -> float:
        """Return the share of the batches that the run takes."""
        return n_batches * self.config.part(ScheduleSection).length

    def scheduler(self, optimizer: Optimizer, updates: int) -> LRScheduler | None:
        """Return the course; None for the task's own, which is stretched where it is made."""
        section = self.config.part(ScheduleSection)
        if section.shape == "task":
            return None
        return shaped(optimizer, updates, section.shape, warmup=section.warmup, final=section.final)
