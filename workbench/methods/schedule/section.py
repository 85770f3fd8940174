"""Section ``schedule``: how long a run is, and how its learning rate rises and falls."""

from __future__ import annotations

from typing import ClassVar, Literal

from workbench.config.boost import OPTIMIZER_STEPS
from workbench.config.conditions import Condition, is_not
from workbench.config.section import MethodSection, described

_OWN_SHAPE = OPTIMIZER_STEPS & is_not("schedule.shape", "task", "the task's own curve has a rise and an end of its own")


class ScheduleSection(MethodSection):
    """Section ``schedule``: the length of a run and the course of its learning rate."""

    needs: ClassVar[Condition] = OPTIMIZER_STEPS

    length: float = described(
        1.0,
        "Length",
        "Share of the task's own samples that a run takes; the schedule is annealed to its end.",
        low=0.1,
        high=1.0,
        log=True,
        gt=0,
        le=1,
        step_time=False,
        when=OPTIMIZER_STEPS,
    )
    shape: Literal["task", "cosine", "linear", "warmup_stable_decay", "constant"] = described(
        "task",
        "Shape",
        "Course of the learning rate after its rise; task is the task's own curve, stretched to the length.",
        step_time=False,
        when=OPTIMIZER_STEPS,
    )
    warmup: float = described(
        0.1,
        "Warm-up",
        "Share of the updates in which the rate rises linearly from zero.",
        low=0.02,
        high=0.3,
        log=True,
        ge=0,
        lt=1,
        step_time=False,
        when=_OWN_SHAPE,
    )
    final: float = described(
        0.0,
        "Final rate",
        "Rate of the last update, as a share of the highest.",
        low=0.0,
        high=0.2,
        ge=0,
        le=1,
        step_time=False,
        when=_OWN_SHAPE & is_not("schedule.shape", "constant", "a constant rate does not fall"),
    )

    @property
    def enabled(self) -> bool:
        """Whether a run is shorter, or its rate takes another course, than the task's own."""
        return self.length < 1.0 or self.shape != "task"

    def summary(self) -> str:
        """Return length and shape in a few words."""
        length = f"length {self.length:.3g}" if self.length < 1.0 else ""
        shape = self.shape.replace("_", "-") if self.shape != "task" else ""
        return ", ".join(part for part in (length, shape) if part)
