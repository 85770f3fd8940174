"""Rebuilding an optimizer around changed parameter groups, above all for gradient centralization.

Behaviour taken from MindSpore 2.7.0, ``mindspore/python/mindspore/boost/base.py`` (``OptimizerProcess``). In torch
every optimizer has parameter groups, so the reference's case of an ungrouped list, for which it only warns, does not
exist here: it is one group and is split like any other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from workbench.methods.grad_centralization.method import CentralizationRule, register_centralization
from workbench.methods.parameter_groups import owning_modules, plain_name, rebuild_optimizer

__all__ = ["OptimizerProcess", "ParameterOwner"]

NEVER_CENTRALIZED = ("beta", "gamma", "bias")
# torch calls the scale of a normalization "weight", so the name alone does not tell; its module's type does.
NORMALIZATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class ParameterOwner(NamedTuple):
    """Where a parameter lives: its plain dotted name and the module it is registered in."""

    name: str
    module: nn.Module


class OptimizerProcess:
    """Change the parameter groups of an optimizer and build it anew.

    The new optimizer has the class, constructor arguments and options of the old one; state and hooks of parameters
    that remain move along. Set :attr:`origin_params` to groups made by
    :meth:`~workbench.methods.parameter_process.ParameterProcess.generate_group_params` when the network has changed.

    Args:
        opt: A torch optimizer.

    Attributes:
        origin_params: The parameter groups in force, a list of dicts.

    Raises:
        TypeError: When ``opt`` is no torch optimizer, or one that freezes (process it before wrapping).

    Example:
        >>> net = nn.Linear(3, 2)
        >>> process = OptimizerProcess(torch.optim.SGD(net.parameters(), lr=0.1))
        >>> process.add_grad_centralization(net)
        >>> [group["grad_centralization"] for group in process.generate_new_optimizer().param_groups]
        [True, False]
    """

    def __init__(self, opt: torch.optim.Optimizer) -> None:
        if not isinstance(opt, torch.optim.Optimizer):
            raise TypeError(f"`opt` must be a torch.optim.Optimizer, got {type(opt).__name__}")
        if hasattr(opt, "active_optimizer"):
            raise TypeError("`opt` freezes already; process its optimizer before it is wrapped")
        self.optimizer = opt
        self.origin_params: list[dict[str, Any]] = [dict(group) for group in opt.param_groups]
        self._rule: CentralizationRule | None = None

    def build_params_dict(self, network: nn.Module) -> dict[Tensor, ParameterOwner]:
        """Return for every parameter of the network its name and owning module.

        Args:
            network: The network, bare or wrapped.
        """
        owners = owning_modules(network)
        return {p: ParameterOwner(plain_name(name), owners[p]) for name, p in network.named_parameters()}

    def build_gc_params_group(
        self, params_dict: Mapping[Tensor, ParameterOwner], parameters: Iterable[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Split each parameter group into a centralized half, flagged ``grad_centralization``, and the rest.

        Centralized are parameters with two axes or more whose name contains none of ``beta``, ``gamma``, ``bias`` and
        whose module is no grouped or depthwise convolution, no normalization and no fully normalized layer (marked
        ``is_full_normalization``). Parameters that are not in ``params_dict`` belong to the rest.

        Args:
            params_dict: What :meth:`build_params_dict` returned.
            parameters: Parameter groups; a dict with ``order_params`` is passed on unchanged.

        Returns:
            New groups: per old one first the centralized half, then the rest with the original options, empty halves
            left out. The order of parameters changes accordingly.
        """
        result: list[dict[str, Any]] = []
        for group in parameters:
            if "order_params" in group:
                result.append(dict(group))
                continue
            params = list(group["params"])
            flags = [p in params_dict and _is_centralized(p, params_dict[p]) for p in params]
            for flag in (True, False):
                positions = [i for i, found in enumerate(flags) if found is flag]
                if not positions:
                    continue
                half = dict(group, params=[params[i] for i in positions])
                if "param_names" in group:
                    half["param_names"] = [group["param_names"][i] for i in positions]
                if flag:
                    half["grad_centralization"] = True  # as upstream: overrides an explicit False of the user
                result.append(half)
        return result

    def add_grad_centralization(self, network: nn.Module, *, rule: CentralizationRule = "every_weight") -> None:
        """Centralize the gradients of this network's weights in the optimizer to come.

        Args:
            network: The network whose parameters the optimizer holds.
            rule: ``"multiple_of_16"`` restores the reference's restriction, see
                :func:`~workbench.methods.grad_centralization.method.is_centralizable`.
        """
        groups = self.build_gc_params_group(self.build_params_dict(network), self.origin_params)
        if not any(group.get("grad_centralization") for group in groups):
            warnings.warn(
                "gradient centralization has no effect: the optimizer holds no weight of this network with two axes "
                "outside normalizations and grouped convolutions",
                stacklevel=2,
            )
        self.origin_params = groups
        self._rule = rule

    def generate_new_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer over :attr:`origin_params`; the old one is left as it is and must not be stepped.

        Raises:
            TypeError: When the optimizer's class cannot be constructed from its own defaults.
        """
        groups = [dict(group) for group in self.origin_params if "order_params" not in group]
        if self._rule is not None:
            for group in groups:
                group.setdefault("grad_centralization", False)  # the same keys in every group, as torch has them
        optimizer = rebuild_optimizer(self.optimizer, groups)
        if self._rule is not None:
            register_centralization(optimizer, self._rule)
        return optimizer


def _is_centralized(parameter: Tensor, owner: ParameterOwner) -> bool:
    if parameter.dim() < 2 or any(word in owner.name for word in NEVER_CENTRALIZED):
        return False
    module = owner.module
    if isinstance(module, NORMALIZATIONS) or getattr(module, "is_full_normalization", False):
        return False
    return not (isinstance(module, nn.modules.conv._ConvNd) and module.groups > 1)
