"""Rounds: who goes when, and what the numbers say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from workbench.bench import Estimate, interleaved, median_of, ratio_of, timed
from workbench.bench.rounds import median_of_copies


def test_sides_take_turns_and_every_other_round_is_reversed() -> None:
    calls: list[str] = []

    def side(name: str) -> Callable[[], str]:
        def run() -> str:
            calls.append(name)
            return f"{name}{len(calls)}"

        return run

    rows = interleaved([side("a"), side("b"), side("c")], 2, warm_up=1)
    assert "".join(calls) == "abc" + "cba" + "abc"
    assert rows == [("a6", "b5", "c4"), ("a7", "b8", "c9")]  # in the order of the sides, without the warm-up


@pytest.mark.parametrize("rounds", [0, -1, float("nan")])
def test_at_least_one_round_is_asked_for(rounds: int) -> None:
    with pytest.raises(ValueError, match="`rounds` must be at least 1"):
        interleaved([lambda: 0.0], rounds)


def test_work_is_timed_by_the_clock_that_is_given() -> None:
    now = [100.0]

    def work() -> None:
        now[0] += 2.5

    assert timed(work, lambda: now[0])() == 2.5


def test_a_slow_round_slows_both_sides_and_leaves_the_ratio() -> None:
    load = [1.0, 5.0, 1.0, 3.0]
    ratio = ratio_of([1.2 * x for x in load], [1.0 * x for x in load])
    assert ratio.rounds == 4
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.2, 1.2, 1.2))


def test_the_interval_of_a_median_holds_it_and_narrows_with_rounds() -> None:
    rng = np.random.default_rng(0)
    values = 1.0 + 0.1 * rng.standard_normal(400)
    few, many = median_of(values[:10].tolist()), median_of(values.tolist())
    assert few.low <= few.value <= few.high
    assert many.high - many.low < 0.5 * (few.high - few.low)
    assert many.low < 1.0 < many.high


def test_one_round_gives_a_number_without_width() -> None:
    assert median_of([3.0]) == Estimate(3.0, 3.0, 3.0, 1)


def test_an_interval_over_copies_holds_what_copies_differ_by() -> None:
    rng = np.random.default_rng(0)
    copies = [(shift + 0.01 * rng.standard_normal(5)).tolist() for shift in (1.0, 1.1, 1.2, 1.3, 1.4)]
    over_copies = median_of_copies(copies)
    over_rounds = median_of([value for copy in copies for value in copy])
    assert over_copies.value == over_rounds.value == pytest.approx(1.2, abs=0.02)
    assert over_copies.rounds == 25
    assert over_copies.low < 1.1
    assert over_copies.high > 1.3
    assert over_copies.high - over_copies.low > 1.5 * (over_rounds.high - over_rounds.low)
    assert median_of_copies([[3.0]]) == Estimate(3.0, 3.0, 3.0, 1)
