"""Thinning keeps what a reader looks for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.figures.thinning import bin_edges, thin_indices, thin_marks, thin_stairs


def test_a_single_spike_among_a_million_survives() -> None:
    y = np.sin(np.arange(1_000_000) / 1e5)
    y[654_321] = 50.0
    chosen = thin_indices(np.arange(1_000_000), y, 4000)
    assert chosen.size <= 4000
    assert {0, 654_321, 999_999} <= set(chosen)
    assert (np.diff(chosen) > 0).all()


def test_a_short_trace_is_kept_whole_but_for_values_that_are_not_finite() -> None:
    assert thin_indices(np.arange(10), np.arange(10.0), 10).tolist() == list(range(10))
    y = np.array([1.0, np.nan, np.inf, 2.0])
    assert thin_indices(np.arange(4), y).tolist() == [0, 3]
    y = np.where(np.arange(10_000) % 3 == 0, np.nan, np.arange(10_000.0))
    assert np.isfinite(y[thin_indices(np.arange(10_000), y, 100)]).all()


def test_a_read_only_array_can_be_thinned() -> None:
    y = np.arange(10_000.0)
    y.setflags(write=False)
    assert thin_indices(y, y, 100).size <= 100


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="`limit` must be at least 3, got 2"):
        thin_indices([1.0], [1.0], 2)
    with pytest.raises(ValueError, match="equal lengths"):
        thin_indices([1.0, 2.0], [1.0])


def test_all_marks_stay_while_they_fit_and_the_ends_stay_always() -> None:
    marks = np.arange(0, 4000, 2)
    assert thin_marks(marks, 4000).tolist() == marks.tolist()
    few = thin_marks(marks, 10)
    assert (few.size, few[0], few[-1]) == (10, 0, 3998)


@given(n=st.integers(0, 5000), limit=st.integers(1, 600))
def test_bins_cover_everything_once(n: int, limit: int) -> None:
    edges = bin_edges(n, limit)
    assert (edges[0], edges[-1], edges.size - 1) == (0, n, min(n, limit))
    assert (np.diff(edges) > 0).all()


def test_a_staircase_keeps_its_corners_and_only_those() -> None:
    heights = np.repeat([1.0, 2.0, np.nan, 2.0, 3.0], 2000)
    assert thin_stairs(np.arange(10_000.0), heights, 4000).x.tolist() == [0, 2000, 8000, 9999]
    assert thin_stairs(np.arange(4.0), heights[:4], 4).x.tolist() == [0, 1, 2, 3]
    assert thin_stairs(np.arange(10_000.0), np.arange(10_000.0) % 7, 100).x.size <= 100
