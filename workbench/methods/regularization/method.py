"""Two regularizers: smoothed labels, and an exponential moving average of the weights, evaluated in their place.

Label smoothing spreads part of each label over all classes: the target is ``(1 - s) * label + s / n_classes`` (Szegedy
et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016, arXiv:1512.00567, section 7). Torch's
cross entropy has it built in; what is not torch's cross entropy is left alone.

The average after update t, counted from 0, with decay d::

    average <- average + (1 - min(d, (1 + t) / (10 + t))) * (weights - average)

so that a short run, too, forgets its initial weights (as TensorFlow's). Parameters and BatchNorm's running statistics
are averaged; whole numbers and other buffers stay the model's own, for what they hold need not have an average (a mask
of -inf has none).

Morales-Brotons et al., "Exponential Moving Average of Weights in Deep Learning: Dynamics and Benefits", TMLR 2024,
arXiv:2411.18704.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from workbench.config import BoostConfig, Plan
from workbench.core.running_statistics import running_statistics
from workbench.methods.protocol import Method, StepHook
from workbench.methods.regularization.section import RegularizationSection
from workbench.methods.weight_update import CompleteWindow

_HALF = (torch.float16, torch.bfloat16)


def why_no_smoothing(criterion: Any) -> str:
    """Return why a criterion's labels cannot be smoothed; empty where it is torch's cross entropy, in either form."""
    if criterion is None:
        return "no criterion is known whose labels it could smooth; pass `criterion`"
    inner = criterion
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inner is F.cross_entropy:
        return ""
    if isinstance(inner, nn.CrossEntropyLoss):
        own = type(inner).forward is not nn.CrossEntropyLoss.forward
        return f"{type(inner).__name__} has a forward of its own" if own else ""
    if isinstance(inner, nn.Module) or getattr(F, getattr(inner, "__name__", ""), None) is inner:
        return f"{getattr(inner, '__name__', type(inner).__name__)} has no `label_smoothing` to set"
    return "the loss is a function (model, batch); labels of `nn.CrossEntropyLoss`, given as the loss, can be smoothed"


def smoothed(criterion: Any, smoothing: float) -> Any:
    """Return a criterion with that share of each label spread; the given one stays, and class weights are shared."""
    if reason := why_no_smoothing(criterion):
        raise ValueError(f"labels cannot be smoothed because {reason}")
    if isinstance(criterion, nn.Module):
        twin: Any = copy.copy(criterion)  # shallow: weights that are trained, or moved, are so in both
        twin.label_smoothing = smoothing
        return twin
    return functools.partial(criterion, label_smoothing=smoothing)


def decay_at(update: int, decay: float) -> float:
    """Return the share of the average that an update, counted from 0, leaves."""
    return min(decay, (1 + update) / (10 + update))


class WeightAverage(StepHook):
    """Averages a module's weights after each applied update.

    An update that an overflow skipped leaves the average as it is, without waiting for the device; for the rise of
    the decay it counts, as it does for learning-rate schedules. Weights in half precision are averaged in float32.
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
        values = [_widened(value) for value in self._values()]
        if found_inf is not None and not found_inf.is_cpu:
            differences = torch._foreach_sub(values, self._averages)
            torch._foreach_mul_(differences, share * (found_inf == 0))
            torch._foreach_add_(self._averages, differences)
        elif found_inf is None or not found_inf.item():
            torch._foreach_lerp_(self._averages, values, share)
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
        """Return the updates so far, and the averages in the order of parameters, then running statistics."""
        return {"updates": self.updates, "averages": [average.clone() for average in self._averages]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken."""
        self.updates = state["updates"]
        averages, values = state["averages"], self._values()
        # Earlier checkpoints hold averages of all floating-point buffers, in the same order.
        formerly = [*self.module.parameters(), *(b for b in self.module.buffers() if b.is_floating_point())]
        if len(averages) == len(formerly):
            wanted = set(values)
            averages = [average for average, value in zip(averages, formerly, strict=True) if value in wanted]
        if len(averages) not in (0, len(values)):
            raise ValueError(f"an average of {len(averages)} tensors does not belong to {len(values)} weights")
        pairs = zip(averages, values, strict=False)
        self._averages = [average.to(value.device, copy=True) for average, value in pairs]

    def _values(self) -> list[Tensor]:
        numbers = (one for one in self.module.parameters() if one.is_floating_point() or one.is_complex())
        return [*numbers, *running_statistics(self.module)]


class RegularizationMethod(Method):
    """Smooths labels, averages weights, or both."""

    needs_shapes = False  # an average begins at the first update

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._average: WeightAverage | None = None

    @staticmethod
    def reasons(
        network: nn.Module, criterion: Any, example_inputs: Any, config: BoostConfig | None
    ) -> Mapping[str, str]:
        """Return why labels cannot be smoothed."""
        return {"no_smoothing": why_no_smoothing(criterion)}

    def criterion(self, criterion: Any) -> Any:
        """Return the criterion with smoothed labels; one that has no smoothing as it is."""
        smoothing = self.config.part(RegularizationSection).label_smoothing
        return criterion if smoothing == 0 or why_no_smoothing(criterion) else smoothed(criterion, smoothing)

    def step_hook(self, model: nn.Module, optimizer: Optimizer) -> StepHook | None:
        """Return what averages the weights."""
        section = self.config.part(RegularizationSection)
        self._average = None if section.weight_average == "none" else WeightAverage(model, section.decay)
        return self._average

    def evaluating(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """Evaluate with the average."""
        return contextlib.nullcontext() if self._average is None else self._average.in_place()


def _widened(value: Tensor) -> Tensor:
    return value.detach().float() if value.dtype in _HALF else value.detach()


@torch.no_grad()
def _assign(values: list[Tensor], wanted: list[Tensor]) -> None:
    for value, one in zip(values, wanted, strict=True):
        value.copy_(one)
