"""The regression of quality: right about plans it has not seen, about as sure as it may be, and hard to upset."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg  # type: ignore[import-untyped]
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

from workbench.study.ask.space_table import read_space
from workbench.study.set_up.quality import QualityModel, Tried, noise_of, point_of

ALLOWED, NOISE = 0.01, 0.006
LENGTH, RATE, NAME = "schedule.length", "optimizer.lr", "optimizer.name"
DIMENSIONS = read_space(
    {
        LENGTH: {"low": 0.1, "high": 1.0, "log": True},
        RATE: {"low": 0.001, "high": 0.1, "log": True},
        NAME: ["SGD", "AdamW"],
    }
)


def truth(plan: dict[str, Any]) -> float:
    """Return a plan's mean deficit: half the length costs two points, a rate ten times off one."""
    off = math.log10(plan[RATE] / 0.01)
    better = 0.01 if plan[NAME] == "AdamW" else 0.0
    return -0.02 * math.log2(plan[LENGTH]) - 0.01 + 0.01 * off**2 - better


def plans(rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
    return [
        {
            LENGTH: float(10 ** rng.uniform(-1.0, 0.0)),
            RATE: float(10 ** rng.uniform(-3.0, -1.0)),
            NAME: str(rng.choice(["SGD", "AdamW"])),
        }
        for _ in range(n)
    ]


def tried(rng: np.random.Generator, n: int, n_seeds: int = 1) -> list[Tried]:
    return [Tried(one, tuple(truth(one) + rng.normal(0.0, NOISE, n_seeds))) for one in plans(rng, n)]


def fitted(runs: list[Tried]) -> QualityModel:
    return QualityModel(DIMENSIONS, runs, ALLOWED, NOISE)


def test_the_probability_rises_with_the_length() -> None:
    model = fitted(tried(np.random.default_rng(0), 30))
    for name in ("SGD", "AdamW"):
        lengths = [{LENGTH: length, RATE: 0.01, NAME: name} for length in (0.1, 0.2, 0.4, 0.6, 0.95)]
        found = model.probability(lengths)
        assert all(np.diff(found) > -0.02), found
        assert found[0] < 0.1
        assert found[-1] > 0.9


def test_influence_is_what_the_quality_varies_by_and_not_where_a_search_has_looked() -> None:
    """Most plans lie around a leader: of the same optimizer, at nearly the same rate."""
    rng = np.random.default_rng(5)
    around = [{**one, RATE: 0.05 * one[RATE] ** 0.1, NAME: "SGD"} for one in plans(rng, 30)]
    every = [*plans(rng, 30), *around]

    def shares(*slopes: float) -> dict[str, float]:
        """Return the influence of all three in a truth with so much of each."""

        def lost(one: dict[str, Any]) -> float:
            parts = (-math.log2(one[LENGTH]), math.log10(one[RATE] / 0.01) ** 2, one[NAME] == "SGD")
            return sum(slope * part for slope, part in zip(slopes, parts, strict=True))

        found = fitted([Tried(one, (lost(one) + rng.normal(0.0, NOISE),)) for one in every]).influence(every)
        return {path: value / sum(found.values()) for path, value in found.items()}

    assert min(shares(0.01, 0.04, 0.03).values()) > 0.1
    alone = shares(0.02, 0.0, 0.0)
    assert alone.keys() == {LENGTH, RATE, NAME}
    assert alone[LENGTH] > 0.9


def test_a_parameter_of_one_optimizer_has_influence_where_that_is_taken() -> None:
    space = read_space({NAME: ["SGD", "AdamW"], "optimizer.lr[AdamW]": {"low": 0.001, "high": 0.1, "log": True}})
    rng = np.random.default_rng(6)
    every: list[dict[str, Any]] = [{NAME: "SGD"} for _ in range(10)]
    every += [{NAME: "AdamW", "optimizer.lr[AdamW]": float(10 ** rng.uniform(-3.0, -1.0))} for _ in range(20)]
    lost = [0.02 * math.log10(one.get("optimizer.lr[AdamW]", 0.01) / 0.01) ** 2 for one in every]
    model = QualityModel(space, [Tried(one, (at,)) for one, at in zip(every, lost, strict=True)], ALLOWED, 0.001)
    found = model.influence(every)
    assert found["optimizer.lr[AdamW]"] > 0.5 * sum(found.values())
    assert model.influence([{NAME: "SGD"}]) == {NAME: 0.0, "optimizer.lr[AdamW]": 0.0}


def test_the_better_optimizer_and_the_better_rate_are_more_probable() -> None:
    model = fitted(tried(np.random.default_rng(1), 40))

    def at(rate: float, name: str) -> float:
        return float(model.probability([{LENGTH: 0.45, RATE: rate, NAME: name}])[0])

    assert at(0.01, "AdamW") > at(0.01, "SGD") + 0.2
    assert at(0.01, "AdamW") > at(0.1, "AdamW") + 0.1


def test_probabilities_are_about_as_often_right_as_they_say() -> None:
    """On plans that no run has seen, over ten searches: their shares in each bin of probability."""
    sure, good = list[npt.NDArray[np.float64]](), list[npt.NDArray[np.bool_]]()
    for seed in range(10):
        rng = np.random.default_rng(seed)
        model = fitted(tried(rng, 25))
        unseen = plans(rng, 60)
        sure.append(model.probability(unseen))
        good.append(np.array([truth(one) <= ALLOWED for one in unseen]))
    said, came = np.concatenate(sure), np.concatenate(good)
    # A z-score per plan: how far the truth lies from what was said, in its own standard deviations. Were all of them
    # right on the average, so would be their sum; within a factor of about 1.5 they are as sure as they may be.
    spread = np.sqrt(np.clip(said * (1.0 - said), 1e-3, None))
    scores = (came - said) / spread
    assert abs(float(np.mean(scores))) < 0.25
    assert 0.4 < float(np.std(scores)) < 1.5
    assert float(np.mean(came[said > 0.9])) > 0.9
    assert float(np.mean(came[said < 0.1])) < 0.1
    between = (said > 0.3) & (said < 0.7)
    assert 0.2 < float(np.mean(came[between])) < 0.8


def test_more_seeds_at_a_plan_make_it_surer() -> None:
    rng = np.random.default_rng(3)
    around = tried(rng, 12)
    good = {LENGTH: 0.6, RATE: 0.01, NAME: "AdamW"}
    once, often = (fitted([*around, Tried(good, (truth(good),) * n)]).probability([good])[0] for n in (1, 16))
    assert truth(good) < ALLOWED
    assert often > once


@pytest.mark.parametrize("n_diverged", [1, 10, 30])
def test_runs_that_diverged_break_nothing(n_diverged: int) -> None:
    """Here those of a rate beyond 0.03, which is what the model should learn from them."""
    rng = np.random.default_rng(4)
    bad = [
        Tried({LENGTH: float(rng.uniform(0.1, 1.0)), RATE: float(rng.uniform(0.05, 0.1)), NAME: "SGD"}, (math.inf,))
        for _ in range(n_diverged)
    ]
    model = fitted([one for one in tried(rng, 30) if one.values[RATE] < 0.03] + bad)
    found = model.probability([{LENGTH: 0.95, RATE: 0.01, NAME: "AdamW"}, {LENGTH: 0.5, RATE: 0.08, NAME: "SGD"}])
    assert np.isfinite(found).all()
    assert found[0] > 0.8
    assert found[1] < 0.3
    nothing_else = fitted(bad[:1]).probability([bad[0].values])
    assert 0.0 <= nothing_else[0] < 0.1


def test_before_any_run_every_plan_has_the_same_probability_which_is_no_certainty() -> None:
    found = fitted([]).probability(plans(np.random.default_rng(5), 4))
    assert found.shape == (4,)
    assert len(set(found)) == 1
    assert 0.0 < found[0] < 1.0
    assert fitted([]).probability([]).shape == (0,)


def test_a_plan_without_a_value_lies_in_the_middle_of_its_range() -> None:
    middle = point_of(DIMENSIONS, {LENGTH: 10**-0.5, RATE: 0.01, NAME: "SGD"})
    np.testing.assert_allclose(point_of(DIMENSIONS, {NAME: "SGD"}), middle)


def test_the_noise_comes_from_plans_with_several_seeds_and_diverged_runs_are_none() -> None:
    rng = np.random.default_rng(6)
    many = [Tried({}, tuple(rng.normal(0.0, NOISE, 8))) for _ in range(60)]
    assert noise_of(many, prior=1.0, prior_weight=1) == pytest.approx(math.sqrt(NOISE**2 + 1.0 / 421), rel=0.1)
    assert noise_of(many, prior=0.05) < 0.01
    assert noise_of([Tried({}, (0.1,)), Tried({}, (math.inf, 0.2))], prior=0.05) == pytest.approx(0.05)


def test_runs_that_go_wrong_say_nothing_of_the_noise_of_those_that_do_not() -> None:
    rng = np.random.default_rng(7)
    good = [Tried({}, tuple(rng.normal(0.0, NOISE, 8))) for _ in range(30)]
    wrong = [Tried({}, (0.3, 4e8, 77.0)), Tried({}, (0.2, 0.9, 1.4, 0.5))]
    assert noise_of([*good, *wrong], NOISE, allowed=NOISE) == noise_of(good, NOISE, allowed=NOISE)


def test_a_plan_that_is_known_well_and_a_little_too_bold_is_not_worth_another_try() -> None:
    rng = np.random.default_rng(8)
    [bold] = plans(rng, 1)
    bold |= {LENGTH: 0.4}
    longer = bold | {LENGTH: 0.55}
    known = [Tried(bold, tuple(ALLOWED * 0.95 + rng.normal(0.0, NOISE, 60)))]
    model = fitted(known)
    sure = model.probability([bold, longer])
    convinces = model.probability_to_convince([bold, longer], sure=0.9)
    assert 0.2 < sure[0] < 0.9
    assert convinces[0] < 0.5 * sure[0], "sixty runs have said what there is to say"
    assert convinces[1] > convinces[0]
    assert np.all((convinces >= 0.0) & (convinces <= 1.0))


def test_small_systems_are_solved_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[set[int]] = []

    def noted(name: str) -> Any:
        solve = getattr(scipy.linalg, name)

        def call(*args: Any, **options: Any) -> Any:
            counts.append({library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"})
            return solve(*args, **options)

        return call

    for name in ("cholesky", "solve_triangular"):  # of a fit, and of a prediction
        monkeypatch.setattr(scipy.linalg, name, noted(name))
    with threadpool_limits(2, user_api="blas"):
        tried = [Tried(plan, (truth(plan),)) for plan in plans(np.random.default_rng(0), 3)]
        QualityModel(DIMENSIONS, tried, ALLOWED, NOISE).probability(plans(np.random.default_rng(1), 5))
    assert len(counts) > 2
    assert set().union(*counts) == {1}
