"""Which parameters the groups of a `GroupLossScaleManager` mean: parameters, modules, their names, or pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

GroupMember = Tensor | nn.Module | str | tuple[str, Tensor]
"""A parameter, a module, the name of either, or a pair from ``named_parameters()``."""


def resolve_groups(groups: Sequence[Sequence[GroupMember]], model: nn.Module) -> list[dict[str, Tensor]]:
    """Return the parameters of each group by name, found by identity and never by position.

    A group that names no parameter, or one that is in another group already, is a ValueError.
    """
    check_groups(groups)
    name_of: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    modules = dict(model.named_modules())
    owner: dict[Tensor, int] = {}
    resolved = []
    for number, members in enumerate(groups, start=1):
        found: dict[str, Tensor] = {}
        for member in members:
            for parameter in _parameters_of(member, number, parameters, modules):
                name = name_of.get(parameter)
                if name is None:
                    raise ValueError(
                        f"group {number} of `loss_scale_groups` holds a tensor of shape {tuple(parameter.shape)} that "
                        "is no parameter of the model; if the model was changed since (it may have a new head), name "
                        "parameters by their names"
                    )
                if parameter in owner:
                    raise _named_twice(f"parameter {name}", owner[parameter], number)
                owner[parameter] = number
                found[name] = parameter
        if not found:
            raise ValueError(f"group {number} of `loss_scale_groups` names no parameter")
        resolved.append(found)
    return resolved


def group_name(number: int, parameters: Mapping[str, Tensor] | Sequence[str]) -> str:
    """Return what a group is called: its number, from 1, and the modules its parameters lie in."""
    owners = list(dict.fromkeys(name.rpartition(".")[0] or name for name in parameters))
    shown = owners if len(owners) <= 3 else [owners[0], "…", owners[-1]]
    return f"group {number} ({', '.join(shown)})"


def _named_twice(what: object, first: int, second: int) -> ValueError:
    return ValueError(
        f"{what} is named twice in `loss_scale_groups`, in group {first} and in group {second}; it can have one scale "
        "only"
    )


def check_groups(groups: object) -> None:
    """Check what can be known of `loss_scale_groups` without the model; raises as `resolve_groups` does."""
    if isinstance(groups, str) or not isinstance(groups, Sequence):
        raise TypeError(f"`loss_scale_groups` must be a list of groups, got {type(groups).__name__}")
    seen: dict[object, int] = {}
    for number, group in enumerate(groups, start=1):
        if isinstance(group, str | Tensor) or not isinstance(group, Sequence):
            raise TypeError(
                f"group {number} of `loss_scale_groups` must be a list of parameters or names, got "
                f"{type(group).__name__}"
            )
        if not group:
            raise ValueError(f"group {number} of `loss_scale_groups` names no parameter; leave it out")
        for member in group:
            entry = member[1] if _is_pair(member) else member
            if not isinstance(entry, Tensor | nn.Module | str):
                raise TypeError(
                    f"group {number} of `loss_scale_groups` must hold parameters, modules or their names, got "
                    f"{type(entry).__name__} {entry!r}"
                )
            key: object = entry if isinstance(entry, str) else id(entry)
            if key in seen:
                what = entry if isinstance(entry, str) else f"a {type(entry).__name__}"
                raise _named_twice(member[0] if _is_pair(member) else what, seen[key], number)
            seen[key] = number


def _is_pair(member: object) -> bool:
    return isinstance(member, tuple) and len(member) == 2 and isinstance(member[0], str)


def _parameters_of(
    member: GroupMember, number: int, parameters: Mapping[str, nn.Parameter], modules: Mapping[str, nn.Module]
) -> list[Tensor]:
    if isinstance(member, tuple):
        return [member[1]]
    if isinstance(member, nn.Module):
        return list(member.parameters())
    if isinstance(member, Tensor):
        return [member]
    # The network may have been wrapped since (with its loss, for example); then its names have a prefix.
    known = [name for name in (*parameters, *modules) if name == member or name.endswith(f".{member}")]
    depth = min((name.count(".") for name in known), default=0)
    nearest = [name for name in known if name.count(".") == depth]
    if len(nearest) > 1:
        raise ValueError(
            f"group {number} of `loss_scale_groups` names {member!r}, which may be {' or '.join(nearest)}; write the "
            "whole name"
        )
    if nearest and member:
        name = nearest[0]
        return [parameters[name]] if name in parameters else list(modules[name].parameters())
    raise ValueError(
        f"group {number} of `loss_scale_groups` names {member!r}, but the model has neither a parameter nor a module "
        "of that name"
    )
