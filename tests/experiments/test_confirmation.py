"""Paired bounds and verdicts: exact against the textbook, coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.paired_bounds import (
    decidable_drop,
    decide,
    paired_drop_bounds,
    paired_drops,
    pairs_to_decide,
    planned_pairs,
    smallest_gap,
    time_ratio,
)
from workbench.core.records import Verdict


def test_bounds_equal_the_textbook_interval() -> None:
    drops = [0.01, 0.02, 0.03, 0.02, 0.01]
    mean, spread = np.mean(drops), np.std(drops, ddof=1)
    margin = 2.131846786 * spread / math.sqrt(5)  # t(0.95, 4) of the printed tables
    bounds = paired_drop_bounds(drops)
    assert bounds.mean == pytest.approx(mean)
    assert bounds.upper == pytest.approx(mean + margin)
    assert bounds.lower == pytest.approx(mean - margin)


def test_drop_is_positive_when_worse_in_either_direction() -> None:
    assert paired_drops([(0.9, 0.8)], higher_is_better=True) == [pytest.approx(0.1)]
    assert paired_drops([(2.0, 2.5)], higher_is_better=False) == [pytest.approx(0.5)]


def test_the_number_of_pairs_follows_from_the_pilots_spread() -> None:
    def planned(spread: float, drop: float, error: float = 0.035, least: int = 10, most: int = 100) -> int:
        return planned_pairs(spread, drop, error=error, at_least=least, at_most=most)

    # (1.81 + 0.84)^2 (s / d)^2 = 17.1 of the normal distribution, a little more of Student's
    n_pairs = planned(0.0078, 0.005)
    assert 17 <= n_pairs <= 20
    assert planned(0.001, 0.005) == 10
    assert planned(0.1, 0.005) == 100
    assert planned(0.1, 0.0, least=5, most=5) == 5
    assert planned(0.0078, 0.005, error=0.005) > n_pairs + 8
    assert decidable_drop(0.0078, n_pairs, error=0.035) <= 0.005 < decidable_drop(0.0078, n_pairs - 1, error=0.035)


def test_a_ratio_of_times_is_bounded_by_order_statistics() -> None:
    times = [(100.0, 100.0 - 5.0 * i) for i in range(10)]
    ratio = time_ratio(times, (1.0, 1.0, 1.0))
    ratios = sorted(a / b for a, b in times)
    # P(Binomial(10, 1/2) < 2) = 0.011 and < 3 = 0.055: the second smallest and the second largest
    assert ratio.low == pytest.approx(ratios[1])
    assert ratio.high == pytest.approx(ratios[-2])
    assert ratio.ratio == pytest.approx(math.sqrt(ratios[4] * ratios[5]))
    assert time_ratio(times[:5], (1.0, 1.0, 1.0)).low == 0.0  # five pairs have no interval of 95 %


def test_half_of_the_intervals_ends_miss_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    for n_pairs in (6, 10, 17):
        missed = sum(
            time_ratio([(math.exp(x), 1.0) for x in row], (1.0, 1.0, 1.0)).low > 1.0
            for row in rng.normal(0.0, 0.3, (2000, n_pairs))
        )
        assert missed / 2000 <= 0.025 + 2 * math.sqrt(0.025 / 2000)


def test_a_target_that_is_not_reached_cannot_support_a_claim_of_speed() -> None:
    reached = [(100.0, 50.0)] * 8
    assert time_ratio([*reached, *[(100.0, math.inf)] * 2], (1.0, 1.0, 1.0)).low == 0.0
    assert time_ratio([(100.0, math.inf)] * 6 + reached[:4], (1.0, 1.0, 1.0)).ratio == 0.0
    assert time_ratio([*reached, *reached, (100.0, math.inf)], (1.0, 1.0, 1.0)).low == pytest.approx(2.0)


def test_the_interval_of_the_steps_time_widens_that_of_the_ratio() -> None:
    alone = time_ratio((), (0.8, 0.75, 0.9))
    assert (alone.ratio, alone.low, alone.high) == pytest.approx((1 / 0.8, 1 / 0.9, 1 / 0.75))
    same = time_ratio([(100.0, 100.0)] * 6, (0.8, 0.75, 0.9))
    assert (same.ratio, same.low, same.high) == pytest.approx((alone.ratio, alone.low, alone.high))
    with_warm_up = time_ratio([(100.0, 100.0)] * 6, (0.8, 0.8, 0.8), warm_up=20.0)
    assert with_warm_up.ratio == pytest.approx(1.0)


def test_a_diverged_run_refutes_and_a_diverged_baseline_says_nothing_about_the_candidate() -> None:
    decision = decide([(0.9, 0.9), (0.9, math.nan)], 0.1, higher_is_better=True)
    assert (decision.verdict, decision.reason) == (Verdict.REFUTED, "1 of 2 runs diverged")
    pairs = [(0.9, 0.9), (0.91, 0.91), (math.nan, 0.9), (0.9, 0.9), (math.nan, math.nan)]
    assert decide(pairs, 0.1, higher_is_better=True).bounds.n_pairs == 3


def test_equal_pairs_do_not_pretend_to_more_than_the_metric_can_resolve() -> None:
    pairs = [(0.90, 0.90), (0.91, 0.91), (0.90, 0.90), (0.90, 0.90), (0.91, 0.91)]
    decision = decide(pairs, 0.001, higher_is_better=True)
    assert decision.bounds.mean == 0.0
    assert decision.bounds.upper == pytest.approx(2.131846786 * 0.01 / math.sqrt(12) / math.sqrt(5))
    assert decision.verdict is Verdict.UNDECIDED
    same = [(1.0, 1.0)] * 5
    assert decide(same, 0.005, higher_is_better=True).bounds.upper == 0.0
    coarse = decide(same, 0.005, higher_is_better=True, resolution=1 / 22)
    assert coarse.bounds.upper > 0.005
    assert coarse.verdict is Verdict.UNDECIDED


def test_no_pair_and_one_pair_are_undecided() -> None:
    assert decide([], 0.1, higher_is_better=True).more_pairs == 2
    one = decide([(0.9, 0.9)], 0.1, higher_is_better=True)
    assert (one.verdict, one.reason) == (Verdict.UNDECIDED, "only 1 of the at least 2 pairs a bound needs")


def test_an_open_decision_says_how_many_pairs_the_margin_needs() -> None:
    pairs = [(0.90, 0.90), (0.92, 0.90), (0.91, 0.92), (0.90, 0.89), (0.93, 0.93)]
    decision = decide(pairs, 0.006, higher_is_better=True)
    assert decision.verdict is Verdict.UNDECIDED
    assert decision.leaning is Verdict.CONFIRMED
    assert decision.more_pairs is not None
    # with that many seeds of the same mean and spread the margin fits, with one fewer it does not
    assert pairs_to_decide(decision.bounds, 0.006) == 5 + decision.more_pairs


@given(
    drops=st.lists(st.floats(-1, 1), min_size=3, max_size=12),
    allowed=st.floats(0, 1),
    error=st.floats(0.001, 0.2),
)
def test_verdict_follows_from_the_bounds_and_never_from_luck_in_rounding(
    drops: list[float], allowed: float, error: float
) -> None:
    pairs = [(0.0, -drop) for drop in drops]
    decision = decide(pairs, allowed, higher_is_better=True, error=error, resolution=0.0)
    assert decision.bounds.lower <= decision.bounds.mean <= decision.bounds.upper
    assert (decision.verdict is Verdict.CONFIRMED) == (decision.bounds.upper <= allowed)
    assert (decision.verdict is Verdict.REFUTED) == (decision.bounds.lower > allowed)
    stricter = decide(pairs, allowed, higher_is_better=True, error=error / 2, resolution=0.0)
    assert stricter.bounds.upper >= decision.bounds.upper


@pytest.mark.parametrize(("allowed", "error"), [(math.nan, 0.05), (-0.1, 0.05), (0.1, 0.0), (0.1, 0.7)])
def test_senseless_arguments_are_refused(allowed: float, error: float) -> None:
    with pytest.raises(ValueError, match=r"must be at least|must lie in"):
        decide([(0.9, 0.9)] * 3, allowed, higher_is_better=True, error=error)


def test_the_smallest_gap_passes_over_rounding_and_nan() -> None:
    assert smallest_gap([0.9, 0.8, 0.1 * 3 + 0.6, math.nan]) == pytest.approx(0.1)
    assert smallest_gap([0.73, 0.74, 1e24]) == pytest.approx(0.01), "a run that went wrong"
    assert smallest_gap([0.5, 0.5]) == 0.0
    assert smallest_gap([]) == 0.0
