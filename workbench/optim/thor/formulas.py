"""THOR's formulas around its factors: their rules and damping, LayerNorm's diagonal, the bound on a step, momentum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from workbench.core.arguments import checked_count, checked_number
from workbench.optim.thor.collection import Convention

DampingSplit = Literal["trace", "even"]

# What None stands for in `FactorRules`. Of 13 settings tried on digits-autoencoder, digits-lenet and digits-resnet this
# decay and bound trained well on all three. Without a floor, damping that decays by 0.95 per refresh left the target of
# digits-autoencoder again within 2000 steps (errors of 2 to 3000 after 0.45); with 0.3 on two of four seeds, with 1 on
# none.
_USUAL: dict[Convention, dict[str, Any]] = {
    "default": {"damping_split": "trace", "damping_floor": 1.0, "factor_decay": 0.8, "kl_clip": 0.001},
    "mindspore": {"damping_split": "even", "damping_floor": 0.0, "factor_decay": 0.0, "kl_clip": math.inf},
}


@dataclass(slots=True)
class FactorRules:
    """How factors are formed, when, and how they are used: the arguments of `Thor` of these names, checked.

    ``damping_split`` says how d is shared by both factors. ``"even"``: sqrt(d) on both sides; ``"trace"``: sqrt(d)
    times pi on A and over pi on G, pi being the root of the quotient of their mean eigenvalues, so that what counts is
    d against the curvature. ``damping_floor`` is a layer's smallest damping in units of its mean curvature
    ``tr(A) tr(G) / (inputs outputs)``; ``kl_clip`` is infinite where steps have no bound. None for one of these three,
    or for ``factor_decay``, is our own choice with our own factors and what the reference does with the reference's.
    """

    factors: Convention
    frequency: int
    block_size: int
    batch_size: int
    split_indices: Sequence[int] | None
    damping_split: DampingSplit | None
    damping_floor: float | None
    factor_decay: float | None
    trace_threshold: float | None
    max_rows: int | None
    kl_clip: float | None

    def __post_init__(self) -> None:
        if self.factors not in ("default", "mindspore"):
            raise ValueError(f'`factors` must be "default" or "mindspore", got {self.factors!r}')
        if self.damping_split not in (None, "trace", "even"):
            raise ValueError(f'`damping_split` must be "trace" or "even", got {self.damping_split!r}')
        checked_count("frequency", self.frequency, 2)
        checked_count("block_size", self.block_size)
        checked_count("batch_size", self.batch_size)
        if self.max_rows is not None:
            checked_count("max_rows", self.max_rows)
        if self.trace_threshold is not None:
            checked_number("trace_threshold", self.trace_threshold)
        if self.split_indices is not None:
            if not isinstance(self.split_indices, list | tuple):
                came = type(self.split_indices).__name__
                raise TypeError(f"`split_indices` must be a list or tuple of layer numbers, got {came}")
            indices = [checked_count("split_indices", entry, 0) for entry in self.split_indices]
            if any(later <= earlier for earlier, later in itertools.pairwise(indices)):
                raise ValueError(f"`split_indices` must rise, got {indices}")
        for name, usual in _USUAL[self.factors].items():
            if getattr(self, name) is None:
                setattr(self, name, usual)
        checked_number("damping_floor", self.damping_floor)
        checked_number("factor_decay", self.factor_decay, below=1.0)
        if self.kl_clip != math.inf:
            self.kl_clip = checked_number("kl_clip", self.kl_clip, above=0.0)


def split_damping(
    root: Tensor, means: tuple[Tensor, Tensor], norms: tuple[Tensor, Tensor], rules: FactorRules
) -> tuple[Tensor, Tensor]:
    """Return what is added to the diagonals of A and of G; all vectors are over layers.

    Args:
        root: Of the damping d.
        means: Mean eigenvalues of A and of G; an infinite or NaN one leaves the layer's root as it is.
        norms: The `FactoredLayer.norms` of A and of G.
        rules: How the damping is split, and its floor.
    """
    a_mean, g_mean = means
    finite = torch.isfinite(a_mean) & torch.isfinite(g_mean)
    if rules.damping_floor:
        floor = (a_mean * g_mean * rules.damping_floor).sqrt()
        root = torch.where(finite, torch.maximum(root, floor), root)
    if rules.damping_split == "even":
        return root / norms[0].sqrt(), root / norms[1].sqrt()
    tiny = torch.finfo(root.dtype).tiny
    # A layer that got no gradient has G = 0; its share is left even.
    both = (a_mean > tiny) & (g_mean > tiny) & finite
    share = torch.where(both, (a_mean / g_mean.clamp_min(tiny)).sqrt(), torch.ones_like(root))
    return root * share, root / share


@dataclass(slots=True)
class Batch:
    """Parameters that are updated by one call."""

    group: dict[str, Any]
    decay: float
    fused: bool
    parameters: list[Tensor]
    gradients: list[Tensor]
    buffers: list[Tensor]

    def scale_normalizations(self, normalizations: Collection[int], batch_size: int) -> None:
        """Precondition the parameters of LayerNorms, which are given by their ids."""
        chosen = [i for i, p in enumerate(self.parameters) if id(p) in normalizations] if normalizations else []
        if not chosen:
            return
        gradients = [self.gradients[i] for i in chosen]
        denominators = torch._foreach_mul(gradients, gradients)
        torch._foreach_div_(denominators, float(batch_size))
        torch._foreach_add_(denominators, float(self.group["damping"]) ** 0.5)
        for i, gradient in zip(chosen, torch._foreach_div(gradients, denominators), strict=True):
            self.gradients[i] = gradient

    def take_step(self, found_inf: Tensor | None, *, clips: bool) -> None:
        """Move the weights, unless ``found_inf`` is not 0; with ``clips`` no tensor's step is longer than 1."""
        gradients, decay, group = self.gradients, self.decay, self.group
        if clips:
            if decay:
                gradients = list(torch._foreach_add(gradients, self.parameters, alpha=decay))
                decay = 0.0
            norms = torch._foreach_norm(gradients)
            torch._foreach_clamp_min_(norms, 1.0)
            gradients = list(torch._foreach_div(gradients, norms))
        if not self.fused and found_inf is not None and found_inf.item() != 0:
            return  # where there is no kernel that reads the flag the host has to
        sgd(
            self.parameters,
            gradients,
            cast("list[Tensor | None]", self.buffers or [None] * len(gradients)),
            fused=self.fused,
            foreach=not self.fused,
            found_inf=found_inf if self.fused else None,
            weight_decay=float(decay),
            momentum=float(group["momentum"]),
            lr=float(group["lr"]),
            dampening=0.0,
            nesterov=bool(group["nesterov"]),
            maximize=False,
        )


def clip_by_curvature_(steps: list[Tensor], gradients: list[Tensor], bound: float, rate: float) -> None:
    """Shorten preconditioned gradients so that ``rate^2`` times their inner product with the gradients is in bounds."""
    products = torch.stack([_inner_product(*pair) for pair in zip(steps, gradients, strict=True)])
    length = products.sum().clamp_min(torch.finfo(products.dtype).tiny) * rate**2
    torch._foreach_mul_(steps, (bound / length).sqrt().clamp_max(1.0))


def _inner_product(first: Tensor, second: Tensor) -> Tensor:
    if first.dtype in (torch.float16, torch.bfloat16):
        first, second = first.float(), second.float()
    if first.stride() != second.stride():
        return (first * second).sum()
    return torch.dot(first.reshape(-1), second.reshape(-1))  # without a copy of either
