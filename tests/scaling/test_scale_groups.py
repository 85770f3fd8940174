"""Automatic scale groups: the optimum against all partitions, heights, limits and parts without gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.loss_scale import ExponentTable
from workbench.methods.loss_scale_group.scale_groups import find_scale_groups, significand_loss


def table(rows: list[dict[int, float]]) -> ExponentTable:
    """One row per part: exponent -> count."""
    exponents = [exponent for row in rows for exponent in row] or [0]
    lowest = min(exponents)
    counts = np.zeros((len(rows), max(exponents) - lowest + 1))
    for part, row in enumerate(rows):
        for exponent, count in row.items():
            counts[part, exponent - lowest] = count
    return ExponentTable(lowest, counts)


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for partition in partitions(rest):
        yield [[first], *partition]
        for i in range(len(partition)):
            yield [*partition[:i], [first, *partition[i]], *partition[i + 1 :]]


def objective(rows: list[dict[int, float]], partition: list[list[int]]) -> float:
    """The cost written down from its definition: shares of bits lost, octaves below the top, groups."""
    total = 0.05 * len(partition)
    for members in partition:
        top = max(exponent for part in members for exponent in rows[part])
        for part in members:
            number = sum(rows[part].values())
            lost = sum(n * min(max(-14 - (e - top + 11), 0), 11) / 11 for e, n in rows[part].items())
            total += lost / number + 0.01 * max(top - max(rows[part]) - 8, 0)
    return total


@settings(max_examples=30)
@given(
    st.lists(
        st.dictionaries(st.integers(-60, 10), st.integers(1, 9).map(float), min_size=1, max_size=3),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 4),
)
def test_no_partition_loses_less(rows: list[dict[int, float]], limit: int) -> None:
    found = find_scale_groups(table(rows), limit)
    least = min(objective(rows, p) for p in partitions(list(range(len(rows)))) if len(p) <= limit)
    assert objective(rows, [list(group.members) for group in found]) == pytest.approx(least)
    assert sorted(itertools.chain(*(group.members for group in found))) == list(range(len(rows)))
    assert len(found) <= limit


def test_the_largest_gradient_of_a_group_is_lifted_below_the_upper_end() -> None:
    rows: list[dict[int, float]] = [{-3: 1.0, -9: 5.0}, {-45: 1.0}, {20: 2.0}]
    found = find_scale_groups(table(rows), 3)
    assert [group.members for group in found] == [(0,), (1,), (2,)]
    # 2**(15 - 4) is where the largest should lie; the last one is too large for float16 and gets a scale below 1.
    assert [group.scale for group in found] == [2.0**14, 2.0**56, 2.0**-9]
    extreme = find_scale_groups(table([{-149: 1.0}, {127: 1.0}]), 2)
    assert [group.scale for group in extreme] == [2.0**100, 2.0**-100], "a scale and its reciprocal stay normal"


def test_a_part_without_gradients_joins_the_part_before_it() -> None:
    found = find_scale_groups(table([{}, {0: 1.0}, {}, {-40: 1.0}, {}]), 4)
    assert [group.members for group in found] == [(0, 1, 2), (3, 4)]
    assert find_scale_groups(table([{}, {}]), 4)[0].scale == 1.0


def test_significand_loss_is_that_of_rounding_to_float16() -> None:
    for exponent in range(-30, 0):
        # 1.1111111111 in binary, 11 bits: how many remain?
        value = np.float64(2.0 - 2.0**-10) * 2.0**exponent
        step = max(2.0**-24, 2.0 ** (exponent - 10))
        kept = 0 if value < 2.0**-24 else round(np.log2(value / step) + 0.5)
        assert significand_loss([exponent])[0] == pytest.approx((11 - kept) / 11, abs=1e-12)


def test_no_group_and_no_parts_are_refused() -> None:
    for limit in (0, -1):
        with pytest.raises(ValueError, match=f"`limit` must be at least 1 group, got {limit}"):
            find_scale_groups(table([{0: 1.0}]), limit)
    with pytest.raises(ValueError, match="must have a row per part"):
        find_scale_groups(ExponentTable(0, np.zeros((0, 1))), 2)
