"""Gradient accumulation in training: so many micro-batches make one update."""

from __future__ import annotations

from workbench.config import Plan
from workbench.methods.protocol import Method

__all__ = ["AccumulationMethod"]


class AccumulationMethod(Method):
    """Makes the window longer; the step averages over it."""

    @staticmethod
    def is_in_effect(plan: Plan) -> bool:
        """Return whether several micro-batches make an update."""
        return plan.grad_accumulation

    def n_micro(self) -> int:
        """Return the micro-batches per update."""
        return self.config.grad_accumulation.grad_accumulation_step
