"""Paired bounds and verdicts: exact against the textbook, coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.experiments.confirmation import (
    decide,
    format_duration,
    paired_drop_bounds,
    paired_drops,
    pairs_to_decide,
    planned_looks,
    smallest_gap,
    verdict_sentence,
)
from workbench.records import Verdict


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


@pytest.mark.parametrize(
    ("first", "last", "looks"),
    [(5, 20, (5, 10, 20)), (5, 12, (5, 10, 12)), (5, 5, (5,)), (5, 3, (3,)), (2, 9, (2, 4, 8, 9))],
)
def test_looks_double_until_the_last(first: int, last: int, looks: tuple[int, ...]) -> None:
    assert planned_looks(first, last) == looks


def test_one_seed_is_refused_because_it_has_no_spread() -> None:
    with pytest.raises(ValueError, match="at least 2 seeds"):
        planned_looks(1, 5)


@pytest.mark.long
def test_wrongly_confirmed_at_most_one_time_in_twenty_over_all_looks() -> None:
    rng = np.random.default_rng(7)
    looks = planned_looks(5, 20)
    n_studies, allowed = 3000, 0.01
    seeds = rng.normal(0.9, 0.05, (n_studies, looks[-1]))  # what a seed does to both cancels within the pair
    worse = rng.normal(allowed, 0.01, seeds.shape)  # true drop exactly at the limit: the hardest wrong one
    ever_confirmed = ever_confirmed_naively = 0
    for baseline, drop in zip(seeds, worse, strict=True):
        pairs = list(zip(baseline, baseline - drop, strict=True))
        verdicts = [decide(pairs[:n], allowed, higher_is_better=True, n_looks=len(looks)).verdict for n in looks]
        naive = [decide(pairs[:n], allowed, higher_is_better=True).verdict for n in looks]
        ever_confirmed += Verdict.CONFIRMED in verdicts
        ever_confirmed_naively += Verdict.CONFIRMED in naive
    assert ever_confirmed / n_studies <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / n_studies)
    assert ever_confirmed_naively / n_studies > 0.075  # without sharing the error the promise would be broken


def test_a_harmless_candidate_is_usually_confirmed_and_a_harmful_one_refuted() -> None:
    rng = np.random.default_rng(3)
    allowed = 0.02
    confirmed = refuted = 0
    for _ in range(300):
        base = rng.normal(0.9, 0.05, 10)
        good = list(zip(base, base - rng.normal(0.0, 0.01, 10), strict=True))
        bad = list(zip(base, base - rng.normal(0.04, 0.01, 10), strict=True))
        confirmed += decide(good, allowed, higher_is_better=True, n_looks=3).verdict is Verdict.CONFIRMED
        refuted += decide(bad, allowed, higher_is_better=True, n_looks=3).verdict is Verdict.REFUTED
    assert confirmed > 270
    assert refuted > 270


def test_a_diverged_run_refutes() -> None:
    decision = decide([(0.9, 0.9), (0.9, math.nan)], 0.1, higher_is_better=True)
    assert decision.verdict is Verdict.REFUTED
    assert verdict_sentence(decision, "accuracy") == "Refuted: 1 of 2 runs diverged."


def test_a_diverged_baseline_says_nothing_about_the_candidate() -> None:
    pairs = [(0.9, 0.9), (0.91, 0.91), (math.nan, 0.9), (0.9, 0.9)]
    assert decide(pairs, 0.1, higher_is_better=True).bounds.n_pairs == 3


def test_equal_pairs_do_not_pretend_to_more_than_the_metric_can_resolve() -> None:
    pairs = [(0.90, 0.90), (0.91, 0.91), (0.90, 0.90), (0.90, 0.90), (0.91, 0.91)]
    decision = decide(pairs, 0.001, higher_is_better=True)
    assert decision.bounds.mean == 0.0
    assert decision.bounds.upper == pytest.approx(2.131846786 * 0.01 / math.sqrt(12) / math.sqrt(5))
    assert decision.verdict is Verdict.UNDECIDED


def test_no_pair_and_one_pair_are_undecided() -> None:
    assert decide([], 0.1, higher_is_better=True).more_pairs == 2
    decision = decide([(0.9, 0.9)], 0.1, higher_is_better=True)
    assert decision.verdict is Verdict.UNDECIDED
    assert "only 1 of the at least 2 pairs" in verdict_sentence(decision, "accuracy")


def test_undecided_says_how_many_more_seeds_how_long_and_which_command() -> None:
    pairs = [(0.90, 0.90), (0.92, 0.90), (0.91, 0.92), (0.90, 0.89), (0.93, 0.93)]
    decision = decide(pairs, 0.006, higher_is_better=True)
    assert decision.verdict is Verdict.UNDECIDED
    assert decision.leaning is Verdict.CONFIRMED
    assert decision.more_pairs is not None
    total = 5 + decision.more_pairs
    sentence = verdict_sentence(decision, "accuracy", seconds_per_pair=10.0, command="tune s --confirm-seeds {seeds}")
    assert f"about {decision.more_pairs} more seeds would decide" in sentence
    assert sentence.endswith(f"tune s --confirm-seeds {total}.")
    # with that many seeds of the same mean and spread the margin fits, with one fewer it does not
    assert pairs_to_decide(decision.bounds, 0.006) == total


@given(
    drops=st.lists(st.floats(-1, 1), min_size=3, max_size=12),
    allowed=st.floats(0, 1),
    looks=st.integers(1, 5),
)
def test_verdict_follows_from_the_bounds_and_never_from_luck_in_rounding(
    drops: list[float], allowed: float, looks: int
) -> None:
    pairs = [(0.0, -drop) for drop in drops]
    decision = decide(pairs, allowed, higher_is_better=True, n_looks=looks, resolution=0.0)
    assert decision.bounds.lower <= decision.bounds.mean <= decision.bounds.upper
    assert (decision.verdict is Verdict.CONFIRMED) == (decision.bounds.upper <= allowed)
    assert (decision.verdict is Verdict.REFUTED) == (decision.bounds.lower > allowed)
    more = decide(pairs, allowed, higher_is_better=True, n_looks=looks + 1, resolution=0.0)
    assert more.bounds.upper >= decision.bounds.upper  # more looks never make it easier


@pytest.mark.parametrize(("allowed", "looks"), [(math.nan, 1), (-0.1, 1), (0.1, 0)])
def test_senseless_arguments_are_refused(allowed: float, looks: int) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        decide([(0.9, 0.9)] * 3, allowed, higher_is_better=True, n_looks=looks)


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "1 s"), (40, "40 s"), (720, "12 min"), (12600, "3.5 h")])
def test_durations_are_said_as_a_person_would(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


def test_the_smallest_gap_passes_over_rounding_and_nan() -> None:
    assert smallest_gap([0.9, 0.8, 0.1 * 3 + 0.6, math.nan]) == pytest.approx(0.1)
    assert smallest_gap([0.5, 0.5]) == 0.0
    assert smallest_gap([]) == 0.0


def test_equal_metrics_over_all_pairs_leave_a_bound_as_wide_as_the_metric_is_coarse() -> None:
    pairs = [(1.0, 1.0)] * 5
    assert decide(pairs, 0.005, higher_is_better=True).bounds.upper == 0.0
    coarse = decide(pairs, 0.005, higher_is_better=True, resolution=1 / 22)
    assert coarse.bounds.upper > 0.005
    assert coarse.verdict is Verdict.UNDECIDED
