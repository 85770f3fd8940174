"""The whole space of a study at once, for samplers that cannot see a conditional one.

A trial draws only what is in effect (`search_space.suggest`), so trials differ in what they have drawn, and O0 has
drawn next to nothing. Optuna's GP and genetic samplers model what *all* trials have in common: here that is nothing,
and they would silently draw at random. So they are shown a copy of the study in which every trial has a value for
everything: the drawn ones, and a fixed middle value for what was not in effect. A trial takes what it asks for of what
they propose. Equal plans are equal points that way, and a parameter that was not in effect tells the model nothing but
that. (SMAC imputes defaults like this: Hutter, Hoos and Leyton-Brown, "Sequential model-based optimization for general
algorithm configuration", LION 2011, section 4.)
"""

from __future__ import annotations

import contextlib
import math
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from workbench.config import ConfigError
from workbench.study.ask.search_space import SearchedSpace
from workbench.study.store.trial_ids import id_of, storage_of

_STATE_KEY = "sampler"  # user attribute of a trial
_MOST_DRAWN = 20  # times for one trial, for a point that is new


class WholeSpaceSampler(BaseSampler):
    """Proposes values for a whole conditional space; a trial takes those in effect, and ``rest`` draws all else."""

    def __init__(self, space: SearchedSpace, rest: BaseSampler) -> None:
        self._space = space
        self._rest = rest

    @abstractmethod
    def propose(self, study: optuna.Study, trial: FrozenTrial) -> Mapping[str, Any]:
        """Return values by path."""

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the whole space."""
        return self._space.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose values."""
        proposed = self.propose(study, trial) if search_space else {}
        return {path: value for path, value in proposed.items() if path in search_space}

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, *asked: Any) -> Any:
        """Draw what was not proposed: above all what has one value only."""
        return self._rest.sample_independent(study, trial, *asked)


