"""Gradient centralization: the gradient of each output unit's weights is made to have zero mean.

Yong, Huang, Hua, Zhang, "Gradient Centralization: A New Optimization Technique for Deep Neural Networks", ECCV 2020,
arXiv:2004.01461, equation (1). Here the mean over all axes but the first is subtracted, and, as in MindSpore 2.7.0
(``mindspore/python/mindspore/nn/optim/optimizer.py``), from the gradient AFTER an L2 weight decay was added to it.

With gradient g, weight w and decay λ the optimizer should see  u - mean(u),  u = g + λ w.  torch optimizers add λ w
themselves, so we hand them  g - mean(g + λ w),  and the mean is linear: mean(g) + λ mean(w), no temporary of the
weights' size. Linearity is also why a loss scale does not matter: centralizing and dividing by a scale may be done in
either order, so gradients are unscaled first here. An optimizer with decoupled decay (AdamW) does not add λ w to the
gradient, so only mean(g) is subtracted there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

__all__ = ["centralize_", "decays_decoupled", "is_centralizable", "register_centralization"]

CentralizationRule = Literal["every_weight", "multiple_of_16"]

LANES = 16  # the second dimension the Ascend primitive requires a multiple of


def is_centralizable(shape: Sequence[int], rule: CentralizationRule = "every_weight") -> bool:
    """Return whether a gradient of this shape is centralized.

    Args:
        shape: Shape ``[out, ...]``; a vector has no axes to average over.
        rule: ``"multiple_of_16"`` keeps the reference's hardware restriction, under which a gradient whose second
            dimension is not a multiple of 16 is silently left alone.
    """
    if len(shape) < 2:
        return False
    return rule == "every_weight" or shape[1] % LANES == 0


def centralize_(
    gradients: Sequence[Tensor],
    weights: Sequence[Tensor] | None = None,
    weight_decay: float | Tensor = 0.0,
    *,
    maximize: bool = False,
) -> None:
    """Subtract mean(gradient + weight_decay * weight) over all axes but the first from each gradient, in place.

    Args:
        gradients: Gradients of shape ``[out, ...]`` with at least two axes.
        weights: Their weights, same shapes; needed only with a ``weight_decay``.
        weight_decay: L2 decay that the optimizer will add to the gradient; 0 for decoupled decay.
        maximize: Whether the optimizer turns the gradient's sign before it adds the decay.
    """
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
    """Return whether a group's weight decay acts on the weights directly instead of through the gradient.

    Known: AdamW, Adafactor, Muon, and every optimizer whose group or class says ``decoupled_weight_decay``. Others are
    taken to add the decay to the gradient, as SGD and Adam do.
    """
    said = group.get("decoupled_weight_decay", getattr(optimizer, "decoupled_weight_decay", None))
    if said is not None:
        return bool(said)
    return type(optimizer).__name__ in {"AdamW", "Adafactor", "Muon"}


def register_centralization(
    optimizer: torch.optim.Optimizer, rule: CentralizationRule = "every_weight"
) -> RemovableHandle:
    """Centralize, before every step of the optimizer, the gradients of groups flagged ``grad_centralization``.

    Flag groups with ``{"params": ..., "grad_centralization": True}``;
    :class:`~workbench.methods.grad_centralization.optimizer_process.OptimizerProcess` does so. Gradients must be
    unscaled by then. Vectors and sparse gradients are left alone. ``copy.deepcopy`` of a torch optimizer drops hooks:
    register again.

    Args:
        optimizer: The optimizer that will be stepped (not one that freezes: register before wrapping it).
        rule: Which gradients, see :func:`is_centralizable`.

    Returns:
        A handle whose ``remove()`` ends it.

    Raises:
        TypeError: When ``optimizer`` is no torch optimizer, or one that freezes.
        ValueError: When the rule is unknown.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"`optimizer` must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if hasattr(optimizer, "active_optimizer"):
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
            weights = [
                p
                for p in group["params"]
                if p.grad is not None and not p.grad.is_sparse and is_centralizable(p.shape, self.rule)
            ]
            decay = 0.0 if decays_decoupled(optimizer, group) else group.get("weight_decay", 0.0)
            centralize_(
                [p.grad for p in weights],
                weights,
                decay if scale is None else decay * scale,
                maximize=group.get("maximize", False),
            )
