"""Gradient centralization: the gradient of each output unit's weights is made to have zero mean.

Yong, Huang, Hua, Zhang, "Gradient Centralization: A New Optimization Technique for Deep Neural Networks", ECCV 2020,
arXiv:2004.01461, equation (1). Here the mean over all axes but the first is subtracted, and, as in MindSpore 2.7.0
(``mindspore/python/mindspore/nn/optim/optimizer.py``), from the gradient AFTER an L2 weight decay was added to it.

With gradient g, weight w and decay λ the optimizer should see  u - mean(u),  u = g + λ w.  torch optimizers add λ w
themselves, so we hand them  g - mean(g + λ w),  and the mean is linear: mean(g) + λ mean(w), no temporary of the
weights' size. An optimizer with decoupled decay (AdamW) does not add λ w to the gradient, so only mean(g) is subtracted
there. `OptimizerProcess` takes its behaviour from ``mindspore/python/mindspore/boost/base.py`` of the same version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from workbench.core.torch_internals import NORMALIZATIONS, ConvNd
from workbench.core.warning import warn
from workbench.methods.parameter_groups import checked_optimizer, part_of_group, plain_name, rebuild_optimizer
from workbench.methods.protocol import GroupSchedule, Method, Preparation

CentralizationRule = Literal["every_weight", "multiple_of_16"]

LANES = 16  # the second dimension the Ascend primitive requires a multiple of
NEVER_CENTRALIZED = ("beta", "gamma", "bias")


def is_centralizable(shape: Sequence[int], rule: CentralizationRule = "every_weight") -> bool:
    """Return whether a gradient of this shape has axes to average over, and which the reference's hardware can."""
    return len(shape) >= 2 and (rule == "every_weight" or shape[1] % LANES == 0)


def centralize_(
    gradients: Sequence[Tensor],
    weights: Sequence[Tensor] | None = None,
    weight_decay: float | Tensor = 0.0,
    *,
    maximize: bool = False,
) -> None:
    """Subtract mean(gradient + L2 decay * weight) over all axes but the first from each gradient, in place."""
    if not gradients:
        return
    means = [gradient.flatten(1).mean(1) for gradient in gradients]
    decays = isinstance(weight_decay, Tensor) or weight_decay != 0
    if decays and weights is not None:
        of_weights = [weight.detach().flatten(1).mean(1).to(mean) for weight, mean in zip(weights, means, strict=True)]
        # u = -g + λ w under maximize, and torch turns the sign of what we leave: g - mean(g) + λ mean(w).
        factor = -weight_decay if maximize else weight_decay
        torch._foreach_add_(means, torch._foreach_mul(of_weights, factor))
    shaped = [mean.view(-1, *[1] * (gradient.dim() - 1)) for mean, gradient in zip(means, gradients, strict=True)]
    torch._foreach_sub_(list(gradients), shaped)


