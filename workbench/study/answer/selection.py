"""Which trials compete for an export, and which candidate is taken.

An export is for a boost level and an allowed drop: a question asked of all trials. A trial competes for it when its
plan can be had at that level (O2 has a method that O1 lacks), its metric stayed within the drop, and it beats O0. Its
time to the target is counted for each export. Which candidate is taken is decided by `select` alone: terminal, panel,
report and files show what it returns.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from workbench.config import LEVELS, BoostConfig, ConfigError, Plan
from workbench.core.records import CandidateRecord, Choice, TrialRecord, Verdict
from workbench.study.answer.doubts import finds_steps_alone
from workbench.study.ask.plans import StudyPlans
from workbench.study.ask.search_space import GIVEN
from workbench.study.ask.sections import TARGETS
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.objective import finished_baseline, metric_scale_of, steps_within
from workbench.study.set_up.standing import BOLD, LIKELY, SURE, Standing, standing_now
from workbench.study.set_up.tuned_plain import plain_standing
from workbench.study.store.stored_records import trials_of

# Methods that a boost level stands for: at a level without them an export does not have them.
_BY_LEVEL = frozenset(name for names in LEVELS.values() for name in names)

FORM_OF = "form_of"  # user attribute of a trial: the one (its number) whose set-up it has, with another length
_REMAINING = "remaining_set_up"


@dataclass(frozen=True, slots=True)
class Contender:
    """A trial that competes for an export, ``"o1"`` or ``"o2"``."""

    trial: TrialRecord
    target: str
    config: BoostConfig  # with the chosen loss-scale policy
    plan: Plan  # what that means at its boost level
    allowed_drop: float
    baseline_steps: float = math.nan  # in which O0 reached this export's target in the search; NaN when unknown

    @property
    def key(self) -> str:
        """Key of its plan."""
        return self.plan.key()


def contenders(study: optuna.Study, file: StudyFile) -> dict[str, list[Contender]]:
    """Return who competes for each export, best first, with the loss-scale policy that was chosen, if one was."""
    trials, policy = trials_of(study), study.user_attrs.get("loss_scale_policy")
    number = finished_baseline(study).number
    baseline = next(one for one in trials if one.number == number)
    higher = metric_scale_of(study.user_attrs).higher_is_better
    searched = [dimension.path for dimension in file.dimensions]
    pools: dict[str, list[Contender]] = {}
    for target, drop in study.user_attrs["allowed_drops"].items():
        allowed_drop = float(drop)
        if file.study.objective == "time_to_quality":
            ordered = iter(_ranked(study, trials, file, allowed_drop))
        else:
            ordered = competing_trials(trials, baseline, target, allowed_drop, file, higher_is_better=higher)
        baseline_steps = steps_within(baseline.curve, baseline.metric, allowed_drop, higher_is_better=higher)
        pools[target] = []
        for trial in ordered:
            config = with_policy(BoostConfig.from_dict(trial.config), policy, searched)
            plan = file.plans.resolve(config, trial.level)
            if file.plans.resolve(config, TARGETS[target]).key() != plan.key():
                config = plan.explicit_config()  # means this plan at any level
            pools[target].append(Contender(trial, target, config, plan, allowed_drop, baseline_steps))
    return pools


def competing_trials(
    trials: Sequence[TrialRecord],
    baseline: TrialRecord,
    target: str,
    allowed_drop: float,
    file: StudyFile,
    *,
    higher_is_better: bool,
) -> Iterator[TrialRecord]:
    """Yield the trials that compete for an export, best first; the first is cheap, since no other is resolved for it.

    They are those with a deficit within the allowed drop and a cost below O0's, one per plan, by increasing cost; their
    ``steps_to_target`` is that of this export's target.
    """

    def aimed_at(trial: TrialRecord) -> TrialRecord:
        steps = steps_within(trial.curve, baseline.metric, allowed_drop, higher_is_better=higher_is_better)
        return replace(trial, steps_to_target=steps, allowed_drop=allowed_drop)

    def price_of(trial: TrialRecord) -> float:
        price = trial.relative_step_time
        if file.study.objective == "time_to_target":
            price = trial.warm_up_steps + price * trial.steps_to_target
        return math.inf if math.isnan(price) else price

    others = (one for one in trials if one.state == "complete" and one.number != baseline.number and one.config)
    # A diverged trial, whose deficit is NaN, never fits. What computes as O0 does loses by luck alone.
    most = math.inf if file.finds_steps_alone else allowed_drop
    fitting = [aimed_at(one) for one in others if one.metric_deficit <= most]
    limit = price_of(aimed_at(baseline))
    seen = {plan_of(baseline, file.plans)[0]}
    beyond = _BY_LEVEL.difference(LEVELS[TARGETS[target]])
    for trial in sorted(fitting, key=lambda one: (price_of(one), one.number)):
        if price_of(trial) >= limit:
            return
        key, methods = plan_of(trial, file.plans)
        if key not in seen and beyond.isdisjoint(methods):
            seen.add(key)
            yield trial


def keep_remaining(study: optuna.Study, number: int, idle: Mapping[str, Any]) -> None:
    """Store which trial has what remained of the leader, and ``idle``: the set-up's values without its idle parts."""
    trials = study.get_trials(deepcopy=False)
    study.set_user_attr(_REMAINING, {"number": number, "idle": dict(idle), "drawn": _n_drawn(trials)})


