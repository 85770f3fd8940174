"""Tests for `workbench.study.ask.differences`: the quick answer is the plans' own."""

from __future__ import annotations

import random
from typing import Any

import pytest

from workbench.config import (
    LEVELS,
    BoostConfig,
    ConfigError,
    NetworkFacts,
    describe_parameters,
)
from workbench.study.ask.differences import Differences
from workbench.study.ask.plans import StudyPlans
from workbench.study.ask.search_space import read_space

PATHS = [
    path
    for path, about in describe_parameters().items()
    if about.kind in {"bool", "choice"} or (about.kind in {"int", "float"} and about.low is not None)
]
SPACE = {
    **dict.fromkeys(PATHS, True),
    "grad_freeze.total_steps": {"low": 0, "high": 100},
    "grad_freeze.param_groups": {"low": 1, "high": 4},
    "grad_accumulation.grad_accumulation_step": [1, 2],
    "loss_scale.minimum": {"low": 1, "high": 1000.0},
    "optimizer.betas": [[0.9, 0.99], [0.8, 0.9]],
    "dim_reduce.weight_load_dir": ["a", "b", ""],
    "dim_reduce.pca_mat_path": ["a.npy", ""],
    "common.device_number": [1, 2, 8],
    "loss_scale.collapse_after": [1, 2],
}
DIMENSIONS = read_space(SPACE)


def _outcome(config: BoostConfig, level: str, plans: StudyPlans, values: dict[str, Any]) -> object:
    try:
        return plans.resolve(config.with_values(values), level).parameters_in_effect()
    except ConfigError as error:
        return str(error)


def _differ(config: BoostConfig, level: str, plans: StudyPlans, path: str, values: Any, other: dict[str, Any]) -> bool:
    outcomes = [_outcome(config, level, plans, {**other, path: value}) for value in values]
    return any(outcome != outcomes[0] for outcome in outcomes)


NETWORKS = {
    "unknown": None,
    "without BatchNorm": NetworkFacts(0, 0, 3, 3, 0, 3),
    "by one rule only": NetworkFacts(4, 2, 4, 2, 0, 4),
}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_values_differ_exactly_when_their_plans_do(ranks: int, network: NetworkFacts | None) -> None:
    plans = StudyPlans(ranks, network)
    seen = {True: 0, False: 0}
    for seed in range(12):
        draw = random.Random(100 * ranks + seed)
        level = draw.choice(list(LEVELS))
        look = Differences(BoostConfig().with_values({"boost.mode": "manual"}), level, plans)
        for dimension in draw.sample(DIMENSIONS, 25):
            for one in draw.sample(DIMENSIONS, 3):
                other = draw.choice([None, draw.choice(DIMENSIONS)])
                besides = None if other is None or other.path == one.path else (other.path, draw.choice(other.extremes))
                given = {} if besides is None else dict([besides])
                expected = _differ(look.config, level, plans, one.path, one.extremes, given)
                assert look.differ(one.path, one.extremes, besides) is expected, (look.config, one.path, besides)
                seen[expected] += 1
            value = draw.choice(dimension.extremes)
            if look.possible(dimension.path, value):
                look = look.with_value(dimension.path, value)
    assert min(seen.values()) > 100  # both answers were asked for


def test_a_refused_value_is_an_outcome_of_its_own() -> None:
    look = Differences(BoostConfig(), "O0", StudyPlans()).with_value("loss_scale.init", 100.0)
    assert not look.possible("loss_scale.minimum", 1000.0)
    assert look.differ("loss_scale.minimum", (1.0, 1000.0))
    assert not look.differ("loss_scale.minimum", (1.0, 10.0))


def test_true_is_not_taken_for_one() -> None:
    look = Differences(BoostConfig(), "O1", StudyPlans())
    assert look.possible("grad_freeze.freeze_type", 1)
    assert not look.possible("grad_freeze.freeze_type", True)
