"""Regularization in training: another criterion, and other weights in evaluations."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import nn
from torch.optim import Optimizer

from workbench.config import Plan
from workbench.methods.protocol import Method, StepHook
from workbench.methods.regularization.label_smoothing import smoothed, why_no_smoothing
from workbench.methods.regularization.section import RegularizationSection
from workbench.methods.regularization.weight_average import WeightAverage

__all__ = ["RegularizationMethod"]


class RegularizationMethod(Method):
    """Smooths labels, averages weights, or both."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._average: WeightAverage | None = None

    @staticmethod
    def is_in_effect(plan: Plan) -> bool:
        """Return whether one of the two acts."""
        return plan.is_in_effect("regularization")

    def criterion(self, criterion: Any) -> Any:
        """Return the criterion with smoothed labels; one that has no smoothing as it is."""
        smoothing = self.config.part(RegularizationSection).label_smoothing
        if smoothing == 0 or why_no_smoothing(criterion):
            return criterion
        return smoothed(criterion, smoothing)

    def step_hook(self, model: nn.Module, optimizer: Optimizer) -> StepHook | None:
        """Return what averages the weights."""
        section = self.config.part(RegularizationSection)
        self._average = None if section.weight_average == "none" else WeightAverage(model, section.decay)
        return self._average

    def evaluating(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Evaluate with the average."""
        return contextlib.nullcontext() if self._average is None else self._average.in_place()
