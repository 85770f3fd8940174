"""Scale groups found automatically: which parts of a network may share a loss scale, and how large it should be.

A part is described by the histogram of the binary exponents of its unscaled gradients. Float16 holds 11 significant
bits between 2**-14 and 2**16, fewer down to 2**-24 and nothing below. A group's scale lifts the largest gradient of
its parts to a fixed height, so a part loses the more bits the higher its group reaches. Sorted by their largest
gradient, the parts of the best groups are therefore neighbours, and dynamic programming finds the optimum.

The scale of Micikevicius et al., "Mixed Precision Training", ICLR 2018, arXiv:1710.03740, section 3.2 ("choose a value
such that its product with the maximum absolute gradient value is below 65504"), for several groups at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from workbench.loss_scale.underflow import ExponentTable

HEADROOM_BITS = 4
"""Powers of two that are left free above the largest gradient: those of later batches may be larger."""

_LARGEST_EXPONENT = 15  # of float16: the largest is 65504 = 2**15 * 1.999
_SMALLEST_NORMAL = -14
_SIGNIFICANT_BITS = 11
_LARGEST_POWER = 100  # of a scale: it and its reciprocal have to stay normal in float32, with room to grow
# A part that lies low in its group is the first to underflow when gradients shrink during training. Float16 has 40
# octaves; up to 8 below the largest cost nothing, because the layers of any ordinary net differ that much, and each
# border between two groups costs time.
_FREE_OCTAVES = 8
_LOSS_PER_OCTAVE = 0.01
# A group more has to save as much as a part that is 5 octaves closer to the largest of its group.
_LOSS_PER_GROUP = 0.05


@dataclass(frozen=True, slots=True)
class ScaleGroup:
    """Parts of a network that share a loss scale."""

    members: tuple[int, ...]  # indices, ascending
    scale: float  # a power of two; below 1 where gradients are larger than float16 allows


def find_scale_groups(exponents: ExponentTable, limit: int) -> tuple[ScaleGroup, ...]:
    """Divide the parts of a network into at most ``limit`` groups with a scale each, so that float16 loses least.

    Minimised is the sum over the parts of the share of significant bits lost (`significand_loss`), plus 0.01 for each
    octave beyond the eighth that the part lies below the largest of its group, plus 0.05 for each group. A part (row)
    without gradients joins the group of the part before it (or the first behind it) that has some.
    """
    counts = exponents.counts
    n_parts, n_bins = counts.shape
    if limit < 1:
        raise ValueError(f"`limit` must be at least 1 group, got {limit}")
    if n_parts == 0:
        raise ValueError("`exponents` must have a row per part, got none")
    filled = np.flatnonzero(counts.sum(axis=1) > 0)
    if filled.size == 0:
        return (ScaleGroup(tuple(range(n_parts)), 1.0),)
    top = np.full(n_parts, -1)
    top[filled] = n_bins - 1 - np.argmax(counts[filled, ::-1] > 0, axis=1)
    order = filled[np.argsort(top[filled], kind="stable")]  # ascending: the last of a segment reaches highest
    height = _LARGEST_EXPONENT - HEADROOM_BITS
    exponent = exponents.lowest + np.arange(n_bins)
    below = np.maximum.accumulate(top[order])
    # loss[i, j]: what the parts order[i..j] lose as one group.
    n = len(order)
    loss = np.full((n, n), math.inf)
    for j in range(n):
        scaled = exponent - (exponents.lowest + int(below[j])) + height
        inside = counts[order[: j + 1]]
        shares = inside @ significand_loss(scaled) / inside.sum(axis=1)
        shares += _LOSS_PER_OCTAVE * np.maximum(below[j] - below[: j + 1] - _FREE_OCTAVES, 0)
        loss[: j + 1, j] = np.cumsum(shares[::-1])[::-1]

    @cache
    def best(end: int, groups: int) -> tuple[float, int]:
        """Return the least loss of the first ``end`` parts in that many groups, and where the last one begins."""
        if groups == 1:
            return float(loss[0, end - 1]), 0
        options = [(best(start, groups - 1)[0] + float(loss[start, end - 1]), start) for start in range(1, end)]
        return min(options, default=(math.inf, 0))

    n_groups = min(range(1, min(limit, n) + 1), key=lambda groups: best(n, groups)[0] + _LOSS_PER_GROUP * groups)
    group_of = np.full(n_parts, -1)
    scales: list[float] = []
    end = n
    for groups in range(n_groups, 0, -1):
        start = best(end, groups)[1]
        group_of[order[start:end]] = len(scales)
        power = height - exponents.lowest - int(below[end - 1])
        scales.append(2.0 ** min(max(power, -_LARGEST_POWER), _LARGEST_POWER))
        end = start
    for part in range(n_parts):
        if group_of[part] < 0:
            group_of[part] = group_of[part - 1] if part else group_of[filled[0]]
    found = (ScaleGroup(tuple(np.flatnonzero(group_of == g).tolist()), scale) for g, scale in enumerate(scales))
    return tuple(sorted(found, key=lambda group: group.members[0]))


def significand_loss(scaled_exponents: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
    """Return which share of its 11 significant bits a number of that scaled binary exponent loses in float16."""
    lost = _SMALLEST_NORMAL - np.asarray(scaled_exponents, dtype=np.int64)
    share: NDArray[np.float64] = np.clip(lost, 0, _SIGNIFICANT_BITS) / _SIGNIFICANT_BITS
    return share