class OptunaOverAll(WholeSpaceSampler):
    """Lets a sampler of Optuna see, and propose, every parameter of a conditional space."""

    def __init__(self, inner: BaseSampler, space: SearchedSpace, seed: int) -> None:
        super().__init__(space, RandomSampler(seed=seed))
        self._inner, self._all = inner, space.distributions

    def propose(self, study: optuna.Study, trial: FrozenTrial) -> Mapping[str, Any]:
        """Ask the sampler in a copy of the study; where it proposes what the study has had, draw at random instead.

        Points that differ in what is not in effect are one point of the study, and new ones to the sampler, which
        proposed some of them again and again.
        """
        view = optuna.create_study(directions=study.directions, sampler=self._inner)
        others = [one for one in study.get_trials(deepcopy=False) if one.number != trial.number]
        worst = _worst(others, study.directions)
        copies = [copy for one in others if (copy := self._copied(one, worst)) is not None]
        view.add_trials(copies)
        asked = view.ask(fixed_distributions=self._all)
        state = view.get_trials(deepcopy=False)[-1].system_attrs
        keep_sampler_state(study, trial, {key: value for key, value in state.items() if isinstance(value, int)})
        params, known = asked.params, {repr(one.params) for one in copies}
        for _ in range(_MOST_DRAWN):
            if repr(self._in_effect(params)) not in known:
                break
            params = {path: self._rest.sample_independent(study, trial, path, one) for path, one in self._all.items()}
        return params

    def _copied(self, trial: FrozenTrial, worst: Sequence[float]) -> FrozenTrial | None:
        """Return a trial with all parameters; None for one that tells the sampler nothing.

        A pruned one has ended with the ``worst`` values: Optuna's samplers do not see it, and would propose it again.
        """
        is_drawn = trial.state == TrialState.RUNNING and trial.params  # else another process is about to draw it
        is_pruned = trial.state == TrialState.PRUNED and bool(worst)
        if not (trial.state == TrialState.COMPLETE or is_pruned or is_drawn):
            return None
        try:
            return optuna.trial.create_trial(
                state=TrialState.COMPLETE if is_pruned else trial.state,
                values=worst if is_pruned else trial.values,
                params=self._whole(trial.params),
                distributions=self._all,
                system_attrs=sampler_state(trial),
                constraints=trial.constraints or None,
            )
        except ValueError:  # from a storage that another process has written to
            return None

    def _whole(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return what was drawn, and the middle of everything else."""
        full = {}
        for path, distribution in self._all.items():
            given = params.get(path)
            full[path] = given if _fits(distribution, given) else value_at(distribution, 0.5)
        return full

    def _in_effect(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a point with the middle of everything that is not in effect there."""
        drawn: dict[str, Any] = {}

        def value(path: str, distribution: BaseDistribution) -> Any:
            drawn[path] = params[path] if path in params else value_at(distribution, 0.5)
            return drawn[path]

        with contextlib.suppress(ConfigError):  # values that contradict each other, which the trial will say
            self._space.suggest(value)
        return self._whole(drawn)


class EvenSampler(WholeSpaceSampler):
    """Draws from a Sobol or Halton sequence, which fills a space evenly, at the place of the trial's number.

    All processes walk one sequence that way, so it is scrambled by the study's seed. (Optuna's sampler walks the
    parameters of the first finished trial. That is O0, which has next to none.)
    """

    def __init__(
        self,
        space: SearchedSpace,
        *,
        seed: int,
        study_seed: int,
        qmc_type: Literal["sobol", "halton"] = "sobol",
        scramble: bool = True,
    ) -> None:
        from scipy.stats import qmc  # type: ignore[import-untyped]  # here: reading a study's state need not wait for it

        kinds = {"sobol": qmc.Sobol, "halton": qmc.Halton}
        if qmc_type not in kinds:
            raise ValueError(f'qmc_type must be one of "sobol", "halton", got "{qmc_type}"')
        super().__init__(space, RandomSampler(seed=seed))
        self._kind = kinds[qmc_type]
        self._options = {"scramble": scramble, "seed": np.random.default_rng(study_seed)}

    def propose(self, study: optuna.Study, trial: FrozenTrial) -> Mapping[str, Any]:
        """Return the next point."""
        sequence = self._kind(len(self._space.distributions), **self._options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a part of a Sobol sequence is not a power of two
            sequence.fast_forward(trial.number)
            point = sequence.random(1)[0]
        return values_at(self._space.distributions, point.tolist())


def _worst(trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]) -> list[float]:
    """Return the worst value of the finished trials in each objective; empty where none has finished."""
    values = [trial.values for trial in trials if trial.state == TrialState.COMPLETE and trial.values]
    columns = zip(directions, zip(*values, strict=True), strict=False)
    return [max(column) if way == StudyDirection.MINIMIZE else min(column) for way, column in columns]


def _fits(distribution: BaseDistribution, value: Any) -> bool:
    try:
        return bool(distribution._contains(distribution.to_internal_repr(value)))
    except (ValueError, TypeError):
        return False


def sampler_state(trial: FrozenTrial) -> dict[str, Any]:
    """Return what `keep_sampler_state` kept with a trial; empty when there is nothing."""
    state = trial.user_attrs.get(_STATE_KEY)
    return dict(state) if isinstance(state, dict) else {}


def keep_sampler_state(study: optuna.Study, trial: FrozenTrial, state: Mapping[str, Any]) -> None:
    """Store with a trial being drawn what its sampler must know of it later, in any process, as plain JSON."""
    if state:  # as Optuna's own samplers do: a FrozenTrial has no other way
        storage_of(study).set_trial_user_attr(id_of(trial), _STATE_KEY, dict(state))


def value_at(distribution: BaseDistribution, share: float) -> Any:
    """Return the value at a fraction ``share`` (0 to 1) of a distribution; each choice or step covers an equal part."""
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


def number_at(distribution: FloatDistribution | IntDistribution, share: float) -> float:
    """Return the number at a fraction of a range, or the nearest on its steps: those at its ends have half a part."""
    low, high, step = distribution.low, distribution.high, distribution.step
    value = low * (high / low) ** share if distribution.log else low + share * (high - low)
    if step:
        value = low + round((value - low) / step) * step
    value = min(max(value, low), high)
    return round(value) if isinstance(distribution, IntDistribution) else value


def values_at(distributions: Mapping[str, BaseDistribution], point: Sequence[float]) -> dict[str, Any]:
    """Return the values at a point of the unit cube whose axes are the distributions, in their order."""
    return {path: value_at(one, share) for (path, one), share in zip(distributions.items(), point, strict=True)}
