"""Borders around the modules of a scale group, for models that carry no marks, and what must be known to draw them.

Inside the modules of group k gradients are multiplied by ``s_k``, outside by 1: a hook on each module passes its
outputs through one border and its inputs through another (`workbench.methods.loss_scale_group.method.scale_gradient`).
Between modules gradients are float32 and may be of any size; only inside do they have to fit float16.

A border needs a module that is called, and parameters that are used nowhere else. The autograd graph knows both:
`parameter_regions` follows it and says within which borders every parameter is used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.hooks import RemovableHandle

from workbench.loss_scale.gradient_statistics import EXPONENT_BINS, exponent_counts
from workbench.methods.loss_scale_group.method import GroupLossScaleManager, scale_gradient

__all__ = [
    "NOT_COMPILED",
    "GradientProbe",
    "GraphRegions",
    "ScaleBorders",
    "graph_regions",
    "is_called",
    "maximal_units",
]

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


class GraphRegions:
    """What a walk through an autograd graph found.

    Args:
        of_parameter: Regions in which each parameter is used, by its id; None is outside of all.
        multiplying: Regions with a node that autocast computes in half precision.
    """

    def __init__(self, of_parameter: dict[int, set[Any]], multiplying: set[Any]) -> None:
        self.of_parameter = of_parameter
        self.multiplying = multiplying


def graph_regions(loss: Tensor, start: Any = None) -> GraphRegions:
    """Walk a graph from the loss and note between which borders its parameters and matrix products lie.

    Takes milliseconds for thousands of nodes; a thing to do once per kind of step.

    Args:
        loss: Before its backward pass.
        start: Region that the loss itself lies in.

    Raises:
        RuntimeError: When torch.compile has hidden part of the graph.
    """
    found: dict[int, set[Any]] = {}
    multiplying: set[Any] = set()
    if loss.grad_fn is None:
        return GraphRegions(found, multiplying)
    first = (loss.grad_fn, (start,))
    seen: set[tuple[Any, tuple[Any, ...]]] = {first}
    waiting: list[tuple[Any, tuple[Any, ...]]] = [first]
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
                found.setdefault(id(leaf), set()).add(stack[-1])
            elif (source, stack) not in seen:
                seen.add((source, stack))
                waiting.append((source, stack))
    return GraphRegions(found, multiplying)


def is_called(module: nn.Module) -> bool:
    """Return whether a module has a forward pass; a ModuleList has none, so hooks on it would never run."""
    return type(module).forward is not nn.Module.forward


def maximal_units(model: nn.Module, group_of: Mapping[int, int]) -> dict[str, int]:
    """Return the largest modules whose parameters all belong to one group.

    Args:
        model: The model.
        group_of: Group per parameter, by its id; parameters left out have the scale 1.

    Returns:
        Module name -> group, in the order of registration. What is not in there has the scale 1.
    """
    units: dict[str, int] = {}

    def visit(name: str, module: nn.Module) -> None:
        groups = {group_of.get(id(parameter), -1) for parameter in module.parameters()}
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
    """Borders around modules; they are there from construction until `remove`.

    A copy of the model made with ``deepcopy`` has borders of its own; removing them restores the module exactly.

    Args:
        model: The model.
        units: Module name -> group, from 0. No unit may contain another.
        manager: Holds the scales.
        device: Where the gradients are.
    """

    def __init__(
        self, model: nn.Module, units: Mapping[str, int], manager: GroupLossScaleManager, device: torch.device | None
    ) -> None:
        self.units = dict(units)
        self.manager = manager
        # One entry per unit and one for what lies outside.
        self.received = torch.zeros(len(units) + 1, device=device)
        self.left = torch.zeros(len(units) + 1, device=device)
        self._handles: list[RemovableHandle] = []
        for index, (name, group) in enumerate(self.units.items()):
            module = model.get_submodule(name)
            self._handles.append(module.register_forward_pre_hook(_Enter(self, index, group + 1), with_kwargs=True))
            self._handles.append(module.register_forward_hook(_Leave(self, index, group + 1)))

    def remove(self) -> None:
        """Take the borders away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def zero_(self) -> None:
        """Forget which gradients were not finite."""
        self.received.zero_()
        self.left.zero_()


