"""Planned tests: what they spend, what they promise, and what they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workbench.core.paired_bounds import TimeRatio, paired_drop_bounds, planned_pairs, time_ratio
from workbench.core.records import Verdict
from workbench.study.answer.planned_tests import (
    Judgement,
    PlannedTest,
    first_test,
    further_error,
    further_test,
    judge,
    read_early,
    sentence,
)

FASTER, OPEN, SLOWER = TimeRatio(1.2, 1.1, 1.3), TimeRatio(1.03, 0.94, 1.10, 12), TimeRatio(0.8, 0.7, 0.9)
CONFIRMED, UNDECIDED, REFUTED = Verdict.CONFIRMED, Verdict.UNDECIDED, Verdict.REFUTED


def judged(
    tests: Sequence[tuple[PlannedTest, Sequence[tuple[float, float]]]], allowed: float, time: TimeRatio = FASTER
) -> Judgement:
    return judge(tests, allowed, lambda *_: time, time, higher_is_better=True, resolution=0.0)


def pairs_of(drops: Sequence[float]) -> list[tuple[float, float]]:
    return [(0.9, 0.9 - drop) for drop in drops]


def test_a_test_looks_at_half_and_at_all_of_its_pairs_and_all_of_them_spend_less_than_the_error() -> None:
    assert first_test(17).looks == ((8, 0.005), (17, 0.035))
    assert first_test(3).looks == ((3, 0.035),)  # one pair of a half has no spread
    further = [further_test(17, 10, n) for n in range(20)]
    assert all((test.first, test.end) == (17, 27) for test in further)
    spent = 0.005 + 0.035 + sum(test.looks[0][1] for test in further)
    assert 0.049 < spent <= 0.05


def test_a_candidate_as_good_as_o0_is_confirmed_four_times_in_five() -> None:
    rng = np.random.default_rng(5)
    spread, allowed = 0.0078, 0.005
    test = first_test(planned_pairs(spread, allowed, error=0.035, at_least=10, at_most=100))
    drops = rng.normal(0.0, spread, (1000, test.n_pairs))
    verdicts = [judged([(test, pairs_of(row))], allowed).verdict for row in drops]
    assert 0.77 < verdicts.count(CONFIRMED) / len(verdicts) < 0.86


def test_as_good_is_said_wrongly_at_most_one_time_in_twenty_over_pilots_looks_and_further_tests() -> None:
    rng = np.random.default_rng(7)
    n_studies, n_naive, allowed, spread = 1500, 200, 0.01, 0.01
    ever_confirmed = ever_confirmed_naively = 0
    for study in range(n_studies):
        pairs = pairs_of(rng.normal(allowed, spread, 120))  # true drop exactly at the limit: the hardest wrong one
        pilots = paired_drop_bounds([a - b for a, b in pairs[:5]]).spread
        test = first_test(planned_pairs(pilots, allowed, error=0.035, at_least=5, at_most=40))
        tests = [test, further_test(test.end, 20, 0), further_test(test.end + 20, 20, 1)]
        told = [(one, pairs[one.first : one.end]) for one in tests]
        ever_confirmed += any(judged(told[: i + 1], allowed).verdict is CONFIRMED for i in range(3))
        if study < n_naive:
            naive = [judged([(PlannedTest(0, ((n, 0.05),)), pairs[:n])], allowed).verdict for n in (5, 10, 20, 40, 80)]
            ever_confirmed_naively += CONFIRMED in naive
    assert ever_confirmed / n_studies <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / n_studies)
    assert ever_confirmed_naively / n_naive > 0.075  # without planning the promise would be broken


def test_faster_is_said_wrongly_at_most_one_time_in_twenty_over_looks_and_further_tests() -> None:
    rng = np.random.default_rng(8)
    n_studies, wrong = 1000, 0
    tests = [first_test(10), further_test(10, 15, 0), further_test(25, 20, 1)]
    for _ in range(n_studies):
        steps = np.exp(rng.normal(0.0, 0.3, 45))  # as fast as O0 in the middle

        def time_at(test: PlannedTest, n_pairs: int, error: float, steps: np.ndarray = steps) -> TimeRatio:
            times = [(float(one), 1.0) for one in steps[test.first : test.first + n_pairs]]
            return time_ratio(times, (1.0, 1.0, 1.0), error=error)

        told = [(test, pairs_of([0.0] * test.n_pairs)) for test in tests]
        results = [
            judge(told[: i + 1], 0.01, time_at, OPEN, higher_is_better=True, resolution=0.0).verdict for i in range(3)
        ]
        wrong += CONFIRMED in results
    assert wrong / n_studies <= 0.05


def test_a_test_is_read_at_its_looks_and_nowhere_else() -> None:
    clear = [(0.9 + i * 1e-4, 0.9) for i in range(10)]
    verdicts = [judged([(first_test(10), clear[:n])], 0.05).verdict for n in range(11)]
    assert verdicts == [UNDECIDED] * 5 + [CONFIRMED] * 6
    assert judged([(first_test(10), clear[:3])], 0.05).missing == 7


def test_a_half_that_a_look_has_closed_stays_closed_and_a_further_test_asks_the_other() -> None:
    good = pairs_of([0.0001 * i for i in range(10)])
    first, further = first_test(10), further_test(10, 10, 0)
    ratios = {0: OPEN, 10: FASTER}
    spoilt = pairs_of([0.1] * 10)
    told = [(first, good), (further, spoilt)]
    result = judge(told, 0.01, lambda test, *_: ratios[test.first], OPEN, higher_is_better=True, resolution=0.0)
    assert result.verdict is CONFIRMED
    assert result.quality.bounds.n_pairs == 5  # closed at the first look
    assert result.n_pairs == 20


def test_confirmed_is_faster_and_as_good() -> None:
    good, bad = pairs_of([0.0, 0.001, 0.0]), pairs_of([0.4, 0.41, 0.4])
    assert judged([(first_test(3), good)], 0.01, FASTER).verdict is CONFIRMED
    assert judged([(first_test(3), good)], 0.01, OPEN).verdict is UNDECIDED
    assert judged([(first_test(3), good)], 0.01, SLOWER).verdict is REFUTED
    assert judged([(first_test(3), bad)], 0.01, FASTER).verdict is REFUTED
    diverged = judged([(first_test(10), [(0.9, 0.9), (0.9, math.nan)])], 0.1)
    assert diverged.verdict is REFUTED
    assert sentence(diverged, "accuracy") == "Refuted: 1 of 2 runs diverged."


def test_sentences_say_what_is_open_and_what_would_close_it() -> None:
    good = judged([(first_test(3), pairs_of([0.0, 0.001, 0.0]))], 0.01, OPEN)
    told = sentence(good, "accuracy", seconds_per_pair=10.0, command=lambda *asked: f"tune {asked}")
    assert told.startswith("Undecided whether it is faster: not clearly faster or slower per step (1.03 x, 95 % ")
    assert told.endswith("About 12 fresh seeds would decide (2 min): `tune (15, 120.0)`.")
    slower = sentence(judged([(first_test(3), pairs_of([0.0] * 3))], 0.01, SLOWER), "accuracy", per="to the target")
    assert slower == "Refuted: slower to the target (0.80 x, 95 % interval 0.70 to 0.90)."
    unfinished = judged([(first_test(10), pairs_of([0.01, 0.0, 0.02]))], 0.01)
    assert sentence(unfinished, "accuracy").endswith(
        "3 of 10 planned seeds are trained; the same command trains the rest."
    )


def test_a_drop_is_in_the_metrics_unit_and_a_gain_is_called_one() -> None:
    gain = sentence(judged([(first_test(3), pairs_of([-0.02, -0.021, -0.019]))], 0.01), "accuracy")
    assert "and as good: the accuracy is at least 1." in gain
    assert gain.endswith(" points better (95 % bound, mean 2 points better, 3 paired seeds).")
    drop = sentence(judged([(first_test(3), pairs_of([0.004, 0.005, 0.003]))], 0.01), "accuracy")
    assert "and as good: the accuracy is at most 0." in drop
    assert drop.endswith("mean 0.4 points worse, 3 paired seeds), within the allowed 1 point.")
    same = sentence(judged([(first_test(3), pairs_of([1e-6, 2e-6, 1e-6]))], 0.01), "accuracy")
    assert "and as good: the accuracy is at least as good (95 % bound" in same
    lost = sentence(judged([(first_test(3), pairs_of([0.4, 0.41, 0.39]))], 0.01), "loss")
    assert lost.startswith("Refuted: the loss is at least 0.3")
    assert lost.endswith(" worse (95 % bound, mean 0.4 worse, 3 paired seeds), more than the allowed 0.01.")


def test_a_further_test_is_asked_for_behind_all_pairs_and_at_its_own_error() -> None:
    drops = [0.0, 0.02, -0.01, 0.01, 0.0]
    tests = [(first_test(5), pairs_of(drops)), (further_test(5, 5, 0), pairs_of(drops))]
    open_ = judged(tests, 0.006)
    assert (open_.verdict, open_.end) == (UNDECIDED, 10)
    strict = replace(open_.quality.bounds, error=further_error(1))
    told = sentence(open_, "accuracy", next_error=further_error(1), command=lambda seeds, _: f"tune {seeds}")
    seeds = int(told.rsplit(" ", 1)[1].rstrip("`."))
    assert f"About {seeds - 10} fresh seeds would decide" in told
    looser = sentence(open_, "accuracy", next_error=0.05, command=lambda seeds, _: f"tune {seeds}")
    assert int(looser.rsplit(" ", 1)[1].rstrip("`.")) < seeds
    assert strict.error == 0.0025


def test_a_speed_that_follows_from_the_number_of_steps_has_no_interval() -> None:
    told = sentence(judged([], 0.01, time_ratio((), (0.464, 0.464, 0.464))), "mse", per="per run")
    assert told == "Undecided whether it keeps the mse: faster per run (2.16 x, by its number of steps); not tested."


def test_where_time_runs_out_before_the_first_look_that_one_is_taken_there() -> None:
    for n_planned in (40, 10):  # with a look at half, and too small for one
        assert read_early(first_test(n_planned, 10), 9).looks == ((9, 0.005), (n_planned, 0.035))
    for test, n_done in ((first_test(40, 10), 20), (first_test(40, 10), 31), (further_test(5, 10, 0), 7)):
        assert read_early(test, n_done) == test, "a look of its own was taken, or its one error is planned for the end"
