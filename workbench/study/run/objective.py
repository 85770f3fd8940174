"""What one trial does: draw a configuration, measure its speed, train it, score it against O0.

Scoring is arithmetic on a finished measurement (`score`) at the target's allowed drop, so all values of a study are
comparable. An equal plan met again is scored from what is stored. Everything a later stage needs goes into the trial's
user attributes as it becomes known, where an interrupted trial finds it again.

Words: the *deficit* of a metric is how far it lies on the wrong side of O0's (positive = worse). *Relative time* of a
step is the step number times the relative step time, in O0 steps, plus those of a *warm-up* that trains O0 itself. A
*curve* is pairs (micro-batches, metric) in increasing order; an *allowed* drop is in the metric's unit.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from workbench.config import BoostConfig, ConfigError, Plan
from workbench.core.metric_scale import MetricScale
from workbench.study.ask.search_space import GIVEN, Suggestion, all_off, stated, suggest
from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import StudyFailedError
from workbench.study.run.job import Monitor, RunStep, SpeedMeasured, Trained, plain
from workbench.study.run.runner import Experimenter, end_if_over
from workbench.study.run.warm_up import NO_WARM_UP, WarmUp, WarmUpError, WarmUps
from workbench.study.set_up.runtime_choice import ground_of
from workbench.study.store.ended_trials import FINISHED, EndedTrials
from workbench.study.store.study_storage import FRESH_SECONDS, StudyStorage
from workbench.study.store.trial_ids import id_of

_PENALTY = 10.0
"""Diverged runs count as this many times O0's cost: finite, and beyond anything a run that works can show."""

_TIMED_AS_MEASURED = frozenset({"speed", "time_to_quality"})
"""Objectives whose value is the relative time as it was measured: of a step, or of a whole run."""

Curve = Sequence[tuple[int, float]]

AS_O0 = SpeedMeasured(1.0, 1.0, 1.0)  # the speed of O0 itself, and of what was not timed


@dataclass(frozen=True, slots=True)
class Baseline:
    """O0's run, against which everything is scored."""

    metric: float
    curve: tuple[tuple[int, float], ...]
    higher_is_better: bool
    budget_steps: int  # micro-batches of a trial


@dataclass(frozen=True, slots=True)
class Score:
    """What a measurement is worth."""

    values: tuple[float, ...]  # of the objective, one or (pareto) two; always finite
    steps_to_target: float  # micro-batches to O0's final metric less the allowed drop, without a warm-up's; inf: never
    constraint: float  # finite, at most 0 when the deficit is allowed

    @property
    def feasible(self) -> bool:
        """Whether the deficit stays within the allowed drop."""
        return self.constraint <= 0.0


def metric_deficit(baseline: float, metric: float, *, higher_is_better: bool) -> float:
    """Return how far a metric lies on the wrong side of the baseline's, in its unit; inf when it is NaN."""
    if math.isnan(metric):
        return math.inf
    return baseline - metric if higher_is_better else metric - baseline


def steps_to_target(curve: Curve, target: float, *, higher_is_better: bool) -> float:
    """Return the micro-batches until a curve first reaches the target, interpolated linearly; inf if it never does."""
    sign = 1.0 if higher_is_better else -1.0
    before: tuple[int, float] | None = None
    for step, metric in curve:
        if sign * (metric - target) >= 0.0:
            if before is None or math.isnan(before[1]):
                return float(step)
            share = (target - before[1]) / (metric - before[1])
            return before[0] + share * (step - before[0])
        before = (step, metric)
    return math.inf


def steps_within(curve: Curve, baseline: float, allowed: float, *, higher_is_better: bool) -> float:
    """Return the micro-batches until a curve is worse than a baseline's metric by the allowed drop, or by less."""
    target = baseline - allowed if higher_is_better else baseline + allowed
    return steps_to_target(curve, target, higher_is_better=higher_is_better)


