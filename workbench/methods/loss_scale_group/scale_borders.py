"""Borders around the modules of a scale group, for models that carry no marks, and what must be known to draw them.

Inside the modules of group k gradients are multiplied by ``s_k``, outside by 1: a hook on each module passes its
outputs through one border and its inputs through another (`workbench.methods.loss_scale_group.method.scale_gradient`).
Between modules gradients are float32 and may be of any size; only inside do they have to fit float16.

A border needs a module that is called, and parameters that are used nowhere else. The autograd graph knows both:
`graph_regions` follows it and says within which borders every parameter is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from workbench.core.batch import mapped
from workbench.methods.loss_scale_group.method import GroupLossScaleManager, scale_gradient

Change = Callable[[Tensor], Tensor]
NOT_COMPILED = (
    "group loss scales do not work with torch.compile, which hides where gradients pass from one group to the next; "
    "train without it, or with one loss scale (`boost.loss_scale_group` off)"
)

# What autocast computes in half precision (torch 2.13, "CUDA/CPU Ops that autocast to float16"), by the name of its
# node in the graph.
_HALF_PRECISION_NODES = (
    *("AddmmBackward", "MmBackward", "BmmBackward", "BaddbmmBackward", "AddbmmBackward", "MvBackward", "AddmvBackward"),
    *("ConvolutionBackward", "ScaledDotProduct", "LinearBackward", "MkldnnLinear", "MkldnnRnn", "CudnnRnn"),
    *("MiopenRnn", "ThnnFused", "AddrBackward", "MatmulBackward", "PreluKernelBackward"),
)


class GraphRegions(NamedTuple):
    """What a walk through an autograd graph found."""

    of_parameter: dict[Tensor, set[Any]]  # regions in which each parameter is used; None is outside of all
    multiplying: set[Any]  # regions with a node that autocast computes in half precision


def graph_regions(loss: Tensor, start: Any = None) -> GraphRegions:
    """Walk a graph from the loss, in region ``start``; RuntimeError when torch.compile has hidden part of it."""
    found: dict[Tensor, set[Any]] = {}
    multiplying: set[Any] = set()
    # A node with the regions one is in there, innermost last.
    waiting: list[tuple[Any, tuple[Any, ...]]] = [] if loss.grad_fn is None else [(loss.grad_fn, (start,))]
    seen = set(waiting)
    while waiting:
        node, stack = waiting.pop()
        border = getattr(node, "border", None)
        if border is not None:
            stack = _crossed(stack, *border)
        elif node.name().startswith("CompiledFunction"):
            raise RuntimeError(NOT_COMPILED)
        elif node.name().startswith(_HALF_PRECISION_NODES):
            multiplying.add(stack[-1])
        for source, _ in node.next_functions:
            if source is None:
                continue
            leaf = getattr(source, "variable", None)  # only AccumulateGrad has one
            if leaf is not None:
                found.setdefault(leaf, set()).add(stack[-1])
            elif (source, stack) not in seen:
                seen.add((source, stack))
                waiting.append((source, stack))
    return GraphRegions(found, multiplying)


def _crossed(stack: tuple[Any, ...], left: Any, entered: Any) -> tuple[Any, ...]:
    """Return the regions behind a border that leaves one (None: only enters) and enters one (None: only leaves)."""
    if left is None:
        return (*stack, entered)
    if entered is not None:
        return (*stack[:-1], entered)
    return stack[:-1] if stack[-1] == left else stack


def maximal_units(model: nn.Module, group_of: Mapping[Tensor, int]) -> dict[str, int]:
    """Return the largest modules whose parameters all belong to one group: name -> group."""
    units: dict[str, int] = {}

    def visit(name: str, module: nn.Module) -> None:
        groups = {group_of.get(parameter, -1) for parameter in module.parameters()}
        if len(groups) == 1 and is_called(module):
            group = groups.pop()
            if group >= 0:
                units[name] = group
        elif groups:
            for child_name, child in module.named_children():
                visit(f"{name}.{child_name}" if name else child_name, child)

    visit("", model)
    return units


class ScaleBorders:
    """Borders around modules, none in another, until `remove`; a ``deepcopy`` of the model has borders of its own."""

    def __init__(
        self, model: nn.Module, units: Mapping[str, int], manager: GroupLossScaleManager, device: torch.device | None
    ) -> None:
        self.units = dict(units)
        self.manager = manager
        self._layers = [group + 1 for group in units.values()]
        # One entry per unit and one for what lies outside.
        self.received = torch.zeros(len(units) + 1, device=device)
        self.left = torch.zeros(len(units) + 1, device=device)
        self._handles: list[RemovableHandle] = []
        for index, name in enumerate(units):
            entering, leaving = partial(self.entering, index), partial(self.leaving, index)
            self._handles += watched(model.get_submodule(name), entering, leaving)

    def entering(self, index: int, x: Tensor) -> Tensor:
        """Pass an input of a unit: behind this border, going backward, the scale is 1 again."""
        left, outside = self.left[index : index + 1], self.received[-1:]
        scales = self.manager.dynamic_loss_scale
        return scale_gradient(x, scales, 0, self._layers[index], outside, left, border=(index, None))

    def leaving(self, index: int, x: Tensor) -> Tensor:
        """Pass an output of a unit: from this border on, going backward, the scale is the group's."""
        received, outside = self.received[index : index + 1], self.left[-1:]
        scales = self.manager.dynamic_loss_scale
        return scale_gradient(x, scales, self._layers[index], 0, received, outside, border=(None, index))

    def remove(self) -> None:
        """Take the borders away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def zero_(self) -> None:
        """Forget which gradients were not finite."""
        self.received.zero_()
        self.left.zero_()


def is_called(module: nn.Module) -> bool:
    """Return whether a module has a forward pass; a ModuleList has none, so hooks on it would never run."""
    return type(module).forward is not nn.Module.forward


def watched(module: nn.Module, entering: Change, leaving: Change) -> list[RemovableHandle]:
    """Pass what enters and leaves a module through functions; hooks are partials, which a copy of the module copies."""
    return [
        module.register_forward_pre_hook(partial(_enter, entering), with_kwargs=True),
        module.register_forward_hook(partial(_leave, leaving)),
    ]


def _enter(change: Change, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return mapped(args, partial(_changed, change)), mapped(kwargs, partial(_changed, change))


def _leave(change: Change, module: nn.Module, args: Any, output: Any) -> Any:
    return mapped(output, partial(_changed, change))


def _changed(change: Change, tensor: Tensor) -> Tensor:
    return change(tensor) if tensor.is_floating_point() and tensor.requires_grad else tensor
