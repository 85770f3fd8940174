"""The batch size in training: other batches, another number of passes, rates that follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workbench.config import Plan
from workbench.methods.batch.method import resized
from workbench.methods.batch.section import BatchSection
from workbench.methods.protocol import Method, Preparation

__all__ = ["BatchMethod"]


class BatchMethod(Method):
    """Changes what one pass sees."""

    @staticmethod
    def is_in_effect(plan: Plan) -> bool:
        """Return whether a pass has another size than the loader's batches."""
        return plan.is_in_effect("batch")

    def reshape(self, preparation: Preparation) -> None:
        """Let the rates follow the size, before anything wraps the optimizer."""
        factor = self.config.part(BatchSection).rate_factor()
        if factor != 1.0:
            for group in preparation.optimizer.param_groups:
                for name in ("lr", "initial_lr"):
                    if name in group:
                        group[name] = group[name] * factor

    def passes(self, n_batches: float) -> float:
        """Return the passes over as many samples."""
        return n_batches / self.config.part(BatchSection).factor

    def batches(self, batches: Iterable[Any], passes: int) -> Iterable[Any]:
        """Concatenate or cut the loader's batches."""
        return resized(batches, self.config.part(BatchSection).factor)
