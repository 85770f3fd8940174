"""Forward and backward pass of a micro-batch as one CUDA graph.

Small networks wait for the host, which launches their kernels one by one; a graph's are launched at once. A pass of a
kind (shapes, trained parameters, loss scale) is done twice as usual, the second time where it will be captured, and is
then captured and replayed. What the host decides during the capture is fixed in the graph. So a pass is left to the
caller where it is found to depend on the host: where the host waits for the device, draws random numbers, changes what
the model or the criterion holds, or where hooks act.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core import graph_capture
from workbench.core.batch import entries_of, fields_of, mapped, tensors_of
from workbench.core.text import first_line
from workbench.core.torch_internals import has_gradient_hooks, version_of
from workbench.core.warning import warn
from workbench.training.host_state import PLAIN, HostState

_MOST_KINDS = 16
PASSES_BEFORE = 2
"""Passes of a kind that are done before it is captured: one as usual, one where it will be captured."""
_MOST_SHAPES_LEFT = 4  # for which the caller's model is compiled
_MOST_HOOKED = 8  # passes in turn that are no captured kind's


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
        why_not: Why passes are left to the caller; empty while they are not.
    """

    def __init__(self, model: nn.Module, device: torch.device, why_not: str = "") -> None:
        self.model, self._device, self.why_not = model, device, why_not
        self._shapes_left: set[Hashable] = set()  # of batches whose passes were left to the caller
        self.forget()

    def forget(self) -> None:
        """Drop all graphs; passes are captured again."""
        self._capture: graph_capture.CudaCapture | None = None  # once a pass is rehearsed
        self._kinds: dict[Hashable, PassGraph | int] = {}  # until it is captured, the passes done
        self._state: HostState | None = None
        self._parameters: list[nn.Parameter] = []
        self._n_held = self._n_hooked = 0

    @property
    def has_graphs(self) -> bool:
        """Whether passes have been captured."""
        return any(isinstance(known, PassGraph) for known in self._kinds.values())

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes a copy, which captures its own passes."""
        return PassGraphs, (self.model, self._device, self.why_not)

    def run(
        self,
        work: Callable[[Any], Tensor],
        batch: Any,
        parameters: Callable[[], Iterable[nn.Parameter]],
        settings: Hashable,
        *,
        n_held: int,
        alone: bool,
        criterion: Any = None,
    ) -> Tensor | None:
        """Do the pass of a batch, from its graph where there is one; return the detached loss.

        Args:
            work: Does the pass of a batch with `model`, and returns the detached loss.
            batch: On the device.
            parameters: Gives all that may get a gradient.
            settings: What else decides about the kind of a pass.
            n_held: How many parameters the optimizer holds.
            alone: Whether no other pass adds to the same update.
            criterion: What judges the model's output, if it is known.

        Returns:
            The loss; None where nothing was done and the pass is the caller's.
        """
        shape = self._shape_of(batch)
        if shape is None:
            return None
        if self.why_not:
            self._shapes_left.add(shape)  # the caller's model is compiled for each
            return work(batch) if len(self._shapes_left) > _MOST_SHAPES_LEFT else None
        if self._state is None or n_held != self._n_held or not self._state.is_current():
            self.forget()
            self._state, self._n_held = HostState(self.model, criterion), n_held
            self._parameters = list(dict.fromkeys([*parameters(), *_parameters_of(criterion)]))
        own = tuple((one.data_ptr(), one.requires_grad) for one in self._parameters)
        kind = (settings, shape, own, self._state.kind())
        try:
            known = self._known(kind)
        except TypeError:  # something of the caller's that cannot be looked up
            return None
        if known is None:
            return work(batch)
        if self._state.is_hooked() or any(map(has_gradient_hooks, self._parameters)):
            return self._hooked(work, batch, known)
        if known == PASSES_BEFORE:
            try:
                known = self._kinds[kind] = self._recorded(work, batch)
            except RuntimeError as error:
                self._give_up(f"it could not be captured ({first_line(error)})")
                return None
        if isinstance(known, PassGraph):
            return known(batch, alone=alone)
        loss = self._rehearsed(work, batch, self._state) if known + 1 == PASSES_BEFORE else work(batch)
        if kind in self._kinds:
            self._kinds[kind] = known + 1
        return loss

    def _known(self, kind: Hashable) -> PassGraph | int | None:
        """Return what is known of a kind; None where there is no room for another."""
        if kind not in self._kinds and len(self._kinds) == _MOST_KINDS:
            unused = next((one for one, known in self._kinds.items() if not isinstance(known, PassGraph)), None)
            if unused is None:
                return None
            del self._kinds[unused]
        return self._kinds.setdefault(kind, 0)

    def _hooked(self, work: Callable[[Any], Tensor], batch: Any, known: PassGraph | int) -> Tensor | None:
        """Do a pass with hooks, which act in Python; THOR has them on some steps alone."""
        self._n_hooked = 0 if isinstance(known, PassGraph) else self._n_hooked + 1
        if self._n_hooked > _MOST_HOOKED:
            self._give_up("hooks of the model act in Python, which a replay leaves out")
            return None
        return work(batch)

    def _rehearsed(self, work: Callable[[Any], Tensor], batch: Any, state: HostState) -> Tensor:
        """Do a pass as the capture will, and look whether it may be captured."""
        if self._capture is None:
            self._capture = graph_capture.CudaCapture(self._device)
        before, versions = state.snapshot(), [version_of(tensor) for tensor in tensors_of(batch)]
        loss, waited = self._capture.rehearse(lambda: work(batch))
        after = state.snapshot()
        if waited:
            self._give_up("the host waits for the device in it")
        elif before[-1] != after[-1]:
            self._give_up("it draws random numbers on the host, which would stay the same")
        elif before != after:
            self._give_up("the model or the criterion changes on the host what it holds, which a replay leaves out")
        elif versions != [version_of(tensor) for tensor in tensors_of(batch)]:
            self._give_up("it changes the batch")
        return loss

    def _recorded(self, work: Callable[[Any], Tensor], batch: Any) -> PassGraph:
        assert self._capture is not None
        inputs = mapped(batch, torch.clone)
        before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        try:
            loss, replay = self._capture.record(lambda: work(inputs))
            gradients = [(one, one.grad) for one in self._parameters if one.grad is not None]
        finally:
            for parameter, gradient in zip(self._parameters, before, strict=True):
                parameter.grad = gradient
        if any(gradient.layout != torch.strided for _, gradient in gradients):
            raise RuntimeError("it has sparse gradients")
        return PassGraph(inputs, loss, gradients, replay)

    def _give_up(self, why: str) -> None:
        self.forget()
        self.why_not = why
        warn(f"the CUDA graph is that of the model alone, not of the whole pass: {why}")

    def _shape_of(self, part: Any) -> Hashable:
        """Return what of a batch a graph depends on; None where it cannot take other values."""
        if isinstance(part, Tensor):
            is_dense = part.layout == torch.strided and not part.is_nested and not part.requires_grad
            there = is_dense and part.device == self._device
            return (part.shape, part.stride(), part.dtype) if there else None
        if isinstance(part, PLAIN):
            return (type(part), part)  # a captured value is part of the kind
        entries = entries_of(part)
        if entries is None or _holds_more(part):
            return None
        shapes = [(key, self._shape_of(entry)) for key, entry in entries.items()]
        return None if any(shape is None for _, shape in shapes) else (type(part), tuple(shapes))


def _holds_more(container: Any) -> bool:
    """Return whether a container holds what is none of its entries, such as a field that it computes itself."""
    fields = fields_of(container)
    if fields is not None:
        return len(dataclasses.fields(container)) > len(fields) or len(getattr(container, "__dict__", ())) > len(fields)
    return bool(getattr(container, "__dict__", None)) and not hasattr(container, "data")


def _parameters_of(criterion: Any) -> Iterable[nn.Parameter]:
    return criterion.parameters() if isinstance(criterion, nn.Module) else ()