def idle_values(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values that a set-up has without the leader's idle parts, by path; empty where none is known."""
    known: Mapping[str, Any] = attributes.get(_REMAINING, {}).get("idle", {})
    return known


def is_taken_apart(study: optuna.Study) -> bool:
    """Return whether nothing has been drawn since the leader was taken apart: its runs alone make no new leader."""
    remaining = study.user_attrs.get(_REMAINING)
    return remaining is not None and remaining["drawn"] == _n_drawn(study.get_trials(deepcopy=False))


def _n_drawn(trials: Sequence[FrozenTrial]) -> int:
    return sum(trial.state.is_finished() and GIVEN not in trial.user_attrs for trial in trials)


def _ranked(study: optuna.Study, records: Sequence[TrialRecord], file: StudyFile, allowed: float) -> list[TrialRecord]:
    """Return the trials that compete for an export: those that surely keep the quality, fastest first.

    Tuned plain competes by its own runs. Where the leader was taken apart, what remained of it comes first (the whole
    only while that is sure or a safer form is tested, too); set-ups with an idle part do not compete. If only tuned
    plain is sure enough, the one that most probably keeps the quality is tested before it. If several are tested, the
    leader's safer form comes before it and bolder ones after it: a fixed order keeps the full level as long as all
    before were confirmed (`planned_tests`), so what turns out too bold costs only its runs. The runtime alone is
    last: where runs differ by far more than may be lost nothing is sure, and it computes what O0 does.
    """
    numbers, standing = _by_time(study, file, allowed)
    if file.confirm.candidates > 1:
        numbers = _with_forms(numbers, study, standing)
    by_number = {record.number: record for record in records}
    as_o0 = [one for one in sorted(computing_as_o0(study)) if one in by_number and standing.times.get(one, 1.0) < 1.0]
    return [by_number[number] for number in dict.fromkeys([*numbers, *as_o0])]


def computing_as_o0(study: optuna.Study) -> frozenset[int]:
    """Return the trials that compute what O0 does, within rounding: of the chosen runtime, and nothing else."""
    return frozenset(one.number for one in study.get_trials(deepcopy=False) if one.user_attrs.get(GIVEN) == {})


def first_contender(study: optuna.Study, file: StudyFile) -> int | None:
    """Return the trial of the set-up that would be exported if all were confirmed; None where nothing competes."""
    return next(iter(_by_time(study, file)[0]), None)


def _by_time(study: optuna.Study, file: StudyFile, allowed: float | None = None) -> tuple[list[int], Standing]:
    """Return the numbers of the trials that compete, and how all stand."""
    standing, plain = standing_now(study, file, allowed), plain_standing(study, file, allowed).leader
    trials, remaining = study.get_trials(deepcopy=False), study.user_attrs.get(_REMAINING)
    numbers = sorted({*standing.ranking, *([] if plain is None else [plain])}, key=standing.times.__getitem__)
    if standing.leader is None:
        least = 0.0 if finds_steps_alone(study, file) else LIKELY  # faster steps compute what O0's do
        faster = [number for number, time in standing.times.items() if time < 1.0 and standing.sure[number] > least]
        likely = sorted(faster, key=lambda number: -standing.sure[number])[:1]
        numbers = list(dict.fromkeys([*likely, *numbers]))
    if remaining is not None:
        first, idle = int(remaining["number"]), remaining["idle"]
        if standing.sure.get(first, 0.0) > (LIKELY if idle or file.confirm.candidates > 1 else SURE):
            numbers = [first, *(one for one in _without(idle, numbers, trials) if one != first)]
    return numbers, standing


def _without(idle: Mapping[str, Any], numbers: Iterable[int], trials: Sequence[FrozenTrial]) -> Iterator[int]:
    """Yield the trials without a leader's idle parts."""
    for number in numbers:
        leaves = BoostConfig.from_dict(trials[number].user_attrs["config"]).leaves()
        if all(leaves[path] == value for path, value in idle.items()):
            yield number


def _with_forms(numbers: list[int], study: optuna.Study, standing: Standing) -> list[int]:
    """Return the trials, led by the first and its forms, of those that are faster than O0, the slowest of them first.

    Where it has no bolder form, since there was no time, other trials that may keep the quality are tested after it.
    """
    trials, times = study.get_trials(deepcopy=False), standing.times
    forms = [one for one in trials if numbers and one.user_attrs.get(FORM_OF) == numbers[0]]
    known = {*numbers[:1], *(int(one.user_attrs.get("repeats", one.number)) for one in forms)}
    first = sorted((one for one in known if times.get(one, 1.0) < 1.0), key=lambda one: -times[one])
    if first and first[-1] == numbers[0]:
        first += _bolder(first[-1], list(_without(idle_values(study.user_attrs), standing.tried, trials)), standing)
    return [*first, *(number for number in numbers if number not in first)]


def _bolder(number: int, others: Sequence[int], standing: Standing) -> Iterator[int]:
    """Yield ever faster trials, each of which is expected to gain most beyond the one before."""

    def gain(other: int) -> float:
        return standing.sure[other] * math.log(standing.times[number] / standing.times[other])

    while faster := [one for one in others if gain(one) > 0.0 and standing.sure[one] >= BOLD]:
        number = max(faster, key=gain)
        yield number


def select(
    target: str,
    candidates: Sequence[CandidateRecord],
    *,
    nothing: str = "",
    require_confirmed: bool = False,
    as_o0: Collection[int] = (),
) -> Choice:
    """Choose what an export takes.

    A confirmed candidate comes before all others; of several, the one with the largest speed-up over the seeds. If
    none is confirmed, it is the first in the search's order with an open verdict, a speed-up interval above 1 and an
    allowed mean drop over the seeds; an untested one only if none was tested. Of trials that compute what O0 does any
    mean drop is allowed that refutes nothing. Otherwise it is O0, with a sentence that says so and includes
    ``nothing``: what the search came to (`nothing_found`).
    """
    mine = [one for one in candidates if one.target == target]
    taken = max((one for one in mine if one.verdict is Verdict.CONFIRMED), key=lambda one: one.speedup, default=None)
    tested = [one for one in mine if one.n_seeds > 0]
    promising = [one for one in tested or mine if _is_promising(one, as_o0)]
    if taken is None and not require_confirmed:
        taken = next(iter(promising), None)
    others = tuple(_why_not(one, taken) for one in mine if one is not taken)
    if taken is not None:
        return Choice(target, taken, f"{taken.label}: {taken.summary}. {taken.sentence}", others)
    if not mine:
        words = nothing or "no candidate was found"
    elif require_confirmed and promising:
        words = f"none of the {len(mine)} candidates is confirmed, and only that is accepted"
    elif all(one.verdict is Verdict.REFUTED for one in mine):
        words = "the only candidate was refuted" if len(mine) == 1 else f"all {len(mine)} candidates were refuted"
    else:
        words = "no candidate is clearly faster than O0 without losing more than is allowed"
    return Choice(target, None, f"O0 is exported: {words}.", others)


def _is_promising(candidate: CandidateRecord, as_o0: Collection[int]) -> bool:
    is_allowed = math.isnan(candidate.drop) or candidate.drop <= candidate.allowed_drop
    is_allowed = is_allowed or candidate.trial_number in as_o0
    return candidate.verdict is Verdict.UNDECIDED and candidate.speedup_low > 1.0 and is_allowed


def _why_not(candidate: CandidateRecord, taken: CandidateRecord | None) -> str:
    reason = candidate.sentence
    if taken is not None and candidate.verdict is Verdict.CONFIRMED:
        reason = f"Also confirmed, but {candidate.speedup:.2f} x against {taken.speedup:.2f} x."
    elif candidate.verdict is Verdict.UNDECIDED and candidate.drop > candidate.allowed_drop:
        reason = f"Its mean drop is more than is allowed, though that is not certain yet. {reason}"
    return f"not {candidate.label}: {candidate.summary}. {reason}"


def with_policy(config: BoostConfig, policy: Mapping[str, Any] | None, searched: Sequence[str]) -> BoostConfig:
    """Return a configuration with what `tune_loss_scale` chose, except for the parameters that the study searched.

    None, or a policy whose choice ``failed``, changes nothing. The kind of loss scale is left to its rule, so a policy
    found in float16 changes nothing in a float32 plan and is ready when mixed precision is switched on.
    """
    if policy is None or "failed" in policy:
        return config
    values = {f"loss_scale.{name}": policy[name] for name in ("init", "factor", "window")}
    return config.with_values({path: value for path, value in values.items() if path not in searched})


def plan_of(trial: TrialRecord, plans: StudyPlans) -> tuple[str, tuple[str, ...]]:
    """Return the key of what a trial trains, and the methods in effect."""
    return _resolved(json.dumps(trial.config), trial.level, plans)


@functools.lru_cache(maxsize=4096)  # a search ranks its trials after each of them
def _resolved(config: str, level: str, plans: StudyPlans) -> tuple[str, tuple[str, ...]]:
    try:
        plan = plans.resolve(BoostConfig.from_dict(json.loads(config)), level)
    except ConfigError as error:
        return f"refused: {error}", ()
    return plan.training_key(), plan.in_effect()
