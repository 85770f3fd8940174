"""Counts of steps that a model keeps, as for a weight of its loss that grows, and how evaluations depend on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import nn

_Numbers = dict[tuple[nn.Module, str], float]


class StepCounts:
    """The whole numbers of a model's modules, in attributes and buffers of one element, that training makes larger.

    Made before some steps, and asked after them. BatchNorm's count of batches is none of them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._first = model, _whole_numbers(model)

    @property
    def names(self) -> list[str]:
        """Names of those that have grown."""
        return [name for _, name in self._grown()]

    def judged(self, judge: Callable[[], float], share: float) -> tuple[float, float]:
        """Judge the model with its counts as they were at first, and after ``share`` times as many steps as by now.

        Both are NaN where nothing has grown.
        """
        grown, now = self._grown(), _whole_numbers(self._model)
        if not grown:
            return math.nan, math.nan
        last = {key: round(self._first[key] + share * (number - self._first[key])) for key, number in grown.items()}
        try:
            _set({key: self._first[key] for key in grown})
            at_first = judge()
            _set(last)
            return at_first, judge()
        finally:
            _set(now)

    def _grown(self) -> _Numbers:
        now = _whole_numbers(self._model)
        return {key: number for key, number in now.items() if number > self._first.get(key, math.inf)}


def _whole_numbers(model: nn.Module) -> _Numbers:
    found: _Numbers = {}
    for module in model.modules():
        buffers = {name: one.item() for name, one in module.named_buffers(recurse=False) if one.numel() == 1}
        for name, number in {**vars(module), **buffers}.items():
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if is_number and name != "num_batches_tracked" and float(number).is_integer():
                found[module, name] = number
    return found


def _set(numbers: Mapping[tuple[nn.Module, str], float]) -> None:
    for (module, name), number in numbers.items():
        if name in dict(module.named_buffers(recurse=False)):
            module.get_buffer(name).fill_(number)
        else:
            setattr(module, name, number)