class GradientProbe:
    """Watch the gradients at every module during one window, to find out how they should be scaled.

    Counts the binary exponents of the gradients that enter and leave each module, and of its own parameters'.

    Args:
        model: The model.
        device: Where the gradients are.
    """

    def __init__(self, model: nn.Module, device: torch.device | None) -> None:
        self.model = model
        modules = {n: m for n, m in model.named_modules() if any(True for _ in m.parameters())}
        self.names = list(modules)
        self.owner = {
            id(parameter): index
            for index, module in enumerate(modules.values())
            for parameter in module.parameters(recurse=False)
        }
        #: Counts of what entered, what left and the parameters' own gradients, int64.
        self.counts = torch.zeros(len(modules), 3, EXPONENT_BINS, dtype=torch.int64, device=device)
        #: Per module whether it multiplies matrices itself, outside of the modules in it.
        self.multiplies: set[str] = set()
        self.regions: dict[int, set[Any]] = {}
        self._handles: list[RemovableHandle] = []
        for index, module in enumerate(modules.values()):
            if is_called(module):
                self._handles.append(module.register_forward_pre_hook(_ProbeEnter(self, index), with_kwargs=True))
                self._handles.append(module.register_forward_hook(_ProbeLeave(self, index)))

    def look_at_graph(self, loss: Tensor) -> None:
        """Note where parameters are used; before the backward pass."""
        found = graph_regions(loss)
        for key, regions in found.of_parameter.items():
            self.regions.setdefault(key, set()).update(regions)
        self.multiplies |= {self.names[index] for index in found.multiplying if index is not None}

    def add_parameters(self, parameters: Sequence[nn.Parameter]) -> None:
        """Count the gradients of a window's parameters."""
        of_module: dict[int, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is not None and id(parameter) in self.owner:
                of_module.setdefault(self.owner[id(parameter)], []).append(parameter.grad)
        for index, gradients in of_module.items():
            self.counts[index, 2] += exponent_counts(gradients)

    def units(self) -> list[str]:
        """Return the smallest modules that may have a scale of their own.

        A module that multiplies matrices itself is not divided: these products would have the scale 1.
        """
        found: list[str] = []

        def visit(name: str, module: nn.Module) -> None:
            children = [(n, c) for n, c in module.named_children() if any(True for _ in c.parameters())]
            if is_called(module) and (not children or name in self.multiplies):
                found.append(name)
            else:
                for child_name, child in children:
                    visit(f"{name}.{child_name}" if name else child_name, child)

        if any(True for _ in self.model.parameters()):
            visit("", self.model)
        return found

    def remove(self) -> None:
        """Take the probes away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a structure with every floating-point tensor that needs a gradient changed.

    Args:
        value: A tensor, or tuples, lists and dictionaries of them, nested; anything else is returned as it is.
        change: What to make of a tensor.
    """
    if isinstance(value, Tensor):
        return change(value) if value.is_floating_point() and value.requires_grad else value
    if isinstance(value, dict):
        items = {key: map_tensors(item, change) for key, item in value.items()}
        if all(items[key] is item for key, item in value.items()):
            return value
        changed = copy.copy(value)  # keeps what a subclass has besides
        for key, item in items.items():
            changed[key] = item
        return changed
    if isinstance(value, (list, tuple)):
        parts = [map_tensors(item, change) for item in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


class _Enter:
    """Hook before a unit: behind this border, going backward, the scale is 1 again."""

    def __init__(self, borders: ScaleBorders, index: int, layer: int) -> None:
        self.borders, self.index, self.layer = borders, index, layer

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        borders, scales = self.borders, self.borders.manager.dynamic_loss_scale
        left, outside = borders.left[self.index : self.index + 1], borders.received[-1:]

        def change(x: Tensor) -> Tensor:
            return scale_gradient(x, scales, 0, self.layer, outside, left, border=(self.index, None))

        return map_tensors(args, change), map_tensors(kwargs, change)


class _Leave:
    """Hook behind a unit: from this border on, going backward, the scale is the group's."""

    def __init__(self, borders: ScaleBorders, index: int, layer: int) -> None:
        self.borders, self.index, self.layer = borders, index, layer

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        borders, scales = self.borders, self.borders.manager.dynamic_loss_scale
        received, outside = borders.received[self.index : self.index + 1], borders.left[-1:]

        def change(x: Tensor) -> Tensor:
            return scale_gradient(x, scales, self.layer, 0, received, outside, border=(None, self.index))

        return map_tensors(output, change)


class _ProbeEnter:
    def __init__(self, probe: GradientProbe, index: int) -> None:
        self.probe, self.index = probe, index

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        counts = self.probe.counts[self.index, 1]

        def change(x: Tensor) -> Tensor:
            probed: Tensor = _CountExponents.apply(x, counts, (self.index, None))  # type: ignore[no-untyped-call]
            return probed

        return map_tensors(args, change), map_tensors(kwargs, change)


class _ProbeLeave:
    def __init__(self, probe: GradientProbe, index: int) -> None:
        self.probe, self.index = probe, index

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        counts = self.probe.counts[self.index, 0]

        def change(x: Tensor) -> Tensor:
            probed: Tensor = _CountExponents.apply(x, counts, (None, self.index))  # type: ignore[no-untyped-call]
            return probed

        return map_tensors(output, change)


class _CountExponents(torch.autograd.Function):
    """Identity that counts the exponents of the gradient that comes by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Tensor, border: tuple[Any, Any]) -> Tensor:
        ctx.counts, ctx.border = counts, border
        return x.detach()  # not a view in autograd's books: an activation that works in place may follow

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.counts.add_(exponent_counts([gradient]))
        return gradient, None, None


def _crossed(stack: tuple[Any, ...], left: Any, entered: Any) -> tuple[Any, ...]:
    """Return the regions one is in after a border, innermost last.

    Args:
        stack: Regions before it.
        left: Region that the border leaves; None where it only enters one.
        entered: Region that it enters; None where it returns to the one around.
    """
    if left is None:
        return (*stack, entered)
    if entered is not None:
        return (*stack[:-1], entered)
    return stack[:-1] if stack[-1] == left else stack
