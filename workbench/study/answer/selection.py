"""Which trials compete for an export, and which candidate is taken.

An export is for a boost level and an allowed drop: a question asked of all trials. A trial competes for it when its
plan can be had at that level (O2 has a method that O1 lacks), its metric stayed within the drop, and it beats O0; its
time to the target is counted anew for each export. Which candidate is taken is decided by `select` and by nothing else:
terminal, panel, report and files show what it returns.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.config import LEVELS, BoostConfig, ConfigError
from workbench.core.records import CandidateRecord, Choice, TrialRecord, Verdict, timed_per
from workbench.study.ask.plans import StudyPlans
from workbench.study.run.objective import steps_to_target

__all__ = ["TARGETS", "aimed_at", "competing_trials", "nothing_found", "select", "with_policy"]

TARGETS = {"o1": "O1", "o2": "O2"}
"""Export -> boost level at which it is loaded."""

_BY_LEVEL = frozenset(name for names in LEVELS.values() for name in names)
"""Methods that a boost level stands for: at a level without them an export does not have them."""


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

    They are those with a deficit within the allowed drop and a cost below O0's, one per plan, by increasing cost; their
    ``steps_to_target`` is that of this export's target.
    """
    goal = _goal(baseline, allowed_drop, higher_is_better=higher_is_better)

    def price_of(trial: TrialRecord) -> float:
        value = trial.relative_step_time
        if objective == "time_to_target":
            steps = steps_to_target(trial.curve, goal, higher_is_better=higher_is_better)
            value = trial.warm_up_steps + value * steps
        return math.inf if math.isnan(value) else value

    limit = price_of(baseline)
    others = (one for one in trials if one.state == "complete" and one.number != baseline.number and one.config)
    # A diverged trial, whose deficit is NaN, never fits.
    fitting = ((price_of(one), one.number, one) for one in others if one.metric_deficit <= allowed_drop)
    cheaper = [one for one in fitting if one[0] < limit]
    seen = {_plan(baseline, plans)[0]}
    beyond = _BY_LEVEL.difference(LEVELS[TARGETS[target]])
    for _, _, trial in sorted(cheaper, key=lambda one: one[:2]):
        key, methods = _plan(trial, plans)
        if key not in seen and beyond.isdisjoint(methods):
            seen.add(key)
            yield aimed_at(trial, baseline, allowed_drop, higher_is_better=higher_is_better)


def aimed_at(trial: TrialRecord, baseline: TrialRecord, allowed_drop: float, *, higher_is_better: bool) -> TrialRecord:
    """Return a trial, which may be O0 itself, with ``steps_to_target`` and ``allowed_drop`` of an export."""
    goal = _goal(baseline, allowed_drop, higher_is_better=higher_is_better)
    steps = steps_to_target(trial.curve, goal, higher_is_better=higher_is_better)
    return replace(trial, steps_to_target=steps, allowed_drop=allowed_drop)


def _goal(baseline: TrialRecord, allowed_drop: float, *, higher_is_better: bool) -> float:
    return baseline.metric - (1.0 if higher_is_better else -1.0) * allowed_drop


def select(
    target: str, candidates: Sequence[CandidateRecord], *, nothing: str = "", require_confirmed: bool = False
) -> Choice:
    """Choose what an export takes.

    A confirmed candidate comes before all others; of several, the one with the largest speed-up over the seeds. Where
    none is confirmed, the first in the search's order is taken whose verdict is open, whose interval of the speed-up
    lies above 1 and whose mean drop over the seeds is allowed; one that was not tested only where none was. Else it is
    O0, with the sentence that says so.

    Args:
        target: ``"o1"`` or ``"o2"``; candidates for the other are passed over.
        candidates: Judged candidates in the search's order.
        nothing: What the search came to, for the case that it is O0 (`nothing_found`).
        require_confirmed: Take confirmed candidates only.
    """
    mine = [one for one in candidates if one.target == target]
    confirmed = [one for one in mine if one.verdict is Verdict.CONFIRMED]
    taken = max(confirmed, key=lambda one: one.speedup, default=None)
    tested = [one for one in mine if one.n_seeds > 0]
    promising = [one for one in tested or mine if _is_promising(one)]
    if taken is None and not require_confirmed:
        taken = next(iter(promising), None)
    others = tuple(_why_not(one, taken) for one in mine if one is not taken)
    if taken is not None:
        return Choice(target, taken, f"{taken.label} ({taken.summary}). {taken.sentence}", others)
    if not mine:
        told = nothing or "no candidate was found"
    elif require_confirmed and promising:
        told = f"none of the {len(mine)} candidates is confirmed, and only that is accepted"
    elif all(one.verdict is Verdict.REFUTED for one in mine):
        told = "the only candidate was refuted" if len(mine) == 1 else f"all {len(mine)} candidates were refuted"
    else:
        told = "no candidate is clearly faster than O0 without losing more than is allowed"
    return Choice(target, None, f"O0 is exported: {told}.", others)


