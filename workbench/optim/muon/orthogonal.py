"""The nearest orthogonal matrix, roughly and fast: a few odd polynomials of the singular values.

A *batch of matrices* has shape ``[batch, rows, columns]`` with ``rows <= columns``. An odd polynomial
``p(x) = a x + b x^3 + c x^5`` acts on the singular values of X by products alone, ``(a I + b A + c A^2) X`` with the
Gram matrix ``A = X X'``. A chain that lifts every value of [reach, 1] into [0.8, 1.2] makes X almost orthogonal.

* Of all chains the best is the greedy one: each polynomial is the minimax one on the interval that its predecessor
  leaves (Amsel, Persson, Musco and Gower, "The Polar Express", 2025, arXiv:2505.16932, theorem 4.1). `polynomials`
  computes it for a number of steps, with the smallest reach that ends within 0.2 of 1: 0.013 for 3 steps, 0.0008 for
  5. The five equal polynomials of Jordan (2024) reach 0.0015.
* Before the first step X is divided by a bound on its largest singular value. Frobenius' norm is one, but in a matrix
  of 64 equal values it is 8 times too large, which takes a whole step to make good. ``A^2`` is computed anyway, and the
  fourth root of its norm is at most 1.7 times too large.
* Oblong matrices iterate on A, not on X: ``A <- S A S`` with ``S = a I + b A + c A^2``, and the product of all S is
  applied to X at the end. In float32 the rounding of A is lifted, too: up to six steps that stays below 0.002 on
  matrices of low rank, with eight the product explodes. Beyond six, and in bfloat16, it is X that is iterated on.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

RIPPLE = 0.2
"""How far singular values within reach may end from 1."""

_SAFETY = 1.01
"""Share by which rounding, in bfloat16 that of products, may exceed an interval; beyond it polynomials shoot up."""

_OBLONG = 2.0
"""Columns per row from which iterating on the Gram matrix is faster: 1.4 times at 3, 2.4 times at 9 (64 rows, CPU)."""

_STEPS_ON_GRAM = {torch.float32: 6, torch.float64: 12}
"""Most steps for which rounding leaves the Gram matrix right, by number format."""

Polynomial = tuple[float, float, float]


@functools.cache
def polynomials(steps: int) -> tuple[Polynomial, ...]:
    """Return the coefficients (a, b, c) of each step's polynomial."""
    return _chain(reach(steps), steps)[0]


@functools.cache
def reach(steps: int) -> float:
    """Return the smallest singular value, relative to the bound on the largest, that ends within 0.2 of 1."""
    low, high = -40.0, -0.1  # logarithms
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _chain(math.exp(middle), steps)[1] > RIPPLE else (low, middle)
    return math.exp(high)


def orthogonalised(matrices: Tensor, steps: int) -> Tensor:
    """Return a batch of finite matrices with the singular vectors of the given ones and singular values near 1.

    Values above `reach` (of a bound on the largest) lie in [0.8, 1.2], smaller ones are lifted less, zeros stay zeros.
    """
    rows, columns = matrices.shape[-2:]
    # Fourth powers of small gradients would vanish, hence two norms; below 1e-30 or so a matrix counts as zero.
    matrices = matrices / torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True).clamp_min(1e-22)
    gram = torch.bmm(matrices, matrices.mT)
    square = torch.bmm(gram, gram)
    bound = _SAFETY**2 * torch.linalg.vector_norm(square, dim=(-2, -1), keepdim=True).sqrt().clamp_min(1e-12)
    shrink = bound.rsqrt()
    gram, square = gram / bound, square / bound.square()
    on_gram = columns >= _OBLONG * rows and steps <= _STEPS_ON_GRAM.get(matrices.dtype, 0)
    (a, b, c), *others = polynomials(steps)
    inner = b * gram + c * square  # S without its multiple of I
    if not on_gram:
        matrices = matrices * shrink
        matrices = torch.baddbmm(matrices, inner, matrices, beta=a)
        for a, b, c in others:
            gram = torch.bmm(matrices, matrices.mT)
            inner = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            matrices = torch.baddbmm(matrices, inner, matrices, beta=a)
        return matrices
    product = inner.clone()
    product.diagonal(dim1=-2, dim2=-1).add_(a)
    for later in others:
        half = torch.baddbmm(gram, inner, gram, beta=a)
        gram = torch.baddbmm(half, half, inner, beta=a)
        a, b, c = later
        inner = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        product = torch.baddbmm(product, inner, product, beta=a)
    return torch.bmm(product * shrink, matrices)


def _chain(lowest: float, steps: int) -> tuple[tuple[Polynomial, ...], float]:
    """Return the best polynomials for singular values in [lowest, 1], and how far from 1 they may end."""
    found, low, high, error = [], lowest, 1.0, 1.0
    for _ in range(steps):
        polynomial, error = _minimax(low, high)
        found.append(polynomial)
        low, high = (1 - error) / _SAFETY, (1 + error) * _SAFETY
    return tuple(found), error


def _minimax(low: float, high: float) -> tuple[Polynomial, float]:
    """Return the odd polynomial of degree 5 that is nearest to 1 on an interval, and its largest distance (Remez)."""
    inner = ((3 * low + high) / 4, (low + 3 * high) / 4)
    while True:
        # Three coefficients and the error: four points at which the distance is the same with alternating signs.
        points = np.array((low, *inner, high))
        system = np.stack([points, points**3, points**5, np.array((1.0, -1.0, 1.0, -1.0))], axis=1)
        a, b, c, error = (float(one) for one in np.linalg.solve(system, np.ones(4)))
        root = math.sqrt(max(9 * b * b - 20 * a * c, 0.0))
        extrema = math.sqrt((-3 * b - root) / (10 * c)), math.sqrt((-3 * b + root) / (10 * c))
        if max(abs(new - old) for new, old in zip(extrema, inner, strict=True)) < 1e-12 * high:
            return (a, b, c), error
        inner = extrema
