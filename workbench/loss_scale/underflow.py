"""Underflow: how much of a gradient a float16 cannot hold at a given loss scale.

Computed from histograms of binary exponents, so any scale can be judged after the run. Bin ``i`` of a histogram with
first exponent ``lowest`` counts the elements with ``2**(lowest + i) <= abs(g) < 2**(lowest + i + 1)`` of the unscaled
gradient, as in `workbench.core.records.ExponentCounts`. Zeros and non-finite elements are in no bin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.records import ExponentCounts

Histogram: TypeAlias = ExponentCounts | dict[str, Any]
"""A record, or its fields by name, as the table of a run holds them."""

_MOST_BINS = 4096  # a float64 has 2098
_LOG2_SMALLEST = -24.0  # of the smallest positive float16: at most the nearest survives of what is below


@dataclass(frozen=True, slots=True)
class ExponentTable:
    """Elements per step and bin, shape ``[n_steps, n_bins]``; the first bin is for exponent ``lowest``."""

    lowest: int
    counts: NDArray[np.float64]

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts, dtype=np.float64)
        if counts.ndim != 2 or not np.all(counts >= 0.0):
            raise ValueError("`counts` must be a matrix [n_steps, n_bins] of numbers >= 0")
        object.__setattr__(self, "counts", counts)


def exponent_table(histograms: Sequence[Histogram | Sequence[Histogram]]) -> ExponentTable:
    """Lay the histograms of many steps over common bins; one empty bin when there is nothing in any.

    There is one histogram per step, or one sequence of histograms (its groups, which are added up) per step. Hundreds
    of thousands take a second. A ValueError if they lie too far apart to be those of numbers.
    """
    rows = [(entry,) if isinstance(entry, ExponentCounts | dict) else entry for entry in histograms]
    found = [asdict(one) if isinstance(one, ExponentCounts) else one for row in rows for one in row]
    sizes = np.array([len(one["counts"]) for one in found], dtype=np.int64)
    if not sizes.any():
        return ExponentTable(0, np.zeros((len(rows), 1)))
    first = np.array([one["lowest"] for one in found], dtype=np.int64)
    lowest = int(first[sizes > 0].min())
    n_bins = int((first + sizes)[sizes > 0].max()) - lowest
    if n_bins > _MOST_BINS:
        raise ValueError(
            f"`grad_exponents` must lie within {_MOST_BINS} binary exponents, got {n_bins}; the run is damaged"
        )
    counts = np.fromiter(chain.from_iterable(one["counts"] for one in found), np.float64, int(sizes.sum()))
    # The place of a histogram's first bin in the flat table, and how far each of its bins lies behind it.
    step, begins = np.repeat(np.arange(len(rows)), [len(row) for row in rows]), np.cumsum(sizes) - sizes
    place = np.repeat(step * n_bins + first - lowest - begins, sizes) + np.arange(len(counts))
    flat = np.bincount(place, weights=counts, minlength=len(rows) * n_bins)  # whole numbers: any order gives the same
    return ExponentTable(lowest, np.asarray(flat, dtype=np.float64).reshape(len(rows), n_bins))


def underflow_share(exponent_counts: ExponentTable, scale: ArrayLike) -> NDArray[np.float64]:
    """Return which share of each step's finite, non-zero gradient falls below float16 when multiplied by ``scale``.

    Exact for scales that are powers of two. In between, the elements of the bin that the limit cuts are taken as
    evenly spread over its octave. The scale in force, > 0, is a number, one per step ``[n_steps]``, or of any shape
    ``[..., n_steps]``, for example ``[n_policies, n_steps]``; shares have that shape, or ``[n_steps]``, and are NaN
    where a step has no such elements. Other scales are a ValueError.

    Example:
        >>> table = ExponentTable(lowest=-30, counts=np.array([[1, 0, 0, 0, 0, 0, 3]]))  # one 2**-30, three 2**-24
        >>> underflow_share(table, 1.0), underflow_share(table, 64.0)
        (array([0.25]), array([0.]))
    """
    counts = exponent_counts.counts
    n_steps, n_bins = counts.shape
    scales = np.asarray(scale, dtype=np.float64)
    if not np.all(scales > 0.0):
        raise ValueError("`scale` must be positive everywhere and not NaN")
    if scales.ndim and scales.shape[-1] not in {1, n_steps}:
        raise ValueError(f"the last axis of `scale` must have one entry per step ({n_steps}), got shape {scales.shape}")
    below = np.concatenate([np.zeros((n_steps, 1)), np.cumsum(counts, axis=1)], axis=1)
    step, total = np.arange(n_steps), below[:, -1]
    # log2 of limit and scale apart: their quotient may leave float64 where the difference does not.
    position = np.clip(_LOG2_SMALLEST - np.log2(scales) - exponent_counts.lowest, 0.0, n_bins)
    whole = np.floor(position).astype(np.int64)
    cut = np.minimum(whole + 1, n_bins)
    elements = below[step, whole] + (position - whole) * (below[step, cut] - below[step, whole])
    share: NDArray[np.float64] = np.full(elements.shape, np.nan)
    np.divide(elements, total, out=share, where=total > 0.0)
    return share
