"""Exponential moving average of the weights, evaluated in their place.

After update t, counted from 0, with decay d::

    average <- average + (1 - min(d, (1 + t) / (10 + t))) * (weights - average)

The rise of the decay forgets the initial weights as fast as the run is short (as in TensorFlow's
``ExponentialMovingAverage``). Parameters and floating-point buffers (BatchNorm's statistics) are averaged; other
buffers stay the model's own.

Morales-Brotons et al., "Exponential Moving Average of Weights in Deep Learning: Dynamics and Benefits", TMLR 2024,
arXiv:2411.18704.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from workbench.methods.protocol import StepHook
from workbench.methods.weight_update import CompleteWindow

__all__ = ["WeightAverage", "decay_at"]

_HALF = (torch.float16, torch.bfloat16)


def decay_at(update: int, decay: float) -> float:
    """Return the share of the average that an update leaves.

    Args:
        update: The update, counted from 0.
        decay: Its limit, in [0, 1).

    Example:
        >>> [round(decay_at(t, 0.5), 2) for t in (0, 1, 5, 8, 100)]
        [0.1, 0.18, 0.4, 0.5, 0.5]
    """
    return min(decay, (1 + update) / (10 + update))


class WeightAverage(StepHook):
    """Averages a module's weights after each applied update.

    An update that an overflow skipped leaves the average as it is, without waiting for the device; for the rise of
    the decay it counts, as it does for learning-rate schedules. Weights in half precision are averaged in float32: a
    hundredth of a difference would be lost in their 8 or 11 bits.

    Args:
        module: Whose weights.
        decay: Limit of the decay, in [0, 1).
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module = module
        self.decay = decay
        self.updates = 0
        self._averages: list[Tensor] = []  # none before the first update, since ranks get the first one's weights

    @torch.no_grad()
    def before_update(self, window: CompleteWindow) -> None:
        """Begin with the initial weights."""
        if not self._averages:
            self._averages = [_widened(value).clone() for value in self._values()]

    @torch.no_grad()
    def after_update(self, window: CompleteWindow) -> Mapping[str, float]:
        """Move the average towards the new weights."""
        share = 1.0 - decay_at(self.updates, self.decay)
        self.updates += 1
        found_inf = window.found_inf
        if found_inf is not None and found_inf.is_cpu:
            if found_inf.item():
                return {}
            found_inf = None
        values = [_widened(value) for value in self._values()]
        if found_inf is None:
            torch._foreach_lerp_(self._averages, values, share)
            return {}
        differences = torch._foreach_sub(values, self._averages)
        torch._foreach_mul_(differences, share * (found_inf == 0))
        torch._foreach_add_(self._averages, differences)
        return {}

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the average in the place of the weights, and those back afterwards, bit for bit."""
        if not self._averages:
            yield
            return
        values = self._values()
        kept = [value.detach().clone() for value in values]
        _assign(values, self._averages)
        try:
            yield
        finally:
            _assign(values, kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, in the order of the module's parameters and floating-point buffers, and the updates."""
        return {"updates": self.updates, "averages": [average.clone() for average in self._averages]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken."""
        self.updates = state["updates"]
        values = self._values()
        if len(state["averages"]) not in (0, len(values)):
            raise ValueError(f"an average of {len(state['averages'])} tensors does not belong to {len(values)} weights")
        stored = zip(state["averages"], values, strict=False)
        self._averages = [average.to(value.device, copy=True) for average, value in stored]

    def _values(self) -> list[Tensor]:
        buffers = (buffer for buffer in self.module.buffers() if buffer.is_floating_point())
        return [*self.module.parameters(), *buffers]


def _widened(value: Tensor) -> Tensor:
    return value.detach().float() if value.dtype in _HALF else value.detach()


@torch.no_grad()
def _assign(values: list[Tensor], wanted: list[Tensor]) -> None:
    for value, one in zip(values, wanted, strict=True):
        value.copy_(one)
