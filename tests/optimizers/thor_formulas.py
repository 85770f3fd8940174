"""THOR by its formulas, layer by layer: what the optimizer, which takes all layers at once, is compared with."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from workbench.optim.thor.matrices import FactorBlocks, block_ranges

__all__ = ["block_inverse", "dense", "embedding_step", "layer_norm_step", "precondition"]


def block_inverse(factor: Tensor, damping: float, block_size: int = 128) -> Tensor:
    """Return the inverse of a factor's diagonal blocks with ``damping`` added to the diagonal.

    Args:
        factor: Symmetric, positive semi-definite, shape ``[n, n]``.
        damping: Added to the diagonal, >= 0; what the optimizer calls damping enters as its root.
        block_size: Rows of a block.

    Returns:
        Block diagonal matrix, shape ``[n, n]``.

    Raises:
        torch.linalg.LinAlgError: When a damped block is not positive definite.
    """
    inverse = torch.zeros_like(factor)
    for begin, end in block_ranges(len(factor), block_size):
        block = factor[begin:end, begin:end].clone()
        block.diagonal().add_(damping)
        inverse[begin:end, begin:end] = torch.cholesky_inverse(torch.linalg.cholesky(block))
    return inverse


def dense(blocks: FactorBlocks, factor: int, of: dict[int, Tensor]) -> Tensor:
    """Return a factor, or its inverse, as one block diagonal matrix."""
    whole = of[next(iter(of))].new_zeros(blocks.sizes[factor], blocks.sizes[factor])
    for begin, end, view in blocks.views(factor, of):
        whole[begin:end, begin:end] = view
    return whole


def precondition(gradient: Tensor, a_inverse: Tensor, g_inverse: Tensor) -> Tensor:
    """Return ``G^-1 dW A^-1`` in the shape of the gradient.

    Args:
        gradient: Of a weight, shape ``[out, ...]``.
        a_inverse: Shape ``[in, in]``, ``in`` being the product of the other axes.
        g_inverse: Shape ``[out, out]``.
    """
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
    """Return the preconditioned gradient of an embedding table, whose input factor is a diagonal of token counts.

    Args:
        gradient: Shape ``[tokens, features]``.
        counts: How often each token occurred, shape ``[tokens]``.
        g_factor: Covariance of the output gradients, shape ``[features, features]``.
        damping: d; its root is added on both sides.
        batch_size: Divides the counts.
        product: ``"inverse"``, or ``"reference"`` for what MindSpore 2.7 multiplies on a GPU: L^-1 L^-1 with the
            Cholesky factor L, where the inverse is L^-T L^-1.
        block_size: Rows of a block.
    """
    root = math.sqrt(damping)
    if product == "inverse":
        right = block_inverse(g_factor, root, block_size)
    else:
        right = reference_product(g_factor, root, block_size)
    return gradient / (counts / batch_size + root)[:, None] @ right


def reference_product(factor: Tensor, damping: float, block_size: int = 128) -> Tensor:
    """Return per block L^-1 L^-1 of the damped factor, L lower triangular: the reference's slip for embeddings."""
    result = torch.zeros_like(factor)
    for begin, end in block_ranges(len(factor), block_size):
        block = factor[begin:end, begin:end].clone()
        block.diagonal().add_(damping)
        half = torch.linalg.cholesky(block).inverse()
        result[begin:end, begin:end] = half @ half
    return result


def layer_norm_step(gradient: Tensor, damping: float, batch_size: int) -> Tensor:
    """Return ``g / (g^2 / b + sqrt(d))``: the curvature of a LayerNorm's parameters is taken as a diagonal.

    Args:
        gradient: Of the scale or the shift, any shape.
        damping: d.
        batch_size: b.
    """
    denominator: Tensor = gradient.square() / batch_size + math.sqrt(damping)
    return gradient / denominator
