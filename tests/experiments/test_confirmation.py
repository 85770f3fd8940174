"""Paired bounds and verdicts: exact against the textbook, coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.experiments.confirmation import (
    TimeRatio,
    decidable_drop,
    decide,
    first_test,
    format_duration,
    further_test,
    judge_test,
    paired_drop_bounds,
    paired_drops,
    pairs_to_decide,
    planned_pairs,
    smallest_gap,
    time_ratio,
    verdict_of,
    verdict_sentence,
)
from workbench.records import Verdict

FASTER = TimeRatio(1.2, 1.1, 1.3)


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


def test_a_test_looks_at_half_and_at_all_of_its_pairs_and_spends_less_than_the_error() -> None:
    assert first_test(17).looks == ((8, 0.005), (17, 0.035))
    assert first_test(3).looks == ((3, 0.035),)  # one pair of a half has no spread
    further = [further_test(17, 10, n) for n in range(20)]
    assert all(test.first == 17 for test in further)
    spent = 0.005 + 0.035 + sum(test.looks[0][1] for test in further)
    assert 0.049 < spent <= 0.05


def test_one_seed_is_refused_because_it_has_no_spread() -> None:
    for plan in (lambda: first_test(1), lambda: further_test(5, 1, 0)):
        with pytest.raises(ValueError, match="at least 2 seeds"):
            plan()


def test_the_number_of_pairs_follows_from_the_pilots_spread() -> None:
    # (1.81 + 0.84)^2 (s / d)^2 = 17.1 of the normal distribution, a little more of Student's
    assert 17 <= planned_pairs(0.0078, 0.005, at_least=10, at_most=100) <= 20
    assert planned_pairs(0.001, 0.005, at_least=10, at_most=100) == 10
    assert planned_pairs(0.1, 0.005, at_least=10, at_most=100) == 100
    assert planned_pairs(0.1, 0.0, at_least=5, at_most=5) == 5
    n_pairs = planned_pairs(0.0078, 0.005, at_least=10, at_most=100)
    assert decidable_drop(0.0078, n_pairs) <= 0.005 < decidable_drop(0.0078, n_pairs - 1)


def test_a_candidate_as_good_as_o0_is_confirmed_four_times_in_five() -> None:
    rng = np.random.default_rng(5)
    spread, allowed = 0.0078, 0.005
    test = first_test(planned_pairs(spread, allowed, at_least=10, at_most=100))
    drops = rng.normal(0.0, spread, (1000, test.n_pairs))
    verdicts = [
        judge_test(test, [(0.9, 0.9 - drop) for drop in row], allowed, higher_is_better=True, resolution=0.0).verdict
        for row in drops
    ]
    assert 0.77 < verdicts.count(Verdict.CONFIRMED) / len(verdicts) < 0.86


def test_wrongly_confirmed_at_most_one_time_in_twenty_over_pilots_looks_and_further_tests() -> None:
    rng = np.random.default_rng(7)
    n_studies, allowed, spread = 1500, 0.01, 0.01
    ever_confirmed = ever_confirmed_naively = 0
    for _ in range(n_studies):
        drops = rng.normal(allowed, spread, 120)  # true drop exactly at the limit: the hardest wrong one
        pairs = [(0.9, 0.9 - drop) for drop in drops]
        pilots = paired_drop_bounds(list(drops[:5])).spread
        test = first_test(planned_pairs(pilots, allowed, at_least=5, at_most=40))
        tests = [test, further_test(test.n_pairs, 20, 0), further_test(test.n_pairs + 20, 20, 1)]
        options = {"higher_is_better": True, "resolution": 0.0}
        verdicts = [
            judge_test(one, pairs[one.first : one.first + one.n_pairs], allowed, **options).verdict for one in tests
        ]
        ever_confirmed += Verdict.CONFIRMED in verdicts
        naive = [decide(pairs[:n], allowed, **options).verdict for n in (5, 10, 20, 40, 80)]
        ever_confirmed_naively += Verdict.CONFIRMED in naive
    assert ever_confirmed / n_studies <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / n_studies)
    assert ever_confirmed_naively / n_studies > 0.075  # without planning the promise would be broken


def test_a_test_is_judged_at_its_looks_and_nowhere_else() -> None:
    test = first_test(10)
    clear = [(0.9 + i * 1e-4, 0.9) for i in range(10)]
    decisions = [judge_test(test, clear[:n], 0.05, higher_is_better=True, resolution=0.0).verdict for n in range(11)]
    undecided, confirmed = Verdict.UNDECIDED, Verdict.CONFIRMED
    assert decisions == [undecided] * 5 + [confirmed] * 6
    missing = judge_test(test, clear[:3], 0.05, higher_is_better=True)
    assert missing.reason == "3 of 10 planned seeds are trained"
    assert missing.more_pairs == 7


def test_a_ratio_of_times_is_the_textbook_interval_of_logarithms() -> None:
    times = [(100.0, 90.0), (110.0, 100.0), (90.0, 85.0), (100.0, 95.0)]
    logarithms = np.log([a / (0.8 * b) for a, b in times])
    margin = 3.182446305 * np.std(logarithms, ddof=1) / 2.0  # t(0.975, 3)
    ratio = time_ratio(times, (0.8, 0.8, 0.8))
    assert ratio.ratio == pytest.approx(math.exp(logarithms.mean()))
    assert ratio.low == pytest.approx(math.exp(logarithms.mean() - margin))
    assert ratio.high == pytest.approx(math.exp(logarithms.mean() + margin))


def test_the_interval_of_the_steps_time_widens_that_of_the_ratio() -> None:
    alone = time_ratio((), (0.8, 0.75, 0.9))
    assert (alone.ratio, alone.low, alone.high) == pytest.approx((1 / 0.8, 1 / 0.9, 1 / 0.75))
    same = [(100.0, 100.0)] * 5
    assert time_ratio(same, (0.8, 0.75, 0.9)) == alone
    assert time_ratio([(100.0, 100.0)], (0.8, 0.75, 0.9)).low == 0.0  # one pair has no spread
    with_warm_up = time_ratio(same, (0.8, 0.8, 0.8), warm_up=20.0)
    assert with_warm_up.ratio == pytest.approx(1.0)


def test_confirmed_is_faster_and_as_good() -> None:
    good = decide([(0.9, 0.9), (0.91, 0.91), (0.92, 0.92)], 0.01, higher_is_better=True)
    bad = decide([(0.9, 0.5), (0.91, 0.51), (0.92, 0.53)], 0.01, higher_is_better=True)
    assert verdict_of(good, FASTER) is Verdict.CONFIRMED
    assert verdict_of(good, TimeRatio(1.03, 0.94, 1.10)) is Verdict.UNDECIDED
    assert verdict_of(good, TimeRatio(0.8, 0.7, 0.9)) is Verdict.REFUTED
    assert verdict_of(bad, FASTER) is Verdict.REFUTED
    sentence = verdict_sentence(good, TimeRatio(1.03, 0.94, 1.10, 12), "accuracy")
    assert sentence.startswith("Undecided whether it is faster: not clearly faster or slower per step (1.03 x, ")
    assert sentence.endswith("About 12 more seeds would decide.")
    slower = verdict_sentence(good, TimeRatio(0.8, 0.7, 0.9), "accuracy", per="to the target")
    assert slower.startswith("Refuted: slower to the target (0.80 x, 95 % interval 0.70 to 0.90)")


def test_a_harmless_candidate_is_usually_confirmed_and_a_harmful_one_refuted() -> None:
    rng = np.random.default_rng(3)
    allowed = 0.02
    confirmed = refuted = 0
    for _ in range(300):
        base = rng.normal(0.9, 0.05, 10)
        good = list(zip(base, base - rng.normal(0.0, 0.01, 10), strict=True))
        bad = list(zip(base, base - rng.normal(0.04, 0.01, 10), strict=True))
        confirmed += decide(good, allowed, higher_is_better=True, error=0.035).verdict is Verdict.CONFIRMED
        refuted += decide(bad, allowed, higher_is_better=True, error=0.035).verdict is Verdict.REFUTED
    assert confirmed > 270
    assert refuted > 270


def test_a_diverged_run_refutes() -> None:
    decision = decide([(0.9, 0.9), (0.9, math.nan)], 0.1, higher_is_better=True)
    assert decision.verdict is Verdict.REFUTED
    assert verdict_sentence(decision, FASTER, "accuracy") == "Refuted: 1 of 2 runs diverged."


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
    assert "only 1 of the at least 2 pairs" in verdict_sentence(decision, FASTER, "accuracy")


def test_undecided_says_how_many_more_seeds_how_long_and_which_command() -> None:
    pairs = [(0.90, 0.90), (0.92, 0.90), (0.91, 0.92), (0.90, 0.89), (0.93, 0.93)]
    decision = decide(pairs, 0.006, higher_is_better=True)
    assert decision.verdict is Verdict.UNDECIDED
    assert decision.leaning is Verdict.CONFIRMED
    assert decision.more_pairs is not None
    total = 5 + decision.more_pairs
    command = "tune s --confirm-seeds {seeds}"
    sentence = verdict_sentence(decision, FASTER, "accuracy", seconds_per_pair=10.0, command=command)
    assert f"About {decision.more_pairs} more seeds would decide" in sentence
    assert sentence.endswith(f"tune s --confirm-seeds {total}.")
    # with that many seeds of the same mean and spread the margin fits, with one fewer it does not
    assert pairs_to_decide(decision.bounds, 0.006) == total


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