def _is_promising(candidate: CandidateRecord) -> bool:
    is_allowed = math.isnan(candidate.drop) or candidate.drop <= candidate.allowed_drop
    return candidate.verdict is Verdict.UNDECIDED and candidate.speedup_low > 1.0 and is_allowed


def _why_not(candidate: CandidateRecord, taken: CandidateRecord | None) -> str:
    name = f"not {candidate.label} ({candidate.summary})"
    if taken is not None and candidate.verdict is Verdict.CONFIRMED:
        return f"{name}: confirmed, too, but {candidate.speedup:.2f} x against {taken.speedup:.2f} x."
    if candidate.verdict is Verdict.UNDECIDED and candidate.drop > candidate.allowed_drop:
        allowed = f"its mean drop of {candidate.drop:.3g} is more than the allowed {candidate.allowed_drop:g}"
        return f"{name}: {allowed}, though that is not sure yet. {candidate.sentence}"
    return f"{name}. {candidate.sentence}"


def nothing_found(
    trials: Sequence[TrialRecord],
    allowed_drop: float,
    metric_name: str,
    *,
    objective: str = "time_to_target",
    why_not: Sequence[str] = (),
    plans: StudyPlans | None = None,
) -> str:
    """Say what a search without any candidate tried, what came nearest and what would help, without a full stop.

    ``why_not`` says why parts of what is searched cannot act on this network. With ``plans``, trials that train alike
    count as one plan.
    """
    tried = [one for one in trials if one.number and one.state in {"complete", "pruned"} and one.relative_step_time > 0]
    if not tried:
        reasons = [sentence.rstrip(".") for sentence in why_not]
        if not reasons:
            return "no plan beside O0 has been tried"
        return f"nothing that is searched acts on this network: {'; '.join(reasons)}"
    per = timed_per(objective)
    n_tried = len(tried) if plans is None else len({_plan(one, plans)[0] for one in tried})
    count = f"{n_tried} plans were tried" if n_tried > 1 else "one plan was tried"
    told = [f"no plan was faster than O0 within the allowed {metric_name} drop of {allowed_drop:g}; {count}"]
    known = [one for one in tried if one.state == "complete" and math.isfinite(one.metric_deficit)]
    within = [one for one in known if one.metric_deficit <= allowed_drop]
    beyond = [one for one in known if one.metric_deficit > allowed_drop and one.relative_step_time < 1.0]
    if within:
        best = min(within, key=lambda one: one.relative_step_time)
        late = f" {per}, but reaches the target later" if objective == "time_to_target" else f" {per}"
        told.append(
            f"of {len(within)} within the drop the fastest, trial {best.number} ({best.summary}), is "
            f"{1.0 / best.relative_step_time:.2f} x O0{late if best.relative_step_time < 1.0 else f' {per}'}"
        )
    if beyond:
        near = min(beyond, key=lambda one: one.metric_deficit)
        told.append(
            f"the nearest beyond it, trial {near.number} ({near.summary}), is {1.0 / near.relative_step_time:.2f} x "
            f"{per} and drops {near.metric_deficit:.4g}: a larger allowed drop or a longer training may admit it"
        )
    elif all(one.relative_step_time >= 1.0 for one in tried):
        told.append("what is searched does not speed up this network: another space or another method would be needed")
    elif not known:
        told.append("all of them diverged or were given up early: gentler ranges or a longer training may help")
    return "; ".join(told)


def with_policy(config: BoostConfig, policy: Mapping[str, Any] | None, searched: Sequence[str]) -> BoostConfig:
    """Return a configuration with what `tune_loss_scale` returned, except for the parameters that the study searched.

    None, or a policy whose choice ``failed``, changes nothing. The kind of loss scale is left to its rule, so a policy
    found in float16 changes nothing in a float32 plan and is ready when mixed precision is switched on.
    """
    if policy is None or "failed" in policy:
        return config
    values = {f"loss_scale.{name}": policy[name] for name in ("init", "factor", "window")}
    return config.with_values({path: value for path, value in values.items() if path not in searched})


def _plan(trial: TrialRecord, plans: StudyPlans) -> tuple[str, tuple[str, ...]]:
    """Return the key of what a trial trains, and the methods in effect."""
    return _resolved(json.dumps(trial.config), trial.level, plans)


@functools.lru_cache(maxsize=4096)  # a search ranks its trials after each of them
def _resolved(config: str, level: str, plans: StudyPlans) -> tuple[str, tuple[str, ...]]:
    try:
        plan = plans.resolve(BoostConfig.from_dict(json.loads(config)), level)
    except ConfigError as error:
        return f"refused: {error}", ()
    return plan.training_key(), plan.in_effect()