def decays_decoupled(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    """Return whether a group's weight decay is known to act on the weights instead of through the gradient."""
    declared = group.get("decoupled_weight_decay", getattr(optimizer, "decoupled_weight_decay", None))
    if declared is not None:
        return bool(declared)
    return type(optimizer).__name__ in {"AdamW", "Adafactor", "Muon"}


def register_centralization(
    optimizer: torch.optim.Optimizer, rule: CentralizationRule = "every_weight"
) -> RemovableHandle:
    """Centralize, before every step of the optimizer, the gradients of groups flagged ``grad_centralization``.

    Flag groups with ``{"params": ..., "grad_centralization": True}``; `OptimizerProcess` does so. Gradients must be
    unscaled by then; vectors and sparse ones are left alone. ``remove()`` of what is returned ends it.
    """
    checked_optimizer("optimizer", optimizer)
    if isinstance(optimizer, GroupSchedule):
        raise TypeError("register centralization on the optimizer before it is wrapped for freezing")
    if rule not in {"every_weight", "multiple_of_16"}:
        raise ValueError(f'`rule` must be "every_weight" or "multiple_of_16", got {rule!r}')
    return optimizer.register_step_pre_hook(_Centralization(rule))


class _Centralization:
    """The hook; an object rather than a closure, so that it can be pickled and compared."""

    def __init__(self, rule: CentralizationRule) -> None:
        self.rule: CentralizationRule = rule

    def __call__(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A fused step may be asked to unscale inside; the decay must then be scaled like the gradient.
        scale = getattr(optimizer, "grad_scale", None)
        for group in optimizer.param_groups:
            if not group.get("grad_centralization", False):
                continue
            dense = [p for p in group["params"] if p.grad is not None and not p.grad.is_sparse]
            weights = [p for p in dense if is_centralizable(p.shape, self.rule)]
            decay = 0.0 if decays_decoupled(optimizer, group) else group.get("weight_decay", 0.0)
            decay = decay if scale is None else decay * scale
            centralize_([p.grad for p in weights], weights, decay, maximize=group.get("maximize", False))


class OptimizerProcess:
    """Change the parameter groups of an optimizer and rebuild it over them.

    The new optimizer has the class, constructor arguments and options of the old one; state and hooks of parameters
    that remain move along. Set :attr:`origin_params` to groups made by
    :meth:`~workbench.methods.parameter_process.ParameterProcess.generate_group_params` when the network has changed.

    Args:
        opt: A torch optimizer.

    Attributes:
        origin_params: The parameter groups in force, a list of dicts.

    Raises:
        TypeError: When ``opt`` freezes (process it before wrapping).

    Example:
        >>> net = nn.Linear(3, 2)
        >>> process = OptimizerProcess(torch.optim.SGD(net.parameters(), lr=0.1))
        >>> process.add_grad_centralization(net)
        >>> [group["grad_centralization"] for group in process.generate_new_optimizer().param_groups]
        [True, False]
    """

    def __init__(self, opt: torch.optim.Optimizer) -> None:
        checked_optimizer("opt", opt)
        if isinstance(opt, GroupSchedule):
            raise TypeError("`opt` freezes already; process its optimizer before it is wrapped")
        self.optimizer = opt
        self.origin_params: list[dict[str, Any]] = [dict(group) for group in opt.param_groups]
        self._rule: CentralizationRule | None = None

    def build_params_dict(self, network: nn.Module) -> dict[Tensor, tuple[str, nn.Module]]:
        """Return for every parameter of the network, bare or wrapped, its name and the (first) module that holds it."""
        holders = {p: m for m in reversed(list(network.modules())) for p in m.parameters(recurse=False)}
        return {p: (plain_name(name), holders[p]) for name, p in network.named_parameters()}

    def build_gc_params_group(
        self, params_dict: Mapping[Tensor, tuple[str, nn.Module]], parameters: Iterable[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Split each parameter group into a centralized half, flagged ``grad_centralization``, and the rest.

        Centralized are parameters with two axes or more whose name contains none of ``beta``, ``gamma``, ``bias`` and
        whose module is no grouped or depthwise convolution, no normalization and no fully normalized layer (marked
        ``is_full_normalization``). Empty halves are left out.

        Args:
            params_dict: What :meth:`build_params_dict` returned; other parameters belong to the rest.
            parameters: Parameter groups; a dict with ``order_params`` is passed on unchanged.
        """
        result: list[dict[str, Any]] = []
        for group in parameters:
            if "order_params" in group:
                result.append(dict(group))
                continue
            every = set(group["params"])
            centralized = {p for p in every if p in params_dict and _is_centralized(p, *params_dict[p])}
            if centralized:  # as upstream: overrides an explicit False of the user
                result.append(part_of_group(group, centralized) | {"grad_centralization": True})
            if centralized != every:
                result.append(part_of_group(group, every - centralized))
        return result

    def add_grad_centralization(self, network: nn.Module, *, rule: CentralizationRule = "every_weight") -> None:
        """Centralize the gradients of this network's weights in the optimizer to come.

        Args:
            network: The network whose parameters the optimizer holds.
            rule: ``"multiple_of_16"`` restores the reference's restriction on the second dimension.
        """
        groups = self.build_gc_params_group(self.build_params_dict(network), self.origin_params)
        if not any(group.get("grad_centralization") for group in groups):
            warn(
                "gradient centralization has no effect: the optimizer holds no weight of this network with two axes "
                "outside normalizations and grouped convolutions"
            )
        self.origin_params = groups
        self._rule = rule

    def generate_new_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer over :attr:`origin_params`; the old one is left as it is and must not be stepped."""
        groups = [dict(group) for group in self.origin_params if "order_params" not in group]
        if self._rule is not None:
            for group in groups:
                group.setdefault("grad_centralization", False)  # the same keys in every group, as torch has them
        optimizer = rebuild_optimizer(self.optimizer, groups)
        if self._rule is not None:
            register_centralization(optimizer, self._rule)
        return optimizer


class CentralizationMethod(Method):
    """Rebuilds the optimizer with its groups marked and the hook registered."""

    def reshape(self, preparation: Preparation) -> None:
        """Mark the optimizer's groups and register the hook."""
        process = OptimizerProcess(preparation.optimizer)
        process.add_grad_centralization(preparation.model, rule=self.config.compatibility.grad_centralization)
        preparation.optimizer = process.generate_new_optimizer()


def _is_centralized(parameter: Tensor, name: str, module: nn.Module) -> bool:
    if parameter.dim() < 2 or any(word in name for word in NEVER_CENTRALIZED):
        return False
    # torch calls the scale of a normalization "weight", so the name alone does not decide; its module's type does.
    if isinstance(module, NORMALIZATIONS) or getattr(module, "is_full_normalization", False):
        return False
    return not (isinstance(module, ConvNd) and module.groups > 1)
