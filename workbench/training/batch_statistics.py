"""BatchNorm's statistics for other weights than those that trained: estimated from the last training inputs.

The running statistics belong to the weights of the last forward passes. Where an evaluation takes other weights (an
optimizer that averages), they are estimated again, as a plain mean over a few batches: Wu and Johnson, "Rethinking
'Batch' in BatchNorm", 2021, arXiv:2105.07576, section 3.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from workbench.core.wrapped_model import unwrapped

__all__ = ["RecentInputs", "batch_norms"]

_KEPT = 16
"""Batches that are kept: references, so that nothing is copied, and their memory is not given back meanwhile."""


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the modules of a model that keep running statistics of their inputs."""
    norms = (module for module in model.modules() if isinstance(module, _BatchNorm))
    return [norm for norm in norms if norm.track_running_stats and norm.running_mean is not None]


class RecentInputs:
    """Keeps what a model was last called with in training.

    Args:
        model: Gets a hook that runs before each call.
    """

    def __init__(self, model: nn.Module) -> None:
        self._inputs: deque[tuple[tuple[Any, ...], dict[str, Any]]] = deque(maxlen=_KEPT)
        model.register_forward_pre_hook(self._keep, with_kwargs=True)

    def _keep(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if unwrapped(module).training:
            self._inputs.append((args, kwargs))

    @contextlib.contextmanager
    def statistics(self, model: nn.Module, autocast: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
        """Give the model statistics of its present weights, and the former ones back afterwards.

        Args:
            model: The model, bare.
            autocast: Number formats of a forward pass.
        """
        norms = batch_norms(model)
        kept = [(norm, norm.momentum, {name: b.clone() for name, b in norm.named_buffers()}) for norm in norms]
        training = [module for module in model.modules() if module.training]
        try:
            if self._inputs:
                model.eval()  # as in the evaluation: without dropout
                for norm in norms:
                    norm.reset_running_stats()
                    norm.momentum = None  # the mean over all batches
                    norm.training = True
                with torch.no_grad(), autocast:
                    for args, kwargs in self._inputs:
                        model(*args, **kwargs)
                model.eval()
                for module in training:
                    module.training = True
            for norm, momentum, _ in kept:
                norm.momentum = momentum
            yield
        finally:
            for norm, momentum, buffers in kept:
                norm.momentum = momentum
                for name, value in norm.named_buffers():
                    value.copy_(buffers[name])
            for module in training:
                module.training = True
