"""Scores are finite arithmetic on stored measurements; what is reported for pruning is smaller = better."""

from __future__ import annotations

import math

import optuna
import pytest

from workbench.study.run.job import SpeedMeasured, Trained
from workbench.study.run.objective import Baseline, deficit_at_equal_time, score, steps_to_target
from workbench.study.sample.sampling import make_pruner

CURVE = ((10, 0.5), (20, 0.7), (30, 0.8), (40, 0.9))
BASELINE = Baseline(0.9, CURVE, True, 40)
HALF = SpeedMeasured(0.5, 0.48, 0.52)


def trained(*metrics: float, diverged: bool = False) -> Trained:
    curve = tuple((10 * (index + 1), metric) for index, metric in enumerate(metrics))
    return Trained(math.nan if diverged else metrics[-1], curve, 1.0, diverged=diverged)


def test_the_target_is_reached_between_evaluations() -> None:
    assert steps_to_target(CURVE, 0.75, higher_is_better=True) == pytest.approx(25.0)
    assert steps_to_target(CURVE, 0.4, higher_is_better=True) == 10.0
    assert steps_to_target(CURVE, 0.91, higher_is_better=True) == math.inf
    assert steps_to_target([(10, 3.0), (20, 2.0)], 2.5, higher_is_better=False) == pytest.approx(15.0)


EARLY, NEVER, LOST, LATE = (0.6, 0.7, 0.9, 0.9), (0.5, 0.6, 0.6, 0.6), (0.6, 0.9, 0.9, 0.5), (0.6, 0.7, 0.8, 0.85)


@pytest.mark.parametrize(
    ("metrics", "objective", "warm_up", "steps", "values"),
    [
        (EARLY, "time_to_target", 0, 25.0, (0.5 * 25.0,)),
        (EARLY, "time_to_target", 12, 25.0, (12 + 0.5 * 25.0,)),  # at O0's step time
        (EARLY, "speed", 12, 25.0, (0.5,)),
        (NEVER, "time_to_target", 0, math.inf, (0.5 * 40,)),  # censored at the budget
        (NEVER, "time_to_target", 12, math.inf, (12 + 0.5 * 40,)),
        (LOST, "time_to_target", 0, 50 / 3, (0.5 * 50 / 3,)),  # reached, and yet not feasible
        (LATE, "speed", 0, 30.0, (0.5,)),
        (LATE, "pareto", 0, 30.0, (0.85, 0.5)),
    ],
)
def test_a_run_is_scored_by_its_steps_their_time_and_its_last_metric(
    metrics: tuple[float, ...], objective: str, warm_up: int, steps: float, values: tuple[float, ...]
) -> None:
    scored = score(trained(*metrics), HALF, BASELINE, 0.1, objective, warm_up)
    assert scored.steps_to_target == pytest.approx(steps)
    assert scored.values == pytest.approx(values)
    assert scored.constraint == pytest.approx(0.9 - metrics[-1] - 0.1)
    assert scored.feasible == (metrics in (EARLY, LATE))


@pytest.mark.parametrize("objective", ["time_to_target", "speed", "pareto"])
@pytest.mark.parametrize("higher", [True, False])
def test_a_diverged_run_gets_a_finite_penalty_worse_than_anything_that_works(objective: str, higher: bool) -> None:
    baseline = Baseline(0.9, CURVE, higher, 40)
    good = score(trained(0.9, 0.9, 0.9, 0.9), SpeedMeasured(2.0, 2.0, 2.0), baseline, 0.1, objective)
    bad = score(trained(0.5, diverged=True), SpeedMeasured(math.nan, math.nan, math.nan), baseline, 0.1, objective)
    assert all(math.isfinite(value) for value in (*bad.values, bad.constraint))
    assert bad.values[-1] > good.values[-1]
    if objective == "pareto":
        assert (bad.values[0] < good.values[0]) == higher
    assert bad.constraint > 0


def test_a_fast_trial_is_compared_with_what_o0_had_after_the_same_time() -> None:
    # 30 steps at half the step time are as long as 15 steps of O0, where its curve stands at 0.6
    assert deficit_at_equal_time(BASELINE, 30, 0.65, 0.5) == pytest.approx(-0.05)
    assert deficit_at_equal_time(BASELINE, 10, 0.65, 0.5) is None  # before O0's first evaluation
    assert deficit_at_equal_time(BASELINE, 10, 0.7, 0.5, 20) == pytest.approx(0.75 - 0.7)  # a warm-up counts, too
    assert deficit_at_equal_time(BASELINE, 40, 0.8, 2.0) == pytest.approx(0.1)  # O0 keeps its final metric
    assert deficit_at_equal_time(BASELINE, 20, math.nan, 1.0) == math.inf


def test_the_default_pruner_stops_the_larger_deficit() -> None:
    study = optuna.create_study(pruner=make_pruner("median", {}, budget_steps=30))
    for deficit in (0.0, 0.01, 0.02, 0.03):
        trial = study.ask()
        trial.report(deficit, 20)
        study.tell(trial, 1.0)
    verdicts = []
    for deficit in (0.001, 0.2):
        trial = study.ask()
        trial.report(deficit, 20)
        verdicts.append(trial.should_prune())
    assert verdicts == [False, True]
