"""What the first window of a training shows of its gradients: how large they are, and which parts belong together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from workbench.loss_scale import ExponentTable
from workbench.loss_scale.gradient_statistics import EXPONENT_BINS, exponent_counts
from workbench.methods.loss_scale_group.method import first_derivative
from workbench.methods.loss_scale_group.scale_borders import graph_regions, is_called, watched

_NONFINITE_BIN = 255
_LOWEST_EXPONENT = -127  # of the first bin of `exponent_counts`


class GradientProbe:
    """Counts the binary exponents of the gradients that enter and leave each module, and of its parameters'."""

    def __init__(self, model: nn.Module, device: torch.device | None) -> None:
        self.model = model
        modules = {n: m for n, m in model.named_modules() if any(True for _ in m.parameters())}
        self.names = list(modules)
        self.owner: dict[Tensor, int] = {
            parameter: index
            for index, module in enumerate(modules.values())
            for parameter in module.parameters(recurse=False)
        }
        #: Counts of what entered, what left and the parameters' own gradients, int64.
        self.counts = torch.zeros(len(modules), 3, EXPONENT_BINS, dtype=torch.int64, device=device)
        #: Modules that multiply matrices themselves, outside of the modules in them.
        self.multiplies: set[str] = set()
        self.regions: dict[Tensor, set[Any]] = {}
        self._handles: list[RemovableHandle] = []
        for index, module in enumerate(modules.values()):
            if is_called(module):
                self._handles += watched(module, partial(self.entering, index), partial(self.leaving, index))

    def entering(self, index: int, x: Tensor) -> Tensor:
        """Return a module's input unchanged; its gradient is counted as leaving the module."""
        return _counted(x, self.counts[index, 1], (index, None))

    def leaving(self, index: int, x: Tensor) -> Tensor:
        """Return a module's output unchanged; its gradient is counted as entering the module."""
        return _counted(x, self.counts[index, 0], (None, index))

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
            if parameter.grad is not None and parameter in self.owner:
                of_module.setdefault(self.owner[parameter], []).append(parameter.grad)
        for index, gradients in of_module.items():
            self.counts[index, 2] += exponent_counts(gradients)

    def agree_(self, agree: Callable[[Tensor], None]) -> None:
        """Take over what any rank has seen, by a function that takes the largest value over ranks, in place."""
        counts = self.counts.to(torch.float32)
        multiplies = torch.tensor([float(name in self.multiplies) for name in self.names], device=counts.device)
        agree(counts)
        agree(multiplies)
        self.counts.copy_(counts)
        self.multiplies = {name for name, flag in zip(self.names, multiplies.tolist(), strict=True) if flag}

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen: ``counts``, what ``multiplies``, and the regions that each parameter is ``used_in``."""
        named = self.model.named_parameters()
        used_in = {name: list(self.regions[one]) for name, one in named if one in self.regions}
        return {"counts": self.counts.clone(), "multiplies": list(self.multiplies), "used_in": used_in}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken; earlier checkpoints hold the counts alone."""
        self.counts.copy_(state["counts"])
        self.multiplies = set(state.get("multiplies", ()))
        parameters = dict(self.model.named_parameters())
        self.regions = {parameters[name]: set(regions) for name, regions in state.get("used_in", {}).items()}

    def exponents(self, parts: Sequence[Sequence[str]]) -> ExponentTable:
        """Return the exponents of the gradients in each part, a list of units."""
        counts = self.counts.double().cpu().numpy()[:, :, :_NONFINITE_BIN]
        rows = []
        for part in parts:
            inside = [i for i, name in enumerate(self.names) if any(is_in(name, unit) for unit in part)]
            # Each source counts alike, or the many elements of an activation would outvote a weight.
            sources = counts[inside].reshape(-1, _NONFINITE_BIN)
            totals = sources.sum(axis=1)
            rows.append((sources[totals > 0] / totals[totals > 0, None]).sum(axis=0))
        return ExponentTable(_LOWEST_EXPONENT, np.array(rows))

    def units(self) -> list[str]:
        """Return the smallest modules that may have a scale; one that multiplies matrices itself is not divided."""
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


def joined_units(
    model: nn.Module, units: Sequence[str], regions: Mapping[Tensor, Set[Any]], names: Sequence[str]
) -> list[list[str]]:
    """Return the parts of a model that may have loss scales of their own: lists of units that share a parameter.

    A weight that is used outside of every unit has the scale 1 there, so its unit cannot have another and is left out.
    ``regions`` has for each parameter the indices (into ``names``) of the innermost modules that use it, and None where
    it is used outside of all modules.
    """
    parent = {unit: unit for unit in units}

    def root(unit: str) -> str:
        while parent[unit] != unit:
            unit = parent[unit]
        return unit

    holder: dict[Tensor, str] = {}
    for unit in units:
        for parameter in model.get_submodule(unit).parameters():
            if parameter in holder:
                parent[root(unit)] = root(holder[parameter])
            holder[parameter] = unit
    outside: list[str] = []
    for key, used in regions.items():
        if key not in holder:
            continue
        for region in used:
            user = next((unit for unit in units if region is not None and is_in(names[region], unit)), None)
            if user is None:
                outside.append(holder[key])
            else:
                parent[root(user)] = root(holder[key])
    barred = {root(unit) for unit in outside}
    parts: dict[str, list[str]] = {}
    for unit in units:
        if root(unit) not in barred:
            parts.setdefault(root(unit), []).append(unit)
    return list(parts.values())


def is_in(name: str, unit: str) -> bool:
    """Return whether a module is another one or lies in it."""
    return not unit or name == unit or name.startswith(f"{unit}.")


def _counted(x: Tensor, counts: Tensor, border: tuple[Any, Any]) -> Tensor:
    counted: Tensor = _CountExponents.apply(x, counts, border)  # type: ignore[no-untyped-call]
    return counted


class _CountExponents(torch.autograd.Function):
    """Identity that counts the exponents of the gradient that comes by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Tensor, border: tuple[Any, Any]) -> Tensor:
        ctx.counts, ctx.border = counts, border
        return x.detach()  # not a view in autograd's books: an activation that works in place may follow

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            ctx.counts.add_(exponent_counts([gradient]))
        return first_derivative(gradient.detach(), gradient), None, None
