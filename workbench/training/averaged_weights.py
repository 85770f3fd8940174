"""Evaluate at the average that an optimizer keeps: its weights, and BatchNorm's statistics for them.

These are estimated again from the last training inputs, as a plain mean over a few batches: Wu and Johnson, "Rethinking
'Batch' in BatchNorm", 2021, arXiv:2105.07576, section 3.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.core import devices
from workbench.core.batch import mapped, move_batch
from workbench.core.running_statistics import norms_with_statistics
from workbench.core.wrapped_model import unwrapped
from workbench.training.everything_trained import EverythingTrained
from workbench.training.precision import Precision

# Batches, as references: nothing is copied before a checkpoint, and their memory is not given back meanwhile.
_KEPT = 16


def averages_weights(optimizer: Optimizer) -> bool:
    """Return whether an optimizer trains other weights than those to evaluate: it has ``train()`` and ``eval()``."""
    return callable(getattr(optimizer, "eval", None)) and callable(getattr(optimizer, "train", None))


class OptimizersAverage:
    """Puts an optimizer's average in place of the weights; a hook keeps the last inputs of a model with BatchNorms."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._device = devices.device_of(model)
        self._inputs: deque[tuple[tuple[Any, ...], dict[str, Any]]] = deque(maxlen=_KEPT)
        self._norms = norms_with_statistics(model)
        # Layers that stay in evaluation mode during training, such as a frozen backbone's, keep their statistics.
        self._estimating = [True] * len(self._norms)
        #: Whether every forward pass has to call the model, whose inputs are kept.
        self.keeps_inputs = bool(self._norms)
        if self.keeps_inputs:
            model.register_forward_pre_hook(self._keep, with_kwargs=True)

    def _keep(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if unwrapped(module).training:
            self._inputs.append((args, kwargs))
            self._estimating = [norm.training for norm in self._norms]

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the last inputs, in host memory.

        Those with objects that a checkpoint cannot hold are left out: statistics are estimated without them then.
        """
        kept = (inputs for inputs in self._inputs if _is_plain(inputs))
        copies = [mapped(inputs, lambda tensor: tensor.detach().to("cpu", copy=True)) for inputs in kept]
        return {"inputs": copies, "estimating": list(self._estimating)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Estimate statistics as where ``state_dict`` was taken; earlier checkpoints hold no inputs."""
        self._inputs.clear()
        self._inputs.extend(move_batch(inputs, self._device) for inputs in state.get("inputs", ()))
        self._estimating = list(state.get("estimating", self._estimating))

    @contextlib.contextmanager
    def in_place(self, model: nn.Module, precision: Precision) -> Iterator[None]:
        """Give the bare model the average and its statistics, and afterwards put back what it had."""
        trained = EverythingTrained(model, self._optimizer).named().values()
        kept = [*trained, *(buffer for norm in norms_with_statistics(model) for buffer in norm.buffers())]
        values = [tensor.detach().clone() for tensor in kept]
        self._optimizer.eval()
        try:
            self._estimate_statistics_(model, precision.autocast())
            yield
        finally:
            self._optimizer.train()  # which computes the weights back, and rounds
            with torch.no_grad():
                for tensor, value in zip(kept, values, strict=True):
                    tensor.copy_(value)

    def _estimate_statistics_(self, model: nn.Module, autocast: contextlib.AbstractContextManager[Any]) -> None:
        if not self._inputs:
            return
        norms = [(norm, norm.momentum) for norm in compress(self._norms, self._estimating)]
        training = [module for module in model.modules() if module.training]
        try:
            model.eval()  # as in the evaluation: without dropout
            for norm, _ in norms:
                norm.reset_running_stats()
                norm.momentum = None  # the mean over all batches
                norm.training = True
            with torch.no_grad(), autocast:
                for args, kwargs in self._inputs:
                    model(*args, **kwargs)
        finally:
            model.eval()
            for module in training:
                module.training = True
            for norm, momentum in norms:
                norm.momentum = momentum


def _is_plain(part: Any) -> bool:
    """Return whether a part of an input consists of tensors and plain values in lists, tuples and dicts."""
    if type(part) in (list, tuple):
        return all(_is_plain(one) for one in part)
    if type(part) is dict:
        return all(_is_plain(one) for one in (*part.keys(), *part.values()))
    return part is None or type(part) in (Tensor, bool, int, float, str)