def deficit_at_equal_time(
    baseline: Baseline, step: int, metric: float, relative_step_time: float, warm_up_steps: int = 0
) -> float | None:
    """Return a run's metric deficit against O0's curve after the same time; inf for a NaN metric.

    None before O0's first evaluation, when nothing is known; after its last one O0 keeps its final metric.
    """
    time = warm_up_steps + step * relative_step_time
    if not baseline.curve or time < baseline.curve[0][0]:
        return None
    steps, metrics = zip(*baseline.curve, strict=True)
    reached = float(np.interp(time, steps, metrics))
    return metric_deficit(reached, metric, higher_is_better=baseline.higher_is_better)


def score(
    trained: Trained, speed: SpeedMeasured, baseline: Baseline, allowed: float, objective: str, warm_up_steps: int = 0
) -> Score:
    """Score a measurement at an allowed drop.

    A target that is not reached is censored at the budget, which the run itself has after any warm-up.
    """
    higher = baseline.higher_is_better
    sign = 1.0 if higher else -1.0
    diverged = math.isnan(trained.metric)
    deficit = metric_deficit(baseline.metric, trained.metric, higher_is_better=higher)
    steps = math.inf if diverged else steps_within(trained.curve, baseline.metric, allowed, higher_is_better=higher)
    ratio = speed.ratio if math.isfinite(speed.ratio) else _PENALTY
    scale = abs(baseline.metric) + 1.0
    constraint = min(deficit - allowed, _PENALTY * scale)
    if objective == "pareto":
        metric = baseline.metric - sign * scale if diverged else trained.metric
        return Score((metric, max(ratio, _PENALTY) if diverged else ratio), steps, constraint)
    if objective in _TIMED_AS_MEASURED:
        value = _PENALTY * max(ratio, 1.0) if diverged else ratio
    elif diverged:
        value = _PENALTY * max(ratio, 1.0) * baseline.budget_steps
    else:
        value = warm_up_steps + ratio * min(steps, float(baseline.budget_steps))
    return Score((value,), steps, constraint)


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a run can still reach: the smallest possible value, and whether it has reached its target."""

    least: float
    reached: bool


def prospect(
    curve: Curve,
    ratio: float,
    baseline: Baseline,
    allowed: float,
    objective: str,
    warm_up_steps: int = 0,
) -> Prospect:
    """Return what a run can still reach, from its evaluations so far, of which there is at least one.

    ``ratio`` is the lower end of its relative step time, so that noise ends no run.
    """
    if objective == "speed":
        return Prospect(ratio, reached=False)
    steps = steps_within(curve, baseline.metric, allowed, higher_is_better=baseline.higher_is_better)
    return Prospect(warm_up_steps + ratio * min(steps, float(curve[-1][0])), reached=math.isfinite(steps))


def metric_scale_of(attributes: Mapping[str, Any]) -> MetricScale:
    """Return how the metric of a study is written and which way is better, from the study's attributes."""
    name = str(attributes.get("metric_name", "metric"))
    return MetricScale(name, higher_is_better=bool(attributes.get("higher_is_better", True)))


def baseline_trial(study: optuna.Study) -> FrozenTrial | None:
    """Return the finished trial that is O0, or None while there is none."""
    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return next((trial for trial in finished if trial.user_attrs.get("baseline")), None)


def finished_baseline(study: optuna.Study) -> FrozenTrial:
    """Return the trial that is O0; a StudyFailedError while it has not finished."""
    if (trial := baseline_trial(study)) is None:
        raise StudyFailedError("the study has no finished O0 trial to compare with")
    return trial


