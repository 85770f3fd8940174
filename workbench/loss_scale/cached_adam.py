"""The step of torch's fused Adam on lists that are kept from step to step.

``torch.optim.Adam(fused=True)`` gathers its lists in every step and counts up one tensor per parameter, which for many
small parameters takes several times as long as the kernel. Here lists are kept while every parameter's state still
holds the very tensors they hold, and the counts are elements of one tensor. Kernel, order of operations and state are
torch's: same bits, same ``state_dict``, and a call of ``optimizer.step()`` in between finds everything in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, is_, itemgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from workbench.core import devices
from workbench.core.step_optimizer import exact_flag
from workbench.core.torch_internals import (
    fused_adam_,
    fused_adamw_,
    has_step_hooks,
    is_wrapped_by_scheduler,
    mark_stepped,
)

_STATE = ("exp_avg", "exp_avg_sq", "step")
_DEVICE, _DTYPE, _LAYOUT = attrgetter("device"), attrgetter("dtype"), attrgetter("layout")


class _Lists:
    """Parameters of one device and dtype with their state, whose counts become elements of one tensor."""

    __slots__ = ("counts", "device", "dtype", "members", "parameters", "states")

    def __init__(self, parameters: list[Tensor], states: list[dict[str, Any]]) -> None:
        self.parameters = parameters
        self.states = states
        self.counts = torch.stack([state["step"].detach() for state in states])
        for state, count in zip(states, self.counts.unbind(), strict=True):
            state["step"] = count
        self.members = tuple([state[name] for state in states] for name in _STATE)
        self.device, self.dtype = parameters[0].device, parameters[0].dtype

    def hold(self, parameters: list[Tensor]) -> bool:
        """Return whether these are the parameters, and their state is what it was."""
        return _same(parameters, self.parameters) and all(
            _same(list(map(itemgetter(name), self.states)), member)
            for name, member in zip(_STATE, self.members, strict=True)
        )


class _Cache(NamedTuple):
    """The lists of every parameter group, by its number, and the state they were taken from."""

    state: dict[Tensor, dict[str, Any]]
    entries: list[dict[str, Any]]
    groups: dict[int, _Lists]


_caches: WeakKeyDictionary[Optimizer, _Cache] = WeakKeyDictionary()


def step_on_cached_lists(optimizer: Optimizer, found_inf: Tensor) -> bool:
    """Take a step of one of torch's plain fused Adams, unless ``found_inf`` is not 0; return whether that was possible.

    It is not, and nothing changes, for other optimizers, for the first step, which makes the state, and for whatever is
    unusual: hooks, a replaced `step`, AMSGrad, rates that are tensors, sparse gradients, groups of several dtypes.
    """
    if type(optimizer) not in (Adam, AdamW) or _is_unusual(optimizer):
        return False
    if not found_inf.is_cpu and devices.is_capturing(found_inf.device):
        return False
    cache, state = _caches.get(optimizer), optimizer.state
    if cache is None or state is not cache.state or not _same(list(state.values()), cache.entries):
        cache = _caches[optimizer] = _Cache(state, list(state.values()), {})
    work: list[tuple[dict[str, Any], _Lists, list[Tensor]]] = []
    for number, group in enumerate(optimizer.param_groups):
        if not _is_plain(group):
            return False
        parameters: list[Tensor] = group["params"]
        gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
        if not gradients:
            continue
        if len(gradients) < len(parameters):
            parameters = [parameter for parameter in parameters if parameter.grad is not None]
        lists = cache.groups.get(number)
        if lists is None or not lists.hold(parameters):
            if not _can_be_listed(parameters, state):
                return False
            lists = cache.groups[number] = _Lists(list(parameters), [state[p] for p in parameters])
        if (
            lists.device != found_inf.device
            or set(map(_DTYPE, gradients)) != {lists.dtype}
            or set(map(_LAYOUT, gradients)) != {torch.strided}
        ):
            return False
        work.append((group, lists, gradients))
    flag = exact_flag(found_inf)
    for group, lists, gradients in work:
        _step(group, lists, gradients, flag)
    mark_stepped(optimizer)  # as a scheduler's wrapper of `step` would have done
    return True


def _step(group: dict[str, Any], lists: _Lists, gradients: list[Tensor], flag: Tensor) -> None:
    first, second, counts = lists.members
    beta1, beta2 = group["betas"]
    kernel = fused_adamw_ if group["decoupled_weight_decay"] else fused_adam_
    with torch.no_grad():
        lists.counts.add_(1)
        kernel(
            lists.parameters,
            gradients,
            first,
            second,
            [],
            counts,
            amsgrad=False,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
            found_inf=flag,
        )
        lists.counts.sub_(flag)


def _is_unusual(optimizer: Optimizer) -> bool:
    """Return whether something else acts on the optimizer's step."""
    replaced = optimizer.__dict__.get("step")
    if replaced is not None:
        own = getattr(type(optimizer).step, "__func__", type(optimizer).step)
        if not (is_wrapped_by_scheduler(replaced) and getattr(replaced, "__wrapped__", None) is own):
            return True
    return has_step_hooks(optimizer) or hasattr(optimizer, "grad_scale") or torch.compiler.is_compiling()


def _is_plain(group: dict[str, Any]) -> bool:
    numbers = (group["lr"], *group["betas"])
    return (
        bool(group["fused"])
        and not (group["amsgrad"] or group["capturable"] or group["differentiable"])
        and not any(isinstance(number, Tensor) for number in numbers)
    )


def _can_be_listed(parameters: list[Tensor], state: dict[Tensor, dict[str, Any]]) -> bool:
    """Return whether parameters have state, and are of one device and dtype."""
    if len(set(map(_DEVICE, parameters))) != 1 or len(set(map(_DTYPE, parameters))) != 1 or parameters[0].is_complex():
        return False
    states = [state.get(parameter) or {} for parameter in parameters]
    if not all(set(_STATE) == set(entry) for entry in states):
        return False
    return all(entry["step"].shape == () and entry["step"].device == parameters[0].device for entry in states)


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))
