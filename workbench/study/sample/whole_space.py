"""The whole space of a study at once, for samplers that cannot see a conditional one.

A trial draws only what is in effect (`search_space.suggest`), so trials differ in what they have drawn, and O0 has
drawn next to nothing. Optuna's GP and genetic samplers model what *all* trials have in common: here that is nothing,
and without a word they would draw at random. So they are shown a copy of the study in which every trial has a value
for everything: the drawn ones, and a fixed middle value for what was not in effect. They propose a value for
everything, too, of which a trial takes what it asks for. Equal plans are equal points that way, and a parameter
that was not in effect tells the model nothing but that. (Imputing defaults so is SMAC's way with conditions: Hutter,
Hoos and Leyton-Brown, "Sequential model-based optimization for general algorithm configuration", LION 2011, section 4.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from workbench.config import BoostConfig
from workbench.study.ask.plans import StudyPlans
from workbench.study.ask.search_space import (
    Dimension,
    Draws,
    Suggestion,
    suggest,
)

__all__ = [
    "SearchedSpace",
    "WholeSpaceSampler",
    "keep_sampler_state",
    "sampler_state",
    "value_at",
    "values_at",
]

_STATE_KEY = "sampler"
"""User attribute of a trial with what its sampler must know of it later; plain numbers that anybody may read."""


@dataclass(frozen=True)
class SearchedSpace:
    """What a study searches, from one end to the other.

    Args:
        dimensions: What is searched, from `read_space`.
        base: O0's configuration.
        plans: How the study resolves configurations.
    """

    dimensions: tuple[Dimension, ...]
    base: BoostConfig
    plans: StudyPlans

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Path -> distribution as a trial draws it; what has one value only is left out."""
        found = {one.path: _distribution(one) for one in self.dimensions}
        return {path: one for path, one in found.items() if not one.single()}

    @cached_property
    def numbers(self) -> dict[str, FloatDistribution | IntDistribution]:
        """The ranges among them."""
        return {
            path: one
            for path, one in self.distributions.items()
            if isinstance(one, (FloatDistribution, IntDistribution))
        }

    def suggest(self, draws: Draws) -> Suggestion:
        """Draw a trial's configuration.

        Raises:
            ConfigError: When drawn values contradict each other.
        """
        return suggest(draws, self.dimensions, self.base, self.plans)

    def completed(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return a value for every parameter: the given one where it fits, else the middle of the range."""
        full = {}
        for path, distribution in self.distributions.items():
            value = parameters.get(path, _MISSING)
            full[path] = value if _fits(distribution, value) else value_at(distribution, 0.5)
        return full


_MISSING = object()


class WholeSpaceSampler(BaseSampler):
    """Let an Optuna sampler see, and propose, every parameter of a conditional space.

    Args:
        inner: The sampler.
        space: What is searched.
        seed: Seed for what the inner sampler does not propose.
    """

    def __init__(self, inner: BaseSampler, space: SearchedSpace, seed: int) -> None:
        self._inner = inner
        self._space = space
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the whole space."""
        return self._space.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose a value for every parameter."""
        if not search_space:
            return {}
        view = optuna.create_study(directions=study.directions, sampler=self._inner)
        view.add_trials([copy for one in study.get_trials(deepcopy=False) if (copy := self._copied(one, trial.number))])
        asked = view.ask(fixed_distributions=search_space)
        state = view.get_trials(deepcopy=False)[-1].system_attrs
        keep_sampler_state(study, trial, {key: value for key, value in state.items() if isinstance(value, int)})
        return dict(asked.params)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw at random what has only one value or stands outside the space."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _copied(self, trial: FrozenTrial, asking: int) -> FrozenTrial | None:
        """Return a trial with all parameters; None for one that tells the sampler nothing."""
        if trial.number == asking or trial.state not in {TrialState.COMPLETE, TrialState.RUNNING}:
            return None
        if trial.state == TrialState.RUNNING and not trial.params:
            return None  # another process is about to draw it
        try:
            return optuna.trial.create_trial(
                state=trial.state,
                values=trial.values,
                params=self._space.completed(trial.params),
                distributions=self._space.distributions,
                system_attrs=sampler_state(trial),
                constraints=trial.constraints or None,
            )
        except ValueError:  # a value outside its range: from a storage that somebody else has written to
            return None


def sampler_state(trial: FrozenTrial) -> dict[str, Any]:
    """Return what `keep_sampler_state` kept with a trial; empty when there is nothing."""
    state = trial.user_attrs.get(_STATE_KEY)
    return dict(state) if isinstance(state, dict) else {}


def keep_sampler_state(study: optuna.Study, trial: FrozenTrial, state: Mapping[str, Any]) -> None:
    """Keep with a trial what its sampler must know of it later, in any process.

    Args:
        study: The study.
        trial: The trial that is being drawn.
        state: Plain JSON values; nothing is kept when it is empty.
    """
    if state:
        # Optuna's own samplers keep their state through this attribute, too: a FrozenTrial has no other way.
        study._storage.set_trial_user_attr(trial._trial_id, _STATE_KEY, dict(state))


def value_at(distribution: BaseDistribution, share: float) -> Any:
    """Return the value that lies so far into a distribution.

    Args:
        distribution: The distribution.
        share: Position in [0, 1]; a choice or step gets an equal part of it.
    """
    share = min(max(share, 0.0), 1.0)
    if isinstance(distribution, CategoricalDistribution):
        choices = distribution.choices
        return choices[min(int(share * len(choices)), len(choices) - 1)]
    assert isinstance(distribution, (FloatDistribution, IntDistribution))
    low, high, step = distribution.low, distribution.high, distribution.step
    if isinstance(distribution, FloatDistribution) and step is None:
        if distribution.log:
            return min(max(math.exp(math.log(low) + share * (math.log(high) - math.log(low))), low), high)
        return low + share * (high - low)
    if distribution.log:  # of whole numbers; each gets its own part of the logarithm
        return min(max(round(math.exp(math.log(low - 0.5) + share * math.log((high + 0.5) / (low - 0.5)))), low), high)
    assert step is not None
    count = round((high - low) / step) + 1
    value = low + min(int(share * count), count - 1) * step
    return value if isinstance(distribution, IntDistribution) else float(min(value, high))


def values_at(distributions: Mapping[str, BaseDistribution], point: Sequence[float]) -> dict[str, Any]:
    """Return the values at a point of the unit cube whose axes are the distributions, in their order."""
    return {path: value_at(one, share) for (path, one), share in zip(distributions.items(), point, strict=True)}


def _fits(distribution: BaseDistribution, value: Any) -> bool:
    if value is _MISSING:
        return False
    try:
        return bool(distribution._contains(distribution.to_internal_repr(value)))
    except (ValueError, TypeError):
        return False


def _distribution(dimension: Dimension) -> BaseDistribution:
    """Return the distribution that `Dimension.draw` draws from."""
    kept: list[BaseDistribution] = []

    class Kept:
        def suggest_categorical(self, name: str, choices: Sequence[Any], /) -> Any:
            kept.append(CategoricalDistribution(choices))
            return choices[0]

        def suggest_float(
            self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
        ) -> float:
            kept.append(FloatDistribution(low, high, step=step, log=log))
            return low

        def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
            kept.append(IntDistribution(low, high, step=step, log=log))
            return low

    dimension.draw(Kept())
    return kept[0]
