"""Every point of a space once: what a conditional space has of them, and each plan a single time.

The points are found by walking through `search_space.suggest` again and again, turning back at the last choice that has
a value left, so a parameter varies only where it is in effect. They are tried in a shuffled order, the same in every
process: a study that ends early has seen all regions. A trial takes the point whose place is the number of drawn
trials before it, which needs no agreement between processes, since no two trials have the same number; what is left
over at the end, because its trial failed, is taken then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from workbench.config import ConfigError
from workbench.study.ask.search_space import Dimension
from workbench.study.errors import StudyError
from workbench.study.sample.whole_space import (
    SearchedSpace,
    keep_sampler_state,
    sampler_state,
    value_at,
)

__all__ = ["GridSampler", "check_finite", "grid_points"]

_MOST_POINTS = 2000
"""Beyond, finding them would take longer than a trial, and trying them for ever."""


class GridSampler(BaseSampler):
    """Draw the points of a grid.

    Args:
        space: What is searched.
        points: Its points, from `grid_points`.
        seed: Seed of this trial, for what the grid does not have.
        study_seed: Seed of the order: the same for all trials.
    """

    def __init__(
        self, space: SearchedSpace, points: Sequence[Mapping[str, Any]], *, seed: int, study_seed: int
    ) -> None:
        self._space = space
        self._points = points
        self._order = np.random.default_rng(study_seed).permutation(len(points))
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the whole space."""
        return self._space.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose the trial's point."""
        earlier = [one for one in study.get_trials(deepcopy=False) if one.number < trial.number and not _given(one)]
        place = len(earlier)
        if place >= len(self._points):
            missing = self.missing(study, trial.number)
            if not missing:
                return {}
            index = missing[(place - len(self._points)) % len(missing)]
        else:
            index = int(self._order[place])
        keep_sampler_state(study, trial, {"grid_point": index})
        return {path: value for path, value in self._points[index].items() if path in search_space}

    def missing(self, study: optuna.Study, besides: int = -1) -> list[int]:
        """Return the points that no trial has taken, in the order in which they would be.

        Args:
            study: The study.
            besides: Number of a trial that does not count.
        """
        taken = {
            sampler_state(one).get("grid_point")
            for one in study.get_trials(deepcopy=False)
            if one.state != TrialState.FAIL and one.number != besides
        }
        return [int(index) for index in self._order if int(index) not in taken]

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw at random what the grid does not have."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)


def grid_points(space: SearchedSpace, points: int | None) -> list[dict[str, Any]]:
    """Return what a trial draws at each point of the grid.

    Args:
        space: What is searched.
        points: Values of each range, evenly spread from end to end; None takes all whole numbers and steps.

    Raises:
        StudyError: When a range has no end of values, or the grid too many points.
    """
    check_finite(space.dimensions, points)
    found: list[dict[str, Any]] = []
    plans: set[tuple[str, str]] = set()
    path: list[int] | None = []
    visited = 0
    while path is not None:
        walk = _Walk(path, points)
        try:
            suggestion = space.suggest(walk)
            plan = (suggestion.level, space.plans.resolve(suggestion.config, suggestion.level).training_key())
            if plan not in plans:
                plans.add(plan)
                found.append(walk.drawn)
        except ConfigError:
            pass  # values that contradict each other are no point
        visited += 1
        if visited > _MOST_POINTS:
            raise StudyError(
                f"[space] has more than {_MOST_POINTS} points for a grid: list fewer values, give `sampler.points` a "
                "smaller number, or take another sampler"
            )
        path = walk.next_path()
    return found


def check_finite(dimensions: Sequence[Dimension], points: int | None) -> None:
    """Refuse ranges that have no end of values.

    Args:
        dimensions: What is searched.
        points: Values of each range; None takes all of them.

    Raises:
        StudyError: Naming the range and what would help.
    """
    endless = [one for one in dimensions if one.kind == "float" and one.step is None and one.low < one.high]
    if points is None and endless:
        raise StudyError(
            f"[space] `{endless[0].path}` is a range without steps, which a grid cannot walk through: give it a "
            '`step`, list its values, or set `points` in [sampler] (name = "grid")'
        )


class _Walk:
    """Draws along a path: at each fork the place of the value to take; the first value beyond its end."""

    def __init__(self, path: Sequence[int], points: int | None) -> None:
        self._path = path
        self._points = points
        self._taken: list[tuple[int, int]] = []  # place and number of values at each fork
        self.drawn: dict[str, Any] = {}

    def suggest_categorical(self, name: str, choices: Sequence[Any], /) -> Any:
        return self._take(name, list(choices))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return float(self._take(name, _values(FloatDistribution(low, high, step=step, log=log), self._points)))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return int(self._take(name, _values(IntDistribution(low, high, step=step, log=log), self._points)))

    def next_path(self) -> list[int] | None:
        """Return the path to the next leaf; None after the last."""
        taken = list(self._taken)
        while taken:
            place, count = taken.pop()
            if place + 1 < count:
                return [*(one for one, _ in taken), place + 1]
        return None

    def _take(self, name: str, values: Sequence[Any]) -> Any:
        depth = len(self._taken)
        place = self._path[depth] if depth < len(self._path) else 0
        self._taken.append((place, len(values)))
        self.drawn[name] = values[place]
        return values[place]


def _values(distribution: FloatDistribution | IntDistribution, points: int | None) -> list[Any]:
    low, high, step = distribution.low, distribution.high, distribution.step
    if low == high:
        return [low]
    whole = isinstance(distribution, IntDistribution)
    every = 1 if whole and distribution.log else step
    if points is None or (every is not None and round((high - low) / every) < points):
        assert every is not None
        return [min(low + place * every, high) for place in range(math.floor((high - low) / every + 1e-9) + 1)]
    ends = [place / (points - 1) for place in range(points)] if points > 1 else [0.5]
    if not whole and step is None:
        return [value_at(distribution, share) for share in ends]
    # Steps and whole numbers: the nearest one to each place, none twice.
    if distribution.log:
        wanted = [math.exp(math.log(low) + share * math.log(high / low)) for share in ends]
    else:
        wanted = [low + share * (high - low) for share in ends]
    assert every is not None
    return list(dict.fromkeys(min(low + round((value - low) / every) * every, high) for value in wanted))


def _given(trial: FrozenTrial) -> bool:
    """Return whether a trial was enqueued with its values instead of drawn."""
    return "fixed_params" in trial.system_attrs
