"""Tests that the declared conditions give the answers that comparing plans gave."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.tuning.test_differences import DIMENSIONS, NETWORKS, SPACE
from workbench.config import (
    LEVELS,
    SWITCHES,
    BoostConfig,
    ConfigError,
    Facts,
    NetworkFacts,
    acts,
    describe_parameters,
)
from workbench.panels.idle_reasons import idle_reason
from workbench.study.ask.differences import Differences
from workbench.study.ask.plans import StudyPlans
from workbench.study.ask.search_space import Dimension, may_count, parents_first, read_space, suggest

INFOS = describe_parameters()
WORLDS = pytest.mark.parametrize(
    ("ranks", "network"),
    [(ranks, network) for network in NETWORKS.values() for ranks in (1, 4, 8)],
    ids=[f"{name}-{ranks}" for name in NETWORKS for ranks in (1, 4, 8)],
)


def drawn(draw: random.Random) -> BoostConfig:
    """Return a configuration with values of a third of the space, none of which is refused."""
    config = BoostConfig().with_values({"boost.mode": draw.choice(["manual", "manual", "manual", "auto"])})
    for dimension in draw.sample(DIMENSIONS, len(DIMENSIONS) // 3):
        try:
            config = config.with_values({dimension.path: draw.choice(dimension.extremes)})
        except ConfigError:
            continue
    return config


def allowed(config: BoostConfig, path: str, values: Any) -> list[Any]:
    found = []
    for value in values:
        try:
            config.with_values({path: value})
        except ConfigError:
            continue
        found.append(value)
    return found


@WORLDS
def test_a_plan_says_what_the_conditions_say(ranks: int, network: NetworkFacts | None) -> None:
    plans = StudyPlans(ranks, network)
    for seed in range(150):
        draw = random.Random(seed)
        level, config = draw.choice(list(LEVELS)), drawn(draw)
        plan = plans.resolve(config, level)
        facts = Facts(level, ranks, network)
        assert plan.in_effect() == tuple(name for name in SWITCHES if acts(name, plan.config, facts))
        for path, about in INFOS.items():
            expected = plan.matters(path)
            if path == "optimizer.name" and plan.dim_reduce:
                expected = False  # it chose among optimizers of which none steps
            assert (not about.when.why_not(plan.config, facts)) is expected, (path, config, level)
        for entry in plan.dropped:
            if entry.name in SWITCHES:
                reason = INFOS[f"boost.{entry.name}"].needs.why_not(plan.config, facts)
                assert entry.reason == f"{entry.name} is not in effect because {reason}"


@WORLDS
def test_a_parameter_counts_where_its_values_give_different_plans(ranks: int, network: NetworkFacts | None) -> None:
    plans = StudyPlans(ranks, network)
    seen = {True: 0, False: 0}
    for seed in range(60):
        draw = random.Random(seed)
        level, config = draw.choice(list(LEVELS)), drawn(draw)
        look = Differences(config, level, plans)
        for one in DIMENSIONS:
            values = allowed(config, one.path, one.extremes)
            if len(values) == len(one.extremes):  # else being refused is what differs
                expected = look.differ(one.path, values)
                assert may_count(one, config, level, plans, [one]) is expected, (one.path, config, level)
                seen[expected] += 1
    assert min(seen.values()) > 300  # both answers were asked for


@WORLDS
def test_a_reason_is_given_exactly_where_the_panel_gave_one(ranks: int, network: NetworkFacts | None) -> None:
    for seed in range(150):
        draw = random.Random(seed)
        level, config = draw.choice(list(LEVELS)), drawn(draw)
        try:
            plan = config.resolve(level, ranks, network)
        except ConfigError:
            continue
        facts = Facts(level, ranks, network)
        for path, about in INFOS.items():
            before = idle_reason(plan, path, {})
            now = about.when.why_not(config, facts)
            if path == "optimizer.name" and plan.dim_reduce:
                assert (before, now) == ("", "DimReduce makes its own steps")
            elif path.startswith("compatibility."):
                assert bool(now) is bool(before)  # it says now what is off
            else:
                assert now == before, (path, config, level)


class Scripted:
    """Draws the same value of a parameter whenever it is asked for it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.values: dict[str, Any] = {}

    def _draw(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def suggest_categorical(self, name: str, choices: Any, /) -> Any:
        self.values[name] = self._draw(name).choice(list(choices))
        return self.values[name]

    def suggest_float(self, name: str, low: float, high: float, **_: Any) -> float:
        self.values[name] = self._draw(name).choice([low, high])
        return float(self.values[name])

    def suggest_int(self, name: str, low: int, high: int, **_: Any) -> int:
        self.values[name] = self._draw(name).choice([low, high])
        return int(self.values[name])


DECIDE_TOGETHER = {
    # Freezing that has nothing to freeze shuts AdaSum out; comparing plans saw it one step ahead only.
    *("boost.grad_freeze", "boost.adasum"),
    # The first of two that only together let a method act is drawn before the other is known.
    *("grad_freeze.param_groups", "compatibility.less_bn_match"),
}


@WORLDS
def test_a_trial_draws_what_it_drew(ranks: int, network: NetworkFacts | None) -> None:
    plans = StudyPlans(ranks, network)
    base = BoostConfig().with_values({"boost.mode": "manual"})
    equal = 0
    for seed in range(100):
        draw = random.Random(seed)
        level = draw.choice(list(LEVELS))
        paths = [
            path
            for path in draw.sample(list(SPACE), 25)
            if path not in {"loss_scale.minimum", "optimizer.nesterov", "boost.mode"}  # may be refused
            and not (level == "O0" and path.startswith("boost."))
        ]
        dimensions = read_space({path: SPACE[path] for path in paths})
        before, now = Scripted(seed), Scripted(seed)
        suggestion = suggest(before, (Dimension("level", "choice", (level,)), *dimensions), base, plans)
        del before.values["level"]
        config = base.with_values({"boost.mode": "disable_all"}) if level == "O0" else base
        waiting = list(parents_first([one for path in paths for one in dimensions if one.path == path]))
        while waiting:
            one = waiting[0]
            counts = may_count(one, config, level, plans, waiting)
            waiting.remove(one)
            if counts:
                config = config.with_values({one.path: one.draw(now)})
        assert plans.resolve(suggestion.config, level) == plans.resolve(config, level)
        assert now.values.keys() - before.values.keys() <= DECIDE_TOGETHER
        equal += now.values == before.values
    assert equal >= 85  # elsewhere a switch was drawn in vain, before the loss scale it needs, for example
