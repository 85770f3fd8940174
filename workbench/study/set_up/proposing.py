"""Which plan to train next: the one that promises most, by a known time and a predicted quality.

A plan's total time needs no training (`total_time`), so only its quality is uncertain. The promise of a plan is how
much faster than the leader it is, times the probability that it leads once it has been tried, per time that this takes.
That is the expected improvement under a constraint (Gardner et al., "Bayesian Optimization with Inequality
Constraints", ICML 2014) with a known objective. Candidates are drawn from the whole space and from around the best
plans so far.

The first plans are what a practitioner would try: each optimizer in the middle of its ranges, with the batch that takes
least time per sample and with the next, each as long as lets it take a given time.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState

from workbench.config import ConfigError, Plan
from workbench.methods.batch.section import BatchSection
from workbench.study.ask.search_space import GIVEN, SearchedSpace, Suggestion
from workbench.study.run.job import SpeedMeasured
from workbench.study.sample.whole_space import WholeSpaceSampler, number_at
from workbench.study.set_up.runtime_choice import batches_without_room, ground_of, times_per_sample
from workbench.study.set_up.standing import SURE, Standing, standing_of
from workbench.study.set_up.total_time import kinds_of_steps, known_step_times, mean_step, total_time
from workbench.study.store.stored_records import allowed_drop_of

_N_CANDIDATES = 160
_NEAR_SHARE = 0.6
_LEAST_GAIN = 0.99  # of the leader's time: what is as fast as the leader would be drawn for ever, and not trained
_KEPT, _UNMOVED = 0.7, 0.35  # how probably a neighbour has a choice, and a number, in common with its parent
_FIXED_COST = 0.5  # of trying a plan besides its one run, in runs of the baseline: further seeds if it is good
_TIMING_COST = 1.0  # of a kind of step that was not timed yet, in the same unit
# Of the first plans, relative to today's: one that keeps the quality soon says more than short ones that do not.
_FIRST_TIME, _FIRST_LENGTHS = 0.4, (0.5, 0.8)
_FIRST_BATCHES = 2
_WORTH_DOUBLING = 0.87  # of a sample's time: twice the batch is tried first only where it saves as much
_USUAL_DOUBLING = 0.9  # the same where nothing was timed


class ProposingSampler(WholeSpaceSampler):
    """Proposes the plan of one trial."""

    def __init__(self, space: SearchedSpace, seed: int) -> None:
        super().__init__(space, RandomSampler(seed))
        self._rng = np.random.default_rng(seed)
        self._no_room = math.inf  # the smallest batch factor that does not fit into memory

    def propose(self, study: optuna.Study, trial: FrozenTrial) -> Mapping[str, Any]:
        """Return the values of the plan that promises most."""
        attributes = study.user_attrs
        self._space = replace(self._space, base=ground_of(self._space.base, attributes))
        self._no_room = batches_without_room(attributes)
        trials = study.get_trials(deepcopy=False)
        drawn = [one for one in trials if GIVEN not in one.user_attrs and not one.user_attrs.get("baseline")]
        first = list(itertools.islice(self._first_plans(times_per_sample(attributes)), len(drawn) + 1))
        begun = sum(one.state != TrialState.WAITING for one in drawn) - 1  # this one is among them
        if begun < len(first):
            return first[max(begun, 0)].parameters
        n_confirming = int(attributes["usual_seeds"])
        standing = standing_of(trials, self._space.dimensions, allowed_drop_of(attributes), n_confirming, attributes)
        asked = attributes["study_file"]
        steps = int(asked["study"]["budget_steps"])
        share = steps / (asked["set_up"].get("todays_steps") or steps)
        return self._most_promising(standing, trials, known_step_times(attributes), steps, share)

    def _most_promising(
        self,
        standing: Standing,
        trials: Sequence[FrozenTrial],
        known: Mapping[str, SpeedMeasured],
        steps: int,
        share_of_today: float,
    ) -> Mapping[str, Any]:
        tried = {one.user_attrs["plan_key"] for one in trials if "plan_key" in one.user_attrs}
        best = standing.ranking[:3] or sorted(standing.sure, key=lambda one: -standing.sure[one])[:3]
        faster = [one for one in standing.times if standing.times[one] < standing.best_time]
        # Those that fall short by little, too: a somewhat longer run of them may lead.
        lost = {one: standing.sure[one] * math.log(standing.times[one] / standing.best_time) for one in faster}
        best += sorted(faster, key=lost.__getitem__)[:3]
        parents = [standing.tried[number].values for number in dict.fromkeys(best)]
        guess = _StepGuess(known, trials)
        plans: list[tuple[Mapping[str, Any], float, int]] = []
        for _ in range(_N_CANDIDATES):
            is_near = bool(parents) and self._rng.random() < _NEAR_SHARE
            parent = parents[int(self._rng.integers(len(parents)))] if is_near else None
            suggested = self._draw(self._anywhere if parent is None else functools.partial(self._near, parent))
            if suggested is None or suggested[1].key() in tried:
                continue
            values, plan = suggested[0].parameters, suggested[1]
            kinds = kinds_of_steps(plan, self._space.plans, steps)
            timed = [(known[kind.step_key()], share) for kind, share in kinds if kind.step_key() in known]
            step = mean_step(timed) if len(timed) == len(kinds) else guess(values)
            time = total_time(plan, step, steps, share_of_today=share_of_today).ratio
            if time < _LEAST_GAIN * standing.best_time:
                plans.append((values, time, len(kinds) - len(timed)))
        if not plans:
            return {}
        able = standing.model.probability_to_convince([values for values, _, _ in plans], SURE)
        times, to_time = np.array([(time, n_kinds) for _, time, n_kinds in plans]).T
        promise = able * np.log(standing.best_time / times) / (times + _FIXED_COST + _TIMING_COST * to_time)
        return plans[int(np.argmax(promise))][0]

    def _draw(self, value: Callable[[str, Any], Any]) -> tuple[Suggestion, Plan] | None:
        try:
            suggestion = self._space.suggest(value)
            plan = self._space.plans.resolve(suggestion.config, suggestion.level)
        except ConfigError:
            return None
        return (suggestion, plan) if suggestion.config.part(BatchSection).factor < self._no_room else None

    def _first_plans(self, sample_times: Mapping[float, float]) -> Iterator[Suggestion]:
        """Yield what a practitioner would try first, who knows what a sample takes in batches of some sizes."""
        choices = {one.path: one.choices for one in self._space.dimensions if one.kind == "choice"}
        factors = [factor for factor in choices.get("batch.factor", (1.0,)) if factor < self._no_room]
        batches = first_batches(factors, sample_times)
        for (factor, length), name in itertools.product(batches, choices.get("optimizer.name", (None,))):
            usual = {"batch.factor": factor, "optimizer.name": name, "schedule.length": length}
            drawn = self._draw(functools.partial(_usual, usual))
            if drawn is not None:
                yield drawn[0]

    def _anywhere(self, _: str, distribution: Any) -> Any:
        """Draw from the whole space."""
        if isinstance(distribution, CategoricalDistribution):
            return distribution.choices[int(self._rng.integers(len(distribution.choices)))]
        return number_at(distribution, float(self._rng.random()))

    def _near(self, parent: Mapping[str, Any], name: str, distribution: Any) -> Any:
        """Draw around a plan: most parameters as they are there, ranges moved by a little, and often not at all."""
        given, rng = parent.get(name), self._rng
        if isinstance(distribution, CategoricalDistribution):
            is_kept = name in parent and given in distribution.choices and rng.random() < _KEPT
            return given if is_kept else self._anywhere(name, distribution)
        low, high = distribution.low, distribution.high
        if given is None or not low <= given <= high or low == high:
            return self._anywhere(name, distribution)
        share = math.log(given / low) / math.log(high / low) if distribution.log else (given - low) / (high - low)
        if rng.random() >= _UNMOVED:
            share = float(np.clip(share + rng.normal(0.0, 0.15), 0.0, 1.0))
        return number_at(distribution, share)


def first_batches(factors: Sequence[float], sample_times: Mapping[float, float]) -> list[tuple[float, float]]:
    """Return the batch factors to try first, the best one before, each with a length of the schedule.

    ``sample_times`` are a sample's shares of a step, relative to today's, for some factors; others are interpolated by
    a power law.

    Example:
        >>> first_batches([1.0, 2.0, 4.0], {1.0: 1.0, 4.0: 0.5})
        [(4.0, 0.8), (2.0, 0.566)]
        >>> first_batches([1.0, 2.0, 4.0], {1.0: 1.0, 4.0: 1.0})
        [(1.0, 0.5), (2.0, 0.5)]
    """
    sizes = sorted(factors)
    if not sizes:
        return []
    known = np.log2(sorted(sample_times.items()) or [(1.0, 1.0), (2.0, _USUAL_DOUBLING)])
    times = [2.0 ** float(np.interp(math.log2(size), *known.T)) for size in sizes]
    best = 0
    while best + 1 < len(sizes) and times[best + 1] < _WORTH_DOUBLING * times[best]:
        best += 1
    order = [best, *reversed(range(best)), *range(best + 1, len(sizes))]
    return [
        (sizes[index], round(min(max(_FIRST_TIME / times[index], _FIRST_LENGTHS[0]), _FIRST_LENGTHS[1]), 3))
        for index in order[:_FIRST_BATCHES]
    ]


class _StepGuess:
    """Guess a step time that was not measured: a product of factors, one per choice, over those that were.

    Its extra time at first is taken to be the median of the others', and samples to be kept as theirs mostly are.
    """

    def __init__(self, known: Mapping[str, SpeedMeasured], trials: Sequence[FrozenTrial]) -> None:
        cold = [(one.cold_ms, one.baseline_ms) for one in known.values() if math.isfinite(one.baseline_ms)]
        usual = np.median(cold, axis=0) if cold else (0.0, math.nan)
        self._cold_ms, self._baseline_ms = float(usual[0]), float(usual[1])
        of_trials = [step for trial in trials if (step := known.get(trial.user_attrs.get("step_key", "")))]
        self._reading_ms, self._epoch = 0.0, 0
        if of_trials:
            self._reading_ms = float(np.median([step.reading_ms for step in of_trials]))
            self._epoch = round(np.median([step.epoch for step in of_trials]))
        rows: dict[str, tuple[Mapping[str, Any], float]] = {}
        for trial in trials:
            step = known.get(trial.user_attrs.get("step_key", ""))
            if step is not None:
                rows[trial.user_attrs["step_key"]] = (trial.user_attrs.get("parameters", {}), math.log(step.ratio))
        self._names = sorted({name for values, _ in rows.values() for name in _switches(values)})
        matrix = np.array([self._row(values) for values, _ in rows.values()]).reshape(len(rows), len(self._names) + 2)
        logs = np.array([log for _, log in rows.values()])
        # Shrunk towards: a step over twice the samples takes 1.8 times as long, and no other choice matters.
        prior = np.array([0.0, math.log2(1.8) * math.log(2.0), *[0.0] * len(self._names)])
        ridge = np.diag([0.05, 0.5, *[0.5] * len(self._names)])
        self._weights = prior + np.linalg.solve(matrix.T @ matrix + ridge, matrix.T @ (logs - matrix @ prior))

    def __call__(self, values: Mapping[str, Any]) -> SpeedMeasured:
        """Return the step time relative to the baseline's."""
        ratio = float(np.exp(self._row(values) @ self._weights))
        extra: Any = {"cold_ms": self._cold_ms, "reading_ms": self._reading_ms, "epoch": self._epoch}
        return SpeedMeasured(ratio, ratio, ratio, self._baseline_ms, **extra)

    def _row(self, values: Mapping[str, Any]) -> np.ndarray:
        switches = _switches(values)
        doublings = math.log2(float(values.get("batch.factor", 1.0)))
        return np.array([1.0, doublings, *(float(name in switches) for name in self._names)])


def _switches(values: Mapping[str, Any]) -> set[str]:
    return {
        f"{path}={value}" for path, value in values.items() if isinstance(value, (str, bool)) and value is not False
    }


def _usual(fixed: Mapping[str, Any], name: str, distribution: Any) -> Any:
    """Draw what is usual: the middle of every range, the first of every list but those that are fixed."""
    given = fixed.get(name)
    if isinstance(distribution, CategoricalDistribution):
        return given if given in distribution.choices else distribution.choices[0]
    if given is None:
        return number_at(distribution, 0.5)
    return min(max(float(given), distribution.low), distribution.high)
