"""What a user may give AdamOffload as ``params``, in the reference's form and in torch's, checked.

Scale and shift of a normalization are not decayed. MindSpore knows them by their names, ``gamma`` and ``beta``; in
torch they are ``weight`` and ``bias`` like any other, so a module's are marked ``is_normalization`` by the type of
their owner. The mark is an attribute of the parameter and outlives regrouping.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from workbench.core.torch_internals import NORMALIZATIONS
from workbench.core.warning import warn

# The reference's, torch's, those its schedulers leave behind (a rebuilt optimizer meets them again), and our own.
_GROUP_KEYS = frozenset(
    (
        *("params", "param_names", "lr", "betas", "eps", "weight_decay", "grad_centralization", "comm_fusion"),
        *("initial_lr", "swa_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"),
        *("use_nesterov", "loss_scale", "lr_schedule", "weight_decay_schedule", "decay_by_name"),
    )
)


def is_decayed(group: dict[str, Any], index: int) -> bool:
    """Return whether a group's weight decay acts on its parameter at an index."""
    if not group["decay_by_name"]:
        return True
    names = group.get("param_names")
    name = "" if names is None else names[index]
    is_marked = getattr(group["params"][index], "is_normalization", False)
    return not (is_marked or "beta" in name or "gamma" in name)


def read_parameters(params: Any, *, any_decay: bool) -> tuple[list[dict[str, Any]], list[Tensor] | None]:
    """Return parameter groups for torch, and the order of parameters if one was given; see `AdamOffload`.

    With ``any_decay``, parameters without names and without groups are warned about.
    """
    if isinstance(params, nn.Module):
        for module in params.modules():
            if isinstance(module, NORMALIZATIONS):
                for parameter in module.parameters(recurse=False):
                    parameter.is_normalization = True  # type: ignore[attr-defined]
        params = [(name, parameter) for name, parameter in params.named_parameters() if parameter.requires_grad]
    if isinstance(params, Tensor | str | bytes | Mapping) or (params is not None and not isinstance(params, Iterable)):
        raise TypeError(f"`params` must be an iterable of parameters or of groups, got {type(params).__name__}")
    given = [] if params is None else list(params)
    if not given:
        raise ValueError(f"`params` must hold at least one parameter, got {params!r}")
    if any(isinstance(item, Mapping) for item in given):
        return _read_groups(given)
    named = isinstance(given[0], tuple)
    for item in given:
        is_pair = isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)
        if is_pair is not named or not isinstance(item[1] if is_pair else item, Tensor):
            raise TypeError(
                f"`params` must hold parameters, or pairs (name, parameter), or groups; got {type(item).__name__}"
            )
    if any_decay and not named:
        warn(
            "`weight_decay` applies to every parameter, normalizations included, because parameters came without "
            "names; pass model.named_parameters(), the model itself, or groups"
        )
    if not _are_distinct([_tensor_of(item) for item in given]):
        raise ValueError("`params` must hold each parameter once, got one twice")
    return [{"params": given, "decay_by_name": True}], None


def _read_groups(given: list[Any]) -> tuple[list[dict[str, Any]], list[Tensor] | None]:
    groups: list[dict[str, Any]] = []
    order: list[Tensor] | None = None
    for index, item in enumerate(given):
        if not isinstance(item, Mapping):
            raise TypeError(f"`params` must hold groups only, got also {type(item).__name__}")
        if "order_params" in item:
            if len(item) > 1:
                others = ", ".join(f'"{key}"' for key in item if key != "order_params")
                raise ValueError(f'`params[{index}]` must have no key beside "order_params", got {others}')
            order = _read_order(item["order_params"])
            continue
        for key in item:
            if key not in _GROUP_KEYS:
                known = ", ".join(sorted(_GROUP_KEYS))
                raise KeyError(f'`params[{index}]` has the unknown key "{key}"; known: {known}')
        members = item["params"]
        members = [members] if isinstance(members, Tensor) else list(members)
        if not members:
            raise ValueError(f'`params[{index}]["params"]` must hold at least one parameter, got none')
        groups.append({**item, "params": members})
    held = [_tensor_of(member) for group in groups for member in group["params"]]
    if not held:
        raise ValueError("`params` must hold at least one group with parameters, got none")
    if not _are_distinct(held):
        raise RuntimeError("a parameter was given twice; each must be in one group, once")
    if order is not None and sorted(map(id, order)) != sorted(map(id, held)):
        raise ValueError(
            f"`order_params` must list the {len(held)} parameters of the groups, each once, got {len(order)} entries"
        )
    return groups, order


def _read_order(order: Any) -> list[Tensor]:
    if isinstance(order, Tensor | str | bytes) or not isinstance(order, Iterable):
        raise TypeError(f"`order_params` must be an iterable of parameters, got {type(order).__name__}")
    return [_tensor_of(item) for item in order]


def _tensor_of(item: Any) -> Any:
    return item[1] if isinstance(item, tuple) and len(item) == 2 else item


def _are_distinct(parameters: list[Any]) -> bool:
    return len({id(parameter) for parameter in parameters}) == len(parameters)
