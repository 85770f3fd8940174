"""Gradient freezing in training: the optimizer is wrapped in one that trains another group from step to step."""

from __future__ import annotations

import numpy as np
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.config import BoostConfig
from workbench.methods.grad_freeze.method import GradientFreeze
from workbench.methods.protocol import Method, Preparation

__all__ = ["FreezingMethod"]


class FreezingMethod(Method):
    """Leaves leading layers untrained in a share of the steps; the step asks its `GroupSchedule`."""

    splits_gradients = True

    def refusal(self, model: nn.Module) -> str:
        """Refuse a DistributedDataParallel that would wait for gradients of frozen parameters."""
        wrapper = next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None)
        if wrapper is None or wrapper.find_unused_parameters:
            return ""
        return (
            "with gradient freezing DistributedDataParallel needs find_unused_parameters=True, or it waits for the "
            "gradients of frozen parameters; pass it, or apply() to the plain model first and call "
            "boosted.distribute() then"
        )

    @staticmethod
    def fitted(config: BoostConfig, updates: int) -> BoostConfig:
        """Let the freezing schedule span the run's updates."""
        return config.with_values({"grad_freeze.total_steps": updates})

    def prepare(self, preparation: Preparation) -> None:
        """Form the groups, draw the schedule and wrap the optimizer."""
        config = self.config
        freeze, seed = config.grad_freeze, preparation.draw_seed()
        made = GradientFreeze(
            freeze.param_groups,
            freeze.freeze_type,
            freeze.freeze_p,
            freeze.total_steps,
            state=config.compatibility.freeze_state,
            rng=None if seed is None else np.random.RandomState(seed),
        )
        _, preparation.optimizer = made.freeze_generate(preparation.model, preparation.optimizer)
