"""Which trials compete for an export, and which candidate is taken.

An export is for a boost level. A trial competes for it when its configuration means the same plan at that level (on
one device O1 and O2 often do), its metric stayed within the drop that this export allows, and it beats O0.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.config import BoostConfig, ConfigError
from workbench.records import CandidateRecord, TrialRecord, Verdict
from workbench.tuning.objective import steps_to_target
from workbench.tuning.plans import StudyPlans

__all__ = ["TARGETS", "aimed_at", "choose", "competing_trials", "cost", "with_policy"]

TARGETS = {"o1": "O1", "o2": "O2"}
"""Export -> boost level at which it is loaded."""


def competing_trials(
    trials: Sequence[TrialRecord],
    baseline: TrialRecord,
    target: str,
    allowed_drop: float,
    *,
    objective: str,
    higher_is_better: bool,
    plans: StudyPlans,
) -> Iterator[TrialRecord]:
    """Yield the trials that compete for an export, best first; the first costs little, since no other is resolved.

    Args:
        trials: All trials of the study.
        baseline: The O0 trial.
        target: ``"o1"`` or ``"o2"``.
        allowed_drop: Drop this export allows, in the metric's unit.
        objective: What the study minimises.
        higher_is_better: Direction of the metric.
        plans: How the study resolves configurations.

    Yields:
        Trials with a deficit within the allowed drop and a cost below O0's, one per plan, by increasing cost; their
        ``steps_to_target`` is that of this export's target.
    """
    goal = _goal(baseline, allowed_drop, higher_is_better=higher_is_better)

    def price_of(trial: TrialRecord) -> float:
        steps = steps_to_target(trial.curve, goal, higher_is_better=higher_is_better)
        return _price(trial, objective, trial.relative_step_time, steps)

    limit = price_of(baseline)
    cheaper = []
    for trial in trials:
        if trial.state != "complete" or trial.number == baseline.number or not trial.config:
            continue
        if not trial.metric_deficit <= allowed_drop:  # so for NaN: a diverged trial never fits
            continue
        price = price_of(trial)
        if price < limit:
            cheaper.append((price, trial.number, trial))
    seen = {_key(baseline, baseline.level, plans)}
    for _, _, trial in sorted(cheaper, key=lambda one: one[:2]):
        key = _key(trial, trial.level, plans)
        if key not in seen and key == _key(trial, TARGETS[target], plans):
            seen.add(key)
            yield aimed_at(trial, baseline, allowed_drop, higher_is_better=higher_is_better)


def aimed_at(trial: TrialRecord, baseline: TrialRecord, allowed_drop: float, *, higher_is_better: bool) -> TrialRecord:
    """Return a trial with ``steps_to_target`` and ``allowed_drop`` of an export.

    Args:
        trial: The trial; the baseline itself, too.
        baseline: The O0 trial, whose final metric less the allowed drop is the target.
        allowed_drop: Drop the export allows, in the metric's unit.
        higher_is_better: Direction of the metric.
    """
    goal = _goal(baseline, allowed_drop, higher_is_better=higher_is_better)
    steps = steps_to_target(trial.curve, goal, higher_is_better=higher_is_better)
    return replace(trial, steps_to_target=steps, allowed_drop=allowed_drop)


def cost(trial: TrialRecord, objective: str, relative_step_time: float | None = None) -> float:
    """Return what a trial costs, in O0 steps (time_to_target, its warm-up included) or O0 step times; inf when unknown.

    Args:
        trial: The trial.
        objective: What the study minimises.
        relative_step_time: A newer measurement than the trial's own.
    """
    ratio = trial.relative_step_time if relative_step_time is None else relative_step_time
    return _price(trial, objective, ratio, trial.steps_to_target)


def _goal(baseline: TrialRecord, allowed_drop: float, *, higher_is_better: bool) -> float:
    return baseline.metric - (1.0 if higher_is_better else -1.0) * allowed_drop


def _price(trial: TrialRecord, objective: str, ratio: float, steps: float) -> float:
    value = trial.warm_up_steps + ratio * steps if objective == "time_to_target" else ratio
    return math.inf if math.isnan(value) else value


def choose(
    candidates: Sequence[CandidateRecord],
    costs: Mapping[int, float],
    *,
    limit: float = math.inf,
    require_confirmed: bool = False,
) -> CandidateRecord | None:
    """Return the best candidate that is not refuted and still beats O0.

    Args:
        candidates: Judged candidates of one export.
        costs: Trial number -> cost by the newest measurement; candidates without an entry come last.
        limit: O0's cost; what does not lie below it is not taken.
        require_confirmed: Accept confirmed candidates only.

    Returns:
        The candidate; None when none is left and O0 has to be exported.
    """
    accepted = {Verdict.CONFIRMED} if require_confirmed else {Verdict.CONFIRMED, Verdict.UNDECIDED}
    left = [one for one in candidates if one.verdict in accepted and not costs.get(one.trial_number, -1.0) >= limit]
    return min(left, key=lambda one: (costs.get(one.trial_number, math.inf), one.trial_number), default=None)


def with_policy(config: BoostConfig, policy: Mapping[str, Any] | None, searched: Sequence[str]) -> BoostConfig:
    """Return a configuration with a loss-scale policy, except for what the study searched itself.

    The kind of loss scale is left to its rule, so a policy found in float16 changes nothing in a float32 plan and is
    ready when mixed precision is switched on.

    Args:
        config: The configuration.
        policy: What `tune_loss_scale` returned; None, or a policy whose choice ``failed``, changes nothing.
        searched: Paths of the parameters that the study searched.
    """
    if policy is None or "failed" in policy:
        return config
    values = {f"loss_scale.{name}": policy[name] for name in ("init", "factor", "window")}
    return config.with_values({path: value for path, value in values.items() if path not in searched})


def _key(trial: TrialRecord, level: str, plans: StudyPlans) -> str:
    return _key_of(json.dumps(trial.config), level, plans)


@functools.lru_cache(maxsize=4096)  # a search ranks its trials after each of them
def _key_of(config: str, level: str, plans: StudyPlans) -> str:
    try:
        return plans.resolve(BoostConfig.from_dict(json.loads(config)), level).key()
    except ConfigError as error:
        return f"refused: {error}"