class Objective:
    """Runs one trial, buffered in the study's database, and scores it at the target's allowed drop.

    ``deadline``, ``time.monotonic()`` or None, may be changed between two trials; no training is begun that takes
    longer. ``trainers``, if there are some, train runs that do not wait for each other; the experimenter trains the
    rest.
    """

    def __init__(
        self,
        file: StudyFile,
        database: StudyStorage,
        study: optuna.Study,
        experimenter: Experimenter,
        warm_ups: WarmUps,
        deadline: float | None,
        on_step: Callable[[RunStep], None],
    ) -> None:
        self.deadline = deadline
        self.trainers = list[Experimenter]()
        self._file, self._database, self._study, self._experimenter = file, database, study, experimenter
        self._base, self._metric = file.base_config(), metric_scale_of(study.user_attrs)
        self._plans, self._dimensions = file.plans, file.dimensions
        self._warm_ups, self._on_step = warm_ups, on_step
        self._reported: frozenset[int] = frozenset()  # steps at which the running trial was evaluated before
        self._unscored, self._allowed_values = EndedTrials(FINISHED[:1]), dict[float, list[float]]()  # by drop
        self._baseline_values: dict[float, float] = {}  # by drop, too

    def __call__(self, trial: optuna.Trial) -> tuple[float, ...]:
        """Run the trial, and return its objective values; a StudyFailedError when O0 itself does not train."""
        is_baseline = bool(trial.user_attrs.get("baseline"))
        self._reported = frozenset(self._database.get_trial(id_of(trial)).intermediate_values)
        try:
            suggestion = self._baseline(trial) if is_baseline else self._drawn(trial)
            plan = self._plans.resolve(suggestion.config, suggestion.level)
        except ConfigError as error:
            return self._refused(trial, f"not a valid configuration: {error}")
        _note(
            trial,
            level=suggestion.level,
            config=suggestion.config.to_dict(),
            parameters=plain(dict(suggestion.parameters)),
            summary=plan.summary(),
            plan_key=plan.key(),
            training_key=plan.training_key(),
            allowed_drop=self._allowed,
        )
        self._database.write(id_of(trial))
        if is_baseline:
            return self._run_baseline(trial, plan)
        twin = self._equal_plan(plan)
        if twin is not None:
            return self._repeat(trial, twin)
        try:
            warm_up = self._warm_ups.before(plan, self._file.study.seed)
        except WarmUpError as error:
            return self._refused(trial, str(error))
        if warm_up.steps:
            trial.set_user_attr("warm_up_steps", warm_up.steps)
        return self._run(trial, plan, warm_up)

    @property
    def _allowed(self) -> float:
        """The target's drop; NaN for a share of O0's value as long as that is unknown."""
        drops: Mapping[str, float] = self._study.user_attrs["allowed_drops"]
        return drops[self._file.allowed_drop.target]

    def _keep_drops(self, trial: optuna.Trial, metric: float) -> None:
        """Store the allowed drops, now that O0's metric is known."""
        drops = self._file.allowed_drops(self._metric.name, metric)
        self._study.set_user_attr("allowed_drops", drops)
        trial.set_user_attr("allowed_drop", drops[self._file.allowed_drop.target])

    def _drawn(self, trial: optuna.Trial) -> Suggestion:
        if (given := trial.user_attrs.get(GIVEN)) is None:
            return suggest(trial, self._dimensions, self._start(), self._plans)
        return stated(given, ground_of(self._base, self._study.user_attrs))

    def _start(self) -> BoostConfig:
        return self._base

    def _baseline(self, trial: optuna.Trial) -> Suggestion:
        # The level is drawn (it was enqueued as O0) so that the sampler learns from this trial, too.
        level = next((one for one in self._dimensions if one.path == "level" and "O0" in one.choices), None)
        return Suggestion("O0", all_off(self._base), {} if level is None else {"level": level.draw(trial)})

    def _run_baseline(self, trial: optuna.Trial, plan: Plan) -> tuple[float, ...]:
        trained = self._train(trial, plan, NO_WARM_UP, None)
        trial.set_user_attr("trained", trained.to_json())
        if math.isnan(trained.metric):
            why = trained.message or f"its {self._metric.name} is NaN"
            raise StudyFailedError(f"O0 itself does not train, so there is nothing to compare with: {why}")
        self._keep_drops(trial, trained.metric)
        trial.set_user_attr("speed", AS_O0.to_json())
        if self._file.study.objective != "pareto":
            for step, _ in trained.curve:
                self._report(trial, step, 0.0)
        return self._finish(trial, trained, AS_O0, self._baseline_of(trained))

    def _run(self, trial: optuna.Trial, plan: Plan, warm_up: WarmUp) -> tuple[float, ...]:
        baseline, file = self._stored_baseline(), self._file
        objective, budget = file.study.objective, file.study.budget_steps
        if "speed" in trial.user_attrs:  # measured before the trial was interrupted
            speed = SpeedMeasured.from_json(trial.user_attrs["speed"])
        else:
            speed = self._experimenter.run(warm_up.speed_job(plan, file, file.study.seed))
            trial.set_user_attr("speed", speed.to_json())
            self._database.write(id_of(trial))  # an interrupted trial finds it here
        end_if_over(self.deadline, self._baseline_run.by_clock(speed.ratio))
        every_run = objective == "pareto" or isinstance(self._study.pruner, optuna.pruners.NopPruner)
        limits = {} if every_run else self._limits(baseline)
        curve: list[tuple[int, float]] = []
        pruned, why = False, ""

        def on_evaluation(step: int, metric: float) -> bool:
            nonlocal pruned, why
            curve.append((step, metric))
            deficit = deficit_at_equal_time(baseline, step, metric, speed.ratio, warm_up.steps)
            if deficit is None or step >= budget:
                return False
            self._report(trial, step, deficit)
            prospects = [
                (prospect(curve, speed.low, baseline, drop, objective, warm_up.steps), limit)
                for drop, limit in limits.items()
            ]
            if prospects and all(one.least > limit for one, limit in prospects):
                pruned, why = True, "it can no longer be better than O0 and the trials that would be confirmed"
            # One that has reached its target in time goes to its end, which says whether it stays there.
            elif not any(one.reached and one.least <= limit for one, limit in prospects):
                pruned, why = trial.should_prune(), "worse than the median at equal time"
            return pruned

        trained = self._train(trial, plan, warm_up, None if objective == "pareto" else on_evaluation)
        trial.set_user_attr("trained", trained.to_json())
        if pruned:
            last = trained.curve[-1]
            trial.set_user_attr("message", f"pruned after {last[0]} steps: {why}")
            self._prune(trial, baseline, last, speed.ratio, warm_up.steps)
        return self._finish(trial, trained, speed, baseline, warm_up.steps)

    def _repeat(self, trial: optuna.Trial, twin: FrozenTrial) -> tuple[float, ...]:
        """Score an equal plan from what is stored, for the sampler to learn from; it does not count as a trial."""
        stored = twin.user_attrs
        trained, speed = _measured(stored)
        warm_up_steps = int(stored.get("warm_up_steps", 0))
        _note(
            trial,
            trained=stored["trained"],
            speed=stored["speed"],
            repeats=twin.number,
            warm_up_steps=warm_up_steps,
            message=f"same set-up as trial {twin.number}, not run again",
        )
        baseline = self._stored_baseline()
        if twin.state == TrialState.PRUNED:
            # Only here: a repeated complete trial would vote twice in the pruner's median.
            for step, deficit in twin.intermediate_values.items():
                self._report(trial, step, deficit)
            self._prune(trial, baseline, trained.curve[-1], speed.ratio, warm_up_steps)
        return self._finish(trial, trained, speed, baseline, warm_up_steps)

    def _finish(
        self, trial: optuna.Trial, trained: Trained, speed: SpeedMeasured, baseline: Baseline, warm_up_steps: int = 0
    ) -> tuple[float, ...]:
        scored = score(trained, speed, baseline, self._allowed, self._file.study.objective, warm_up_steps)
        if trained.message and "repeats" not in trial.user_attrs:
            trial.set_user_attr("message", trained.message)
        self._constrain(trial, scored.constraint)
        return scored.values

    def _refused(self, trial: optuna.Trial, sentence: str) -> tuple[float, ...]:
        """Score a combination of values that cannot be trained."""
        nothing = Trained(math.nan, (), 0.0, diverged=True, message=sentence)
        scored = score(nothing, AS_O0, self._stored_baseline(), 0.0, self._file.study.objective)
        trial.set_user_attr("message", sentence)
        self._constrain(trial, scored.constraint)
        return scored.values

    def _prune(
        self, trial: optuna.Trial, baseline: Baseline, last: tuple[int, float], ratio: float, warm_up_steps: int
    ) -> None:
        deficit = deficit_at_equal_time(baseline, *last, ratio, warm_up_steps)
        limit = _PENALTY * (abs(baseline.metric) + 1.0)
        self._constrain(trial, min((limit if deficit is None else deficit) - self._allowed, limit))
        raise optuna.TrialPruned

    def _train(
        self, trial: optuna.Trial, plan: Plan, warm_up: WarmUp, on_evaluation: Callable[[int, float], bool] | None
    ) -> Trained:
        job = warm_up.train_job(
            plan,
            seed=self._file.study.seed,
            steps=self._file.study.budget_steps,
            evaluate_every=self._file.evaluate_every,
            run_id=f"trial_{trial.number:04d}",
            also_untrained=bool(trial.user_attrs.get("baseline")),
        )
        return self._experimenter.run(job, Monitor(on_evaluation, self._on_step))

    def _limits(self, baseline: Baseline) -> dict[float, float]:
        """Return allowed drop -> the value that a trial has to stay below to be of use, as far as is known now.

        That is O0's, and that of the last trial that would be confirmed, since the best may be refuted.
        """
        confirm, objective = self._file.confirm, self._file.study.objective
        places = confirm.candidates if confirm.enabled else 1
        for trial in self._unscored.new(self._study.get_trials(deepcopy=False)):  # O0 the first of them
            attributes = trial.user_attrs
            if "trained" not in attributes or "repeats" in attributes:
                continue
            measured = _measured(attributes)
            for drop in set(self._study.user_attrs["allowed_drops"].values()):
                scored = score(*measured, baseline, drop, objective, int(attributes.get("warm_up_steps", 0)))
                if attributes.get("baseline"):
                    self._baseline_values[drop] = scored.values[0]
                elif scored.feasible:
                    bisect.insort(self._allowed_values.setdefault(drop, []), scored.values[0])
        better = self._allowed_values
        return {
            drop: min([own, *better.get(drop, [])[places - 1 : places]]) for drop, own in self._baseline_values.items()
        }

    def _report(self, trial: optuna.Trial, step: int, deficit: float) -> None:
        # What an interrupted trial reported before stands: the same seed gives the same curve.
        if step not in self._reported:
            trial.report(min(deficit, 1e30), step)
            self._database.write(id_of(trial), every=FRESH_SECONDS)

    def _constrain(self, trial: optuna.Trial, value: float) -> None:
        if "metric_deficit" not in trial.constraints:
            # As optuna-dashboard 0.21 reads it, beside Optuna's own; on every trial, so that samplers see all alike.
            trial.storage.set_trial_system_attr(id_of(trial), "constraints", [value])
            trial.set_constraint("metric_deficit", value)

    def _stored_baseline(self) -> Baseline:
        return self._baseline_of(self._baseline_run)

    @functools.cached_property
    def _baseline_run(self) -> Trained:
        return Trained.from_json(finished_baseline(self._study).user_attrs["trained"])

    def _baseline_of(self, trained: Trained) -> Baseline:
        return Baseline(trained.metric, trained.curve, self._metric.higher_is_better, self._file.study.budget_steps)

    def _equal_plan(self, plan: Plan) -> FrozenTrial | None:
        keys = {"plan_key": plan.key(), "training_key": plan.training_key()}  # version 0.6 stored the first only
        finished = self._study.get_trials(deepcopy=False, states=FINISHED)
        trained = (trial for trial in finished if "trained" in trial.user_attrs)
        same = (trial for trial in trained if any(trial.user_attrs.get(name) == key for name, key in keys.items()))
        return min(same, key=_place_as_twin, default=None)


def _place_as_twin(trial: FrozenTrial) -> tuple[bool, bool, int]:
    """Return a trial's place among those of an equal plan: a run that went to its end tells more than a pruned one."""
    return "repeats" in trial.user_attrs, trial.state != TrialState.COMPLETE, trial.number


def _note(trial: optuna.Trial, **attributes: Any) -> None:
    for key, value in attributes.items():
        trial.set_user_attr(key, value)


def _measured(attributes: Mapping[str, Any]) -> tuple[Trained, SpeedMeasured]:
    return Trained.from_json(attributes["trained"]), SpeedMeasured.from_json(attributes["speed"])
