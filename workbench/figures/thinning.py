"""Fewer points with the same look: traces of a million steps in a few thousand points.

Steinarsson, "Downsampling Time Series for Visual Representation", 2013 (LTTB), on candidates preselected by
minimum and maximum per bucket (Van Der Donckt et al., "MinMaxLTTB", 2023, arXiv:2305.00332), as implemented by
tsdownsample. What a reader looks for in a training trace is the spike, so extremes survive by construction.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from tsdownsample import MinMaxLTTBDownsampler

MAXIMUM_POINTS = 4000
MAXIMUM_MARKS = 4000

Indices: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


class Line(NamedTuple):
    """Steps, or other positions, and the values at them."""

    x: Floats
    y: Floats


def thin_line(x: Floats, y: Floats, limit: int) -> Line:
    """Return a line of at most ``limit`` points with the same look; values that are not finite are left out."""
    chosen = thin_indices(x, y, limit)
    return Line(x[chosen], y[chosen])


def thin_stairs(x: Floats, y: Floats, limit: int) -> Line:
    """Return a staircase of at most ``limit`` points: its corners alone if they fit, which draws it exactly."""
    chosen: Indices = np.flatnonzero(np.isfinite(y))
    if chosen.size > limit:
        corners = np.flatnonzero(np.diff(y[chosen]) != 0) + 1
        exact = np.unique(np.concatenate([[0], corners, [chosen.size - 1]]))
        chosen = chosen[exact] if exact.size <= limit else thin_indices(x, y, limit)
    return Line(x[chosen], y[chosen])


def thin_indices(x: npt.ArrayLike, y: npt.ArrayLike, limit: int = MAXIMUM_POINTS) -> Indices:
    """Return at most ``limit`` (at least 3) rising positions ``[m]`` that keep the look of a line ``[n]``.

    Values that are not finite are left out; the first and the last finite one always stay. ``x`` must not decrease.
    """
    if limit < 3:
        raise ValueError(f"`limit` must be at least 3, got {limit}")
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if xs.shape != ys.shape:
        raise ValueError(f"`x` and `y` must have equal lengths, got {xs.shape} and {ys.shape}")
    finite = np.flatnonzero(np.isfinite(ys))
    if finite.size <= limit:
        return finite
    # The downsampler wants contiguous memory, and pandas hands out read-only views of column blocks.
    downsample = MinMaxLTTBDownsampler().downsample  # type: ignore[no-untyped-call]  # ships no annotations
    chosen = downsample(np.ascontiguousarray(xs[finite]), np.ascontiguousarray(ys[finite]), n_out=limit)
    picked: Indices = finite[np.asarray(chosen, dtype=np.int64)]
    return picked


def thin_marks(indices: npt.NDArray[Any], limit: int = MAXIMUM_MARKS) -> Indices:
    """Keep all marks while a reader could tell them apart, else an even choice that keeps the first and last."""
    marks = np.asarray(indices, dtype=np.int64)
    if marks.size <= limit:
        return marks
    return marks[np.linspace(0, marks.size - 1, limit).astype(np.int64)]


def bin_edges(n: int, limit: int) -> Indices:
    """Cut ``n`` columns into at most ``limit`` even, non-empty bins; returns the ``m + 1`` rising edges."""
    return np.unique(np.linspace(0, n, min(n, limit) + 1).astype(np.int64))
