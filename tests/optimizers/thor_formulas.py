"""THOR by its formulas, layer by layer: what the optimizer, which takes all layers at once, is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from workbench.optim.thor.matrices import FactorBlocks, block_ranges

__all__ = ["block_inverse", "dense", "embedding_step", "layer_norm_step", "precondition"]


def block_inverse(factor: Tensor, damping: float, block_size: int = 128) -> Tensor:
    """Return the inverse of a factor's diagonal blocks, ``[n, n]``, with ``damping`` (a root) added to the diagonal."""
    return _by_block(factor, damping, block_size, torch.cholesky_inverse)


def _by_block(factor: Tensor, damping: float, block_size: int, inverted: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what a function makes of the Cholesky factor of each damped block."""
    result = torch.zeros_like(factor)
    for begin, end in block_ranges(len(factor), block_size):
        block = factor[begin:end, begin:end].clone()
        block.diagonal().add_(damping)
        result[begin:end, begin:end] = inverted(torch.linalg.cholesky(block))
    return result


def dense(blocks: FactorBlocks, factor: int, of: dict[int, Tensor]) -> Tensor:
    """Return a factor, or its inverse, as one block diagonal matrix."""
    whole = of[next(iter(of))].new_zeros(blocks.sizes[factor], blocks.sizes[factor])
    for begin, end, view in blocks.views(factor, of):
        whole[begin:end, begin:end] = view
    return whole


def precondition(gradient: Tensor, a_inverse: Tensor, g_inverse: Tensor) -> Tensor:
    """Return ``G^-1 dW A^-1`` in the shape of the gradient, ``[out, ...]``."""
    natural: Tensor = g_inverse @ gradient.flatten(1) @ a_inverse
    return natural.view_as(gradient)


def embedding_step(
    gradient: Tensor,
    counts: Tensor,
    g_factor: Tensor,
    damping: float,
    batch_size: int,
    *,
    product: Literal["inverse", "reference"] = "inverse",
    block_size: int = 128,
) -> Tensor:
    """Return the preconditioned gradient of a table, ``[tokens, features]``, whose A is a diagonal of counts.

    ``"reference"`` is what MindSpore 2.7 multiplies on a GPU: L^-1 L^-1 with the Cholesky factor L of ``g_factor``,
    where the inverse is L^-T L^-1.
    """
    root, is_reference = math.sqrt(damping), product == "reference"
    inverted = (lambda half: half.inverse() @ half.inverse()) if is_reference else torch.cholesky_inverse
    return gradient / (counts / batch_size + root)[:, None] @ _by_block(g_factor, root, block_size, inverted)


def layer_norm_step(gradient: Tensor, damping: float, batch_size: int) -> Tensor:
    """Return ``g / (g^2 / b + sqrt(d))``: the curvature of a LayerNorm's parameters is taken as a diagonal."""
    denominator: Tensor = gradient.square() / batch_size + math.sqrt(damping)
    return gradient / denominator
