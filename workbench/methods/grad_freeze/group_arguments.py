"""What a user may write for the groups, the strategy and the learning rates of a `FreezeOpt`, as in MindSpore 2.7.

A wrong kind is a TypeError, anything else that cannot be used a ValueError; the message names the argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from workbench.core.step_optimizer import held_parameters

Groups = list[list[tuple[list[Tensor], dict[str, Any]]]]  # per group a list of (parameters, options given for them)

NOT_AN_OPTION = ("params", "param_names", "initial_lr", "order_params")


def split_learning_rates(rates: Sequence[float], strategy: Sequence[int] | None, n_groups: int) -> list[list[float]]:
    """Deal a list of learning rates, one per step, out to the groups; one list of rates per group.

    With at most as many rates as the strategy has steps, rate i goes to the group that step i selects, so every group
    walks through the rates of its own steps. Otherwise, and without a strategy, each group gets the whole list and
    counts its own steps.
    """
    if strategy is None or len(rates) > len(strategy):
        return [list(rates) for _ in range(n_groups)]
    dealt: list[list[float]] = [[] for _ in range(n_groups)]
    for rate, index in zip(rates, strategy, strict=False):
        dealt[index].append(rate)
    return dealt


def read_groups(groups: Any, opt: torch.optim.Optimizer) -> Groups:
    """Return the groups as given for an optimizer's parameters; None stands for one group with all of them."""
    held: list[Tensor] = [*held_parameters(opt)]
    if groups is None:
        return [[(held, {})]]
    if not isinstance(groups, list | tuple):
        raise TypeError(f"`train_parameter_groups` must be a list or tuple of groups, got {type(groups).__name__}")
    if not groups:
        raise ValueError("`train_parameter_groups` must hold at least one group, got none")
    known, result = set(held), []
    for index, group in enumerate(groups):
        where = f"train_parameter_groups[{index}]"
        if not isinstance(group, list | tuple):
            raise TypeError(f"`{where}` must be a list or tuple of parameters, got {type(group).__name__}")
        if others := [type(item).__name__ for item in group if not isinstance(item, Mapping | Tensor)]:
            raise TypeError(f"`{where}` must hold parameters or parameter groups, got {others[0]}")
        # An order matters to MindSpore's gradient tuples; torch keeps gradients on parameters.
        dicts = [item for item in group if isinstance(item, Mapping) and "order_params" not in item]
        entries = [(list(item["params"]), {k: item[k] for k in item if k not in NOT_AN_OPTION}) for item in dicts]
        if loose := [item for item in group if isinstance(item, Tensor)]:
            entries.append((loose, {}))
        params = [p for part, _ in entries for p in part]
        if not params:
            raise ValueError(f"`{where}` must hold at least one parameter, got none")
        if not known.issuperset(params):
            raise ValueError(f"`{where}` holds a parameter that `opt` does not; give it to the optimizer, too")
        result.append(entries)
    return result


def read_strategy(strategy: Any, n_groups: int) -> tuple[int, ...]:
    """Return the group of each step."""
    if isinstance(strategy, Tensor):
        if strategy.dim() != 1 or strategy.dtype != torch.int32:
            raise ValueError(
                f"a tensor as `train_strategy` must be 1-D and int32, got {strategy.dim()}-D {strategy.dtype}"
            )
        strategy = strategy.tolist()
    if not isinstance(strategy, list | tuple):
        kind = type(strategy).__name__
        raise TypeError(f"`train_strategy` must be a list or tuple of int or a 1-D int32 tensor, got {kind}")
    if not strategy:
        raise ValueError("`train_strategy` must hold at least one step, got none; is `total_steps` 0?")
    if set(map(type, strategy)) == {int} and min(strategy) >= 0 and max(strategy) < n_groups:
        return tuple(strategy)  # looked at one by one, the usual 20,000 take twenty times as long
    for entry in strategy:
        if isinstance(entry, bool) or not isinstance(entry, Integral):
            raise ValueError(f"`train_strategy` must hold integers, got {entry!r}")
        if not 0 <= int(entry) < n_groups:
            raise ValueError(f"`train_strategy` must hold group indices in [0, {n_groups}), got {entry}")
    return tuple(int(entry) for entry in strategy)


def read_rates(rates: Any) -> list[float]:
    """Return the learning rate of each step."""
    if isinstance(rates, Tensor):
        if rates.dim() != 1:
            raise ValueError(f"a tensor as `learning_rates` must be 1-D, got {rates.dim()}-D")
        rates = rates.tolist()
    if not isinstance(rates, list | tuple):
        raise TypeError(f"`learning_rates` must be a list or 1-D tensor of rates, got {type(rates).__name__}")
    if not rates or not all(float(rate) >= 0 for rate in rates):
        raise ValueError(f"`learning_rates` must hold at least one rate and none below 0, got {rates!r}")
    return [float(rate) for rate in rates]


def require_no_own_options(groups: Groups, opt: torch.optim.Optimizer) -> None:
    """Refuse groups with options that a shared optimizer does not have."""
    options_of = {p: group for group in opt.param_groups for p in group["params"]}
    given = ((i, params, *option) for i, group in enumerate(groups) for params, own in group for option in own.items())
    for index, params, key, value in given:
        if any(options_of[p].get(key) != value for p in params):
            raise ValueError(
                f"`train_parameter_groups[{index}]` asks for {key}={value!r} unlike `opt`; one shared optimizer cannot "
                'follow, so change `opt` or use state="per_group"'
            )
