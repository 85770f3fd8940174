"""One step of Adam on tensors in host memory, as the CPU's native fused kernel does it best.

Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, arXiv:1412.6980, section 2, last paragraph (the
order of computation that is more efficient), in the form of MindSpore 2.7.0
(``mindspore/python/mindspore/nn/optim/adam.py``, ``AdamOffload``). With weights w, step t = 1, 2, ..., loss scale S::

    g = (gradient + decay * S * w) / S
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    l = learning_rate * sqrt(1 - beta2 ** t) / (1 - beta1 ** t)
    w = w - l * m / (sqrt(v) + eps)              # nesterov: beta1 * m + (1 - beta1) * g in place of m

``torch.optim.Adam`` divides sqrt(v) by sqrt(1 - beta2 ** t) before it adds eps; here eps is not corrected.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from workbench.core import kernels

__all__ = ["adam_step_", "corrected_rate", "kernel_settings"]

# The kernel of torch corrects the bias itself, by a count of steps that it is given. beta ** inf = 0, so nothing is
# corrected at an endless count: the kernel then computes the last line above, in that order, with the l it is given.
_ENDLESS = torch.tensor(math.inf, device="cpu")


def corrected_rate(learning_rate: float, beta1: float, beta2: float, step: float) -> float:
    """Return l, the learning rate with both bias corrections in it.

    Args:
        learning_rate: Learning rate, >= 0.
        beta1: Decay rate of the first moment, in (0, 1).
        beta2: Decay rate of the second moment, in (0, 1).
        step: t, counted from 1.
    """
    return learning_rate * math.sqrt(1.0 - math.pow(beta2, step)) / (1.0 - math.pow(beta1, step))


def adam_step_(
    weights: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    *,
    rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float = 0.0,
    loss_scale: float = 1.0,
    nesterov: bool = False,
    before: kernels.Lasting | None = None,
) -> kernels.Lasting | None:
    """Update weights and moments in place; gradients are left as they are. Call it under ``torch.no_grad``.

    Args:
        weights: Dense float32 or float64 tensors on the CPU, all of one dtype.
        gradients: One per weight, with its shape, strides and dtype (the kernel goes through memory and looks at
            neither shape nor strides).
        first: First moments m, likewise.
        second: Second moments v, likewise.
        rate: What :func:`corrected_rate` returns.
        betas: Decay rates of the moments.
        eps: Added to the denominator, > 0.
        weight_decay: L2 coefficient, added to the gradient.
        loss_scale: S, > 0.
        nesterov: Whether the step looks ahead.
        before: What the step before has returned; it saves looking at the same tensors again.

    Returns:
        What the next step may be given; None where no kernel of our own took this one.
    """
    if loss_scale == 1.0 and not nesterov:
        lists = kernels.adam_lists(weights, gradients, first, second, before=before)
        if lists is not None:
            kernels.adam_(lists, kernel_settings(rate, betas, eps, weight_decay))
            return lists.lasting
    if loss_scale != 1.0 or (nesterov and weight_decay != 0.0):
        if weight_decay != 0.0:
            gradients = list(torch._foreach_add(gradients, weights, alpha=weight_decay * loss_scale))
            weight_decay = 0.0
        if loss_scale != 1.0:
            gradients = list(torch._foreach_div(gradients, loss_scale))
    if nesterov:
        # m' towards g by 1 - beta1 once more is what nesterov puts in the place of m', so the kernel may do that.
        torch._foreach_lerp_(first, gradients, 1.0 - betas[0])
        first = [moment.clone() for moment in first]
    torch._fused_adam_(
        weights,
        gradients,
        first,
        second,
        [],
        [_ENDLESS] * len(weights),
        lr=rate,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )
    return None


def kernel_settings(rate: float, betas: tuple[float, float], eps: float, weight_decay: float) -> kernels.AdamSettings:
    """Return the formula above, at loss scale 1 and without nesterov, as our own kernels take it.

    Args:
        rate: What :func:`corrected_rate` returns.
        betas: Decay rates of the moments.
        eps: Added to the denominator, > 0.
        weight_decay: L2 coefficient, added to the gradient.
    """
    return kernels.AdamSettings(
        first_weight=1.0 - betas[0],
        beta2=betas[1],
        second_weight=1.0 - betas[1],
        correction=1.0,
        eps=eps,
        step=rate,
        decay=weight_decay,
        shrink=1.0,
        sign=1.0,
    )
