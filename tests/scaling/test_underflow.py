"""Underflow shares against counting real elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.records import ExponentCounts
from workbench.loss_scale import ExponentTable, exponent_table, underflow_share


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.floats(2.0**-60, 2.0**20), min_size=1, max_size=30), min_size=1, max_size=4),
    st.integers(-5, 40),
)
def test_shares_equal_a_count_of_the_elements_for_powers_of_two(gradients: list[list[float]], exponent: int) -> None:
    histograms = []
    for gradient in gradients:
        exponents = np.floor(np.log2(gradient)).astype(int)
        exponents = np.frexp(gradient)[1] - 1  # exact where log2 rounds
        lowest = int(exponents.min())
        histograms.append(ExponentCounts("all", lowest, tuple(np.bincount(exponents - lowest).tolist())))
    share = underflow_share(exponent_table(histograms), 2.0**exponent)
    for step, gradient in enumerate(gradients):
        scaled = np.array(gradient) * 2.0**exponent
        assert share[step] == pytest.approx(np.mean(scaled < 2.0**-24))


def test_a_bin_that_the_limit_cuts_counts_in_part() -> None:
    table = ExponentTable(-24, np.array([[8.0]]))
    assert underflow_share(table, 2.0**-0.25) == pytest.approx([0.25])
    assert underflow_share(table, 2.0**-0.75) == pytest.approx([0.75])


def test_scales_of_many_policies_are_judged_at_once() -> None:
    table = ExponentTable(-26, np.array([[1, 1, 2], [0, 4, 0]]))
    scales = np.array([[1.0, 1.0], [2.0, 2.0], [4.0, 1.0]])
    assert underflow_share(table, scales).tolist() == [[0.5, 1.0], [0.25, 0.0], [0.0, 1.0]]
    assert underflow_share(table, scales[2]).tolist() == [0.0, 1.0]


def test_groups_of_a_step_are_added_up_over_common_bins() -> None:
    step = [ExponentCounts("a", -3, (1, 2)), ExponentCounts("b", -5, (4,)), ExponentCounts("c", 90, ())]
    table = exponent_table([step, ExponentCounts("a", -2, (7,))])
    assert table.lowest == -5
    assert table.counts.tolist() == [[4, 0, 1, 2], [0, 0, 0, 7]]


def test_a_step_without_elements_has_no_share_and_what_is_no_scale_and_no_count_is_refused() -> None:
    share = underflow_share(exponent_table([ExponentCounts("a", 0, ()), ExponentCounts("a", 0, (1,))]), 1.0)
    assert math.isnan(share[0])
    assert share[1] == 0.0
    scale: Any
    for scale in (0.0, -1.0, math.nan, [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match="`scale`"):
            underflow_share(ExponentTable(0, np.ones((2, 2))), scale)
    for counts in (np.ones(3), np.array([[-1.0]]), np.array([[math.nan]])):
        with pytest.raises(ValueError, match="`counts` must be a matrix"):
            ExponentTable(0, counts)
