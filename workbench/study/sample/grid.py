"""Every point of a space once: only those that a conditional space has, and each plan a single time.

The points are found by walking through `search_space.suggest` again and again, turning back at the last choice that has
a value left, so a parameter varies only where it is in effect. They are tried in a shuffled order, the same in every
process: a study that ends early has seen all regions. A trial takes the point whose place is the number of drawn
trials before it, so processes need not agree; what is left over because its trial failed is taken at the end.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState

from workbench.config import ConfigError
from workbench.study.ask.search_space import Dimension, SearchedSpace
from workbench.study.errors import StudyError
from workbench.study.sample.whole_space import WholeSpaceSampler, keep_sampler_state, number_at, sampler_state

_MOST_POINTS = 2000  # beyond, finding them would take longer than a trial, and trying them for ever


class GridSampler(WholeSpaceSampler):
    """Draws points from `grid_points` in an order that all trials share by the study's seed."""

    def __init__(
        self, space: SearchedSpace, points: Sequence[Mapping[str, Any]], *, seed: int, study_seed: int
    ) -> None:
        super().__init__(space, RandomSampler(seed=seed))
        self._points = points
        self._order = [int(index) for index in np.random.default_rng(study_seed).permutation(len(points))]

    def propose(self, study: optuna.Study, trial: FrozenTrial) -> Mapping[str, Any]:
        """Return the trial's point."""
        earlier = (one for one in study.get_trials(deepcopy=False) if one.number < trial.number)
        place = sum("fixed_params" not in one.system_attrs for one in earlier)  # those were enqueued with their values
        order = self._order
        if place >= len(order):
            order, place = self._missing(study, trial.number), place - len(order)
        if not order:
            return {}
        index = order[place % len(order)]
        keep_sampler_state(study, trial, {"grid_point": index})
        return self._points[index]

    def is_exhausted(self, study: optuna.Study) -> bool:
        """Return whether every point has been taken, and no trial waits to be run again."""
        return not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)) and not self._missing(study)

    def _missing(self, study: optuna.Study, besides: int = -1) -> list[int]:
        """Return the points that no trial, or only a given one, has taken, in the order in which they would be."""
        trials = (one for one in study.get_trials(deepcopy=False) if one.number != besides)
        taken = {sampler_state(one).get("grid_point") for one in trials if one.state != TrialState.FAIL}
        return [index for index in self._order if index not in taken]


def check_finite(dimensions: Sequence[Dimension], points: int | None) -> None:
    """Refuse ranges with endlessly many values, unless ``points`` of each are asked for."""
    endless = [one for one in dimensions if one.kind == "float" and one.step is None and one.low < one.high]
    if points is None and endless:
        raise StudyError(
            f"[space] `{endless[0].path}` is a range without steps, which a grid cannot walk through: give it a "
            '`step`, list its values, or set `points` in [sampler] (name = "grid")'
        )


def grid_points(space: SearchedSpace, points: int | None) -> list[dict[str, Any]]:
    """Return what a trial draws at each point of the grid, which must not have too many.

    ``points`` of a range are taken, evenly spread from end to end; None takes all whole numbers and steps.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    forks: list[list[int]] = []
    for _ in range(_MOST_POINTS):
        with contextlib.suppress(ConfigError):  # values that contradict each other are not a point
            plan, drawn = _leaf(space, points, forks)
            found.setdefault(plan, drawn)
        while forks and forks[-1][0] + 1 == forks[-1][1]:
            forks.pop()
        if not forks:
            return list(found.values())
        forks[-1][0] += 1
    raise StudyError(
        f"[space] has more than {_MOST_POINTS} points for a grid: list fewer values, give `sampler.points` a "
        "smaller number, or take another sampler"
    )


def _leaf(space: SearchedSpace, points: int | None, forks: list[list[int]]) -> tuple[tuple[str, str], dict[str, Any]]:
    """Draw along a path of forks, [place of the value, number of values] each, and go on with first values to its end.

    Return what identifies the plan that was drawn from others, and the values.
    """
    drawn: dict[str, Any] = {}

    def value(name: str, distribution: BaseDistribution) -> Any:
        values = _values(distribution, points)
        if len(drawn) == len(forks):
            forks.append([0, len(values)])
        drawn[name] = values[forks[len(drawn)][0]]
        return drawn[name]

    suggestion = space.suggest(value)
    return (suggestion.level, space.plans.resolve(suggestion.config, suggestion.level).training_key()), drawn


def _values(distribution: BaseDistribution, points: int | None) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, (FloatDistribution, IntDistribution))
    low, high, is_whole = distribution.low, distribution.high, isinstance(distribution, IntDistribution)
    every = 1 if is_whole and distribution.log else distribution.step
    if low == high:
        return [low]
    steps = math.inf if every is None else (high - low) / every
    if every is not None and (points is None or round(steps) < points):
        return [min(low + place * every, high) for place in range(math.floor(steps + 1e-9) + 1)]
    assert points is not None  # a range without steps was refused
    shares = [place / (points - 1) for place in range(points)] if points > 1 else [0.5]
    return list(dict.fromkeys(number_at(distribution, share) for share in shares))  # no step or whole number twice
