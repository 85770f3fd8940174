"""Forward and backward pass of a micro-batch as one CUDA graph.

Small networks wait for the host, which launches their kernels one by one; a graph's are launched at once. A pass of a
kind (shapes, trained parameters, loss scale) is done twice as usual, the second time where it will be captured, and is
then captured and replayed. What the host decides while it is captured stays decided. So a pass is left to the caller
where the host has a say that shows: where it waits for the device, draws random numbers itself, counts in an attribute
of the model or the criterion, or where hooks act.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.core import graph_capture
from workbench.core.batch import entries_of, mapped, tensors_of
from workbench.core.own_generators import cpu_generator
from workbench.core.text import first_line
from workbench.core.torch_internals import has_gradient_hooks, pass_hooks

_MOST_KINDS = 16
PASSES_BEFORE = 2
"""Passes of a kind that are done before it is captured: one as usual, one where it will be captured."""
_PLAIN = (type(None), bool, int, float, str)


@dataclass(frozen=True, slots=True)
class PassGraph:
    """A captured pass, and the memory that it reads and writes."""

    inputs: Any
    loss: Tensor
    gradients: Sequence[tuple[nn.Parameter, Tensor]]
    replay: Callable[[], None]

    def __call__(self, batch: Any, *, alone: bool) -> Tensor:
        """Do the pass with a batch; return the loss.

        Gradients are added to what ``.grad`` holds; ``alone`` says that they are the only ones of their update, which
        may be the graph's memory then.
        """
        with torch.no_grad():
            for own, given in zip(tensors_of(self.inputs), tensors_of(batch), strict=True):
                own.copy_(given, non_blocking=True)
            self.replay()
            sums, added = [], []
            for parameter, gradient in self.gradients:
                if parameter.grad is None:
                    parameter.grad = gradient if alone else gradient.clone()
                elif parameter.grad is not gradient:
                    sums.append(parameter.grad)
                    added.append(gradient)
            if sums:
                torch._foreach_add_(sums, added)
            return self.loss.clone()


class PassGraphs:
    """The captured passes of a model, by their kind.

    Args:
        model: The module to call in a pass.
        device: Where it trains.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model, self._device = model, device
        self._capture: graph_capture.Capture | None = None  # once a pass is rehearsed
        self._kinds: dict[Hashable, PassGraph | int] = {}  # until it is captured, the passes done
        self._hooks: list[Mapping[int, Any]] | None = None  # registers of all modules
        #: Why passes are left to the caller; empty while they are not.
        self.why_not = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs, which captures its own passes."""
        return {**self.__dict__, "_capture": None, "_kinds": {}, "_hooks": None}

    def run(
        self,
        work: Callable[[Any], Tensor],
        batch: Any,
        parameters: Sequence[nn.Parameter],
        settings: Hashable,
        *,
        alone: bool,
        criterion: Any = None,
    ) -> Tensor | None:
        """Do the pass of a batch, from its graph where there is one; return the detached loss.

        Args:
            work: Does the pass of a batch with `model`, and returns the detached loss.
            batch: On the device.
            parameters: All that may get a gradient.
            settings: What else decides about the kind of a pass.
            alone: Whether no other pass adds to the same update.
            criterion: What judges the model's output, if it is known.

        Returns:
            The loss; None where nothing was done and the pass is the caller's.
        """
        shape = None if self.why_not else self._shape_of(batch)
        if shape is None:
            return None
        kind = (settings, shape, tuple((one.data_ptr(), one.requires_grad) for one in parameters))
        known = self._kinds.setdefault(kind, 0) if len(self._kinds) < _MOST_KINDS else self._kinds.get(kind)
        if known is None:
            return None
        if self._hooks is None:
            self._hooks = [register for module in self.model.modules() for register in pass_hooks(module)]
        if (known == PASSES_BEFORE or isinstance(known, PassGraph)) and any(self._hooks):
            return work(batch)  # this time: THOR has hooks on some steps
        if known == PASSES_BEFORE:
            try:
                known = self._kinds[kind] = self._recorded(work, batch, parameters)
            except RuntimeError as error:
                self._give_up(f"it could not be captured ({first_line(error)})")
                return None
        if isinstance(known, PassGraph):
            return known(batch, alone=alone)
        self._kinds[kind] = known + 1
        return self._rehearsed(work, batch, criterion) if known + 1 == PASSES_BEFORE else work(batch)

    def _rehearsed(self, work: Callable[[Any], Tensor], batch: Any, criterion: Any) -> Tensor | None:
        """Do a pass as the capture will, and look whether it may be captured."""
        modules = list(_modules_of(self.model, criterion))
        if any(self._hooks or ()) or any(map(has_gradient_hooks, self.model.parameters())):
            self._give_up("hooks of the model act in Python, which a replay leaves out")
            return None
        if self._capture is None:
            self._capture = graph_capture.CudaCapture(self._device)
        numbers, values = _host_random_numbers(), _host_values(modules)
        loss, waited = self._capture.rehearse(lambda: work(batch))
        if waited:
            self._give_up("the host waits for the device in it")
        elif numbers != _host_random_numbers():
            self._give_up("it draws random numbers on the host, which would stay the same")
        elif values != _host_values(modules):
            self._give_up("the model or the criterion counts on the host, which would stay the same")
        return loss

    def _recorded(self, work: Callable[[Any], Tensor], batch: Any, parameters: Sequence[nn.Parameter]) -> PassGraph:
        assert self._capture is not None
        inputs = mapped(batch, torch.clone)
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        try:
            loss, replay = self._capture.record(lambda: work(inputs))
            gradients = [(one, one.grad) for one in parameters if one.grad is not None]
        finally:
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient
        if any(gradient.layout != torch.strided for _, gradient in gradients):
            raise RuntimeError("it has sparse gradients")
        return PassGraph(inputs, loss, gradients, replay)

    def _give_up(self, why: str) -> None:
        self.why_not, self._capture = why, None
        self._kinds.clear()
        warnings.warn(f"the CUDA graph is that of the model alone, not of the whole pass: {why}", stacklevel=6)

    def _shape_of(self, part: Any) -> Hashable:
        """Return what of a batch a graph depends on; None where it cannot take other values."""
        if isinstance(part, Tensor):
            is_dense = part.layout == torch.strided and not part.is_nested and not part.requires_grad
            there = is_dense and part.device == self._device
            return (part.shape, part.stride(), part.dtype) if there else None
        if isinstance(part, _PLAIN):
            return (type(part), part)  # a captured value is part of the kind
        entries = entries_of(part)
        if entries is None:
            return None
        shapes = [(key, self._shape_of(entry)) for key, entry in entries.items()]
        return None if any(shape is None for _, shape in shapes) else (type(part), tuple(shapes))


def _modules_of(*parts: Any) -> Iterable[nn.Module]:
    return (module for part in parts if isinstance(part, nn.Module) for module in part.modules())


def _host_values(modules: Iterable[nn.Module]) -> list[dict[str, Any]]:
    return [{name: value for name, value in vars(one).items() if isinstance(value, _PLAIN)} for one in modules]


def _host_random_numbers() -> Hashable:
    """Return the state of the generators that a pass may draw from on the host."""
    _, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  # models of the user's draw from it
    return random.getstate(), np.asarray(keys).tobytes(), tuple(rest), bytes(cpu_generator().get_state().numpy())
