"""The curriculum in training: other batches; whether the network takes them is known beforehand (`facts.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workbench.config import Plan
from workbench.methods.curriculum.method import growing
from workbench.methods.curriculum.section import CurriculumSection
from workbench.methods.protocol import Method

__all__ = ["CurriculumMethod"]


class CurriculumMethod(Method):
    """Lets the inputs grow."""

    @staticmethod
    def is_in_effect(plan: Plan) -> bool:
        """Return whether inputs begin smaller."""
        return plan.is_in_effect("curriculum")

    def batches(self, batches: Iterable[Any], passes: int) -> Iterable[Any]:
        """Make early batches smaller."""
        section = self.config.part(CurriculumSection)
        if section.kind == "none":
            return batches
        return growing(batches, passes, section.kind, start=section.start, until=section.until, stages=section.stages)
