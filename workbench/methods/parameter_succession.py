"""Let an optimizer follow a network whose parameters were replaced, removed or added.

Module surgery (a new head, a removed BatchNorm) leaves the optimizer with parameters that no longer train. The
successor of a parameter is the one that now bears its name; a parameter without predecessor joins the group of its
neighbour in the same module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from workbench.methods.parameter_groups import rebuild_optimizer

__all__ = ["follow_parameters", "succeeding_groups"]


def succeeding_groups(
    groups: list[dict[str, Any]], before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]
) -> tuple[list[dict[str, Any]], bool]:
    """Return the parameter groups that follow a change of the network.

    Args:
        groups: The optimizer's parameter groups.
        before: Name -> parameter of the network before the change.
        after: Name -> parameter after it.

    Returns:
        New groups with the same options (a group that lost all its parameters is left out), and whether anything
        changed. Parameters that never belonged to the network stay.
    """
    name_of = {id(parameter): name for name, parameter in before.items()}
    kept = {id(parameter) for parameter in after.values()}
    fresh = {name: parameter for name, parameter in after.items() if id(parameter) not in name_of}
    added = [name for name in fresh if name not in before]
    result, changed = [], False
    placed: set[str] = set()
    for group in groups:
        members: list[nn.Parameter] = []
        for parameter in group["params"]:
            name = name_of.get(id(parameter))
            if name is None or id(parameter) in kept:
                members.append(parameter)
            elif name in fresh:
                members.append(fresh[name])
                placed.add(name)
                changed = True
            else:
                changed = True
                continue
            if name in placed:  # what the new module has besides joins it
                siblings = [other for other in added if _module(other) == _module(name) and other not in placed]
                members.extend(fresh[sibling] for sibling in siblings)
                placed.update(siblings)
        if members:
            options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
            result.append({"params": members, **options})
    orphans = [parameter for name, parameter in fresh.items() if name not in placed]
    if orphans and result:
        result[-1]["params"].extend(orphans)
        changed = True
    return result, changed


def follow_parameters(
    optimizer: Optimizer, before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]
) -> Optimizer:
    """Return an optimizer over the network's current parameters; the same object when nothing changed.

    Args:
        optimizer: The optimizer made for ``before``; state of parameters that remain moves along.
        before: Name -> parameter of the network before the change.
        after: Name -> parameter after it.
    """
    groups, changed = succeeding_groups(optimizer.param_groups, before, after)
    return rebuild_optimizer(optimizer, groups) if changed else optimizer


def _module(name: str) -> str:
    return name.rpartition(".")[0]
