"""THOR after its factors: LayerNorm's diagonal, the bound on a step's length, and momentum by torch's own kernels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.sgd import sgd


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
