"""Regrouping of parameters after a network was changed, and marks for gradient fusion.

Behaviour taken from MindSpore 2.7.0, ``ParameterProcess`` of ``mindspore.boost``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor


class ParameterProcess:
    """Make parameter groups for a changed network and mark which gradients travel together.

    The fusion index lives in the object: a second call of :meth:`assign_parameter_group` goes on from the last one.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        >>> groups = ParameterProcess.generate_group_params(list(net.parameters())[:1], list(net.parameters()))
        >>> len(groups), len(groups[0]["params"])
        (1, 1)
    """

    def __init__(self) -> None:
        self.fusion_index = 1

    def assign_parameter_group(self, parameters: Any, split_point: Sequence[int] | None = None) -> Any:
        """Mark each parameter with the index of the bucket its gradient is reduced in, as attribute ``comm_fusion``.

        Args:
            parameters: List of parameters in network order, which is returned. Anything else is left alone.
            split_point: Positions, in any order, at which the index, from 1 on, grows. None or empty: the middle.
        """
        if not isinstance(parameters, list) or not parameters:
            return parameters
        splits = set(split_point) if split_point else {len(parameters) // 2}
        for position, parameter in enumerate(parameters):
            if position in splits:
                self.fusion_index += 1
            parameter.comm_fusion = self.fusion_index
        return parameters

    @staticmethod
    def generate_group_params(parameters: Iterable[Any], origin_params: Iterable[Any]) -> list[dict[str, Any]]:
        """Return parameter groups for ``parameters`` with the options of the groups they came from.

        A parameter is found in an original group by identity or, where both sides have names, by name (a replaced
        layer's new weight keeps its old options), and stands where it stood there. What is found nowhere goes into an
        extra group with the options of the original group that has the most of them, the first on a tie.

        Args:
            parameters: Parameters, or pairs (name, parameter), of the changed network.
            origin_params: Parameters (or pairs) the optimizer was built from, or its parameter groups. A dict with
                ``order_params`` is kept and gets the new order.

        Returns:
            One dict for an ungrouped origin, else one per original group, in the original order. As upstream a group
            may end up empty; torch optimizers accept that.

        Raises:
            TypeError: When an element is neither a parameter, nor a pair, nor a parameter group.
        """
        named = [_named(item, "parameters") for item in _required(parameters, "parameters")]
        origin = _required(origin_params, "origin_params")
        if not isinstance(origin[0], Mapping):
            for item in origin:
                _named(item, "origin_params")
            return [_group(named, {})]
        result: list[dict[str, Any]] = []
        placed: set[Tensor] = set()
        richest: dict[str, Any] = {}
        most = -1
        for group in origin:
            if not isinstance(group, Mapping):
                raise TypeError(f"`origin_params` must hold parameter groups only, got also {type(group).__name__}")
            if "order_params" in group:
                result.append({**group, "order_params": [parameter for _, parameter in named]})
                continue
            members = [_named(item, "origin_params") for item in group["params"]]
            place: dict[Any, int] = {parameter: index for index, (_, parameter) in enumerate(members)}
            place |= {name: index for index, (name, _) in enumerate(members) if name is not None}
            place |= {name: index for index, name in enumerate(group.get("param_names", ()))}
            options = {key: value for key, value in group.items() if key not in {"params", "param_names"}}
            found = [pair for pair in named if pair[1] in place or pair[0] in place]
            chosen = sorted(found, key=lambda pair: place[pair[1] if pair[1] in place else pair[0]])
            placed.update(parameter for _, parameter in chosen)
            result.append(_group(chosen, options))
            if len(group) > most:
                richest, most = options, len(group)
        left_over = [pair for pair in named if pair[1] not in placed]
        return [*result, _group(left_over, richest)] if left_over else result


def _required(items: Iterable[Any] | None, name: str) -> list[Any]:
    found = [] if items is None else list(items)
    if not found:
        raise ValueError(f"`{name}` must hold at least one parameter, got {items!r}")
    return found


def _named(item: Any, where: str) -> tuple[str | None, Tensor]:
    if isinstance(item, Tensor):
        return None, item
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], Tensor):
        return item
    raise TypeError(f"`{where}` must hold parameters, pairs (name, parameter) or groups, got {type(item).__name__}")


def _group(pairs: Sequence[tuple[str | None, Tensor]], options: Mapping[str, Any]) -> dict[str, Any]:
    group: dict[str, Any] = {"params": [parameter for _, parameter in pairs], **options}
    names = [name for name, _ in pairs]
    if names and all(name is not None for name in names):
        group["param_names"] = names
    return group
