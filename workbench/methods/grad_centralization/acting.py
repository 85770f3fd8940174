"""Gradient centralization in training: the optimizer centralizes the gradients it is given."""

from __future__ import annotations

from workbench.config import Plan
from workbench.methods.grad_centralization.optimizer_process import OptimizerProcess
from workbench.methods.protocol import Method, Preparation

__all__ = ["CentralizationMethod"]


class CentralizationMethod(Method):
    """Rebuilds the optimizer with its groups marked; in the reference it comes with LessBN."""

    @staticmethod
    def is_in_effect(plan: Plan) -> bool:
        """Return whether gradients are centralized."""
        return plan.less_bn and plan.config.less_bn.gc_flag

    def reshape(self, preparation: Preparation) -> None:
        """Mark the optimizer's groups and register the hook."""
        process = OptimizerProcess(preparation.optimizer)
        process.add_grad_centralization(preparation.model, rule=self.config.compatibility.grad_centralization)
        preparation.optimizer = process.generate_new_optimizer()
