"""What a pass takes from the host: modes, numbers and tensors that modules hold beside their parameters."""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Mapping
from itertools import chain
from operator import is_, itemgetter
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.core.own_generators import cpu_generator
from workbench.core.torch_internals import global_pass_hooks, pass_hooks, registers_of

PLAIN = (type(None), bool, int, float, complex, str, bytes)
"""Values that are equal where they are the same."""

_MOST_SEEN, _DEEPEST, _LONGEST = 20_000, 4, 1_000
_OPAQUE = (nn.Module, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


class HostState:
    """The modules of a model, and of its criterion if it is one: quick to be asked before every pass."""

    def __init__(self, model: nn.Module, criterion: Any = None) -> None:
        roots = [root for root in (model, criterion) if isinstance(root, nn.Module)]
        self._criterion = None if isinstance(criterion, nn.Module) else criterion
        self._modules = [module for root in roots for module in root.modules()]
        children, parameters, self._buffers = zip(*map(registers_of, self._modules), strict=True)
        self._structure = [*children, *parameters]
        self._held = self._parts()
        own = (register for module in self._modules for register in pass_hooks(module))
        self._hooks = [*own, *global_pass_hooks()]
        self._plain = self._plain_attributes()

    def is_current(self) -> bool:
        """Return whether the modules still have the same children and parameters."""
        parts = self._parts()
        return len(parts) == len(self._held) and all(map(is_, parts, self._held))

    def is_hooked(self) -> bool:
        """Return whether anything is hooked to the passes of a module."""
        return any(self._hooks)

    def kind(self) -> Hashable:
        """Return what may be set between two passes: modes and numbers of modules, and where their buffers are."""
        try:
            values = tuple([read(held) for held, read in self._plain])
        except KeyError:  # one has gone
            self._plain = self._plain_attributes()
            values = tuple([read(held) for held, read in self._plain])
        buffers = [buffer for register in self._buffers for buffer in register.values() if buffer is not None]
        return values, tuple([buffer.data_ptr() for buffer in buffers])

    def snapshot(self) -> Any:
        """Return all that a pass could change without a kernel, random numbers included, to be compared."""
        seen = [_MOST_SEEN]
        modules = [_traced(vars(module), seen) for module in self._modules]
        return [modules, _traced(self._criterion, seen), _random_numbers()]

    def _plain_attributes(self) -> list[tuple[Mapping[str, Any], itemgetter[Any]]]:
        """Return the attributes of each module, and what reads its plain ones."""
        held = [vars(module) for module in self._modules]
        named = [(one, [name for name, value in one.items() if isinstance(value, PLAIN)]) for one in held]
        return [(one, itemgetter(*names)) for one, names in named if names]

    def _parts(self) -> list[Any]:
        return list(chain.from_iterable(register.values() for register in self._structure))


class _Same:
    """Equal to what holds the very same object, which stays alive meanwhile."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.held is other.held

    __hash__ = None  # type: ignore[assignment]  # compared, never hashed


def _traced(value: Any, seen: list[int], depth: int = 0) -> Any:
    """Return what is equal for two values only if nothing was changed or put in another's place."""
    seen[0] -= 1
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().cpu().numpy())
    if isinstance(value, Tensor) or depth == _DEEPEST or seen[0] < 0:
        return _Same(value)
    if isinstance(value, Mapping):
        entries = value.items() if len(value) <= _LONGEST else ()
        return len(value), [(_Same(key), _traced(one, seen, depth + 1)) for key, one in entries]
    if isinstance(value, Collection):
        return len(value), [_traced(one, seen, depth + 1) for one in value] if len(value) <= _LONGEST else []
    if isinstance(value, _OPAQUE) or not hasattr(value, "__dict__"):
        return _Same(value)
    return _Same(value), _traced(vars(value), seen, depth + 1)


def _random_numbers() -> Any:
    """Return the state of the generators that a pass may draw from on the host."""
    _, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  # models of the user's draw from it
    return random.getstate(), np.asarray(keys).tobytes(), tuple(rest), bytes(cpu_generator().get_state().numpy())
