"""Records of trials and candidates, rebuilt from what a study's storage keeps; nothing is trained for them.

Trials are scored again from their measurements, at the drop that the study's target allows, so records of one study are
always comparable. The repeat of an equal plan does not count as a trial and has no record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from workbench.core.records import CandidateRecord, TrialRecord, Verdict
from workbench.study.ask.search_space import GIVEN
from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import StudyChangedError
from workbench.study.run.job import SpeedMeasured, Trained, plain, read_record
from workbench.study.run.objective import Baseline, baseline_trial, metric_deficit, metric_scale_of, score
from workbench.study.store.ended_trials import FINISHED
from workbench.study.store.study_storage import seconds_of

RUN_METRICS = "run_metrics"  # attribute of a trial that is trained on several seeds: the final metric on each
SURPLUS = "surplus"  # attribute of a trial that was not run, since other processes had begun the last ones with it
_UNCOUNTED = frozenset({"repeats", "skipped", SURPLUS})
"""User attributes of trials that do not count: an equal plan again, one too slow to be trained, or one too many."""


def counted_among(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that count towards ``n_trials``: begun or finished, and not the repeat of an equal plan."""
    begun = (*FINISHED, TrialState.RUNNING)
    apart = _UNCOUNTED | {GIVEN}  # given set-ups come beside those that are drawn
    return [trial for trial in trials if trial.state in begun and apart.isdisjoint(trial.user_attrs)]


def is_its_own(trial: FrozenTrial) -> bool:
    """Return whether a trial has its own record: not a repeat of an equal plan, one too slow or one too many."""
    return _UNCOUNTED.isdisjoint(trial.user_attrs)


def keep(study: optuna.Study, name: str, value: Any) -> None:
    """Store an attribute of a study, unless it is there already as in a command that goes on: writing takes longest."""
    stored = study.user_attrs
    if name not in stored or stored[name] != value:
        study.set_user_attr(name, value)


def allowed_drop_of(attributes: Mapping[str, Any]) -> float:
    """Return the drop that a study's target allows, from the study's attributes; NaN before it has begun."""
    return float(attributes.get("allowed_drops", {}).get(attributes.get("target", "o1"), math.nan))


def keep_question(study: optuna.Study, file: StudyFile) -> None:
    """Store what every process needs of the file's drops and seeds, as far as it is known before O0 has finished."""
    finished = baseline_trial(study)
    # A drop may be a share of the baseline's value.
    value = () if finished is None else (finished.user_attrs["trained"]["metric"],)
    metric, target = metric_scale_of(study.user_attrs), file.allowed_drop.target
    allowed = file.allowed_drops(metric.name, *value)
    if finished is not None and getattr(file.allowed_drop, target) is None:
        # The usual drop stays what it was when the study began: earlier versions knew fewer accuracies by their names.
        allowed[target] = study.user_attrs.get("allowed_drops", {}).get(target, allowed[target])
    _refuse_other_targets(study, allowed[target])
    keep(study, "allowed_drops", allowed)
    keep(study, "target", target)
    keep(study, "usual_seeds", file.confirm.usual_seeds)


def _refuse_other_targets(study: optuna.Study, target: float) -> None:
    """Refuse to go on where finished trials were scored at another drop than the target's.

    Version 0.6 scored O2's trials at their own drop; a sampler that compares the two would be misled.
    """
    finished = study.get_trials(deepcopy=False, states=FINISHED)
    other = [trial.number for trial in finished if trial.user_attrs.get("allowed_drop", target) != target]
    if other:
        numbers = ", ".join(map(str, other[:5])) + (", ..." if len(other) > 5 else "")
        some = f"{len(other)} trials were" if len(other) > 1 else "one trial was"
        raise StudyChangedError(
            f"{some} scored at another allowed drop than the study's target ({target:g}; trial {numbers}), as version "
            "0.6 did for level O2, and cannot be searched together with the others; start over with --fresh, which "
            "archives the study, or take what there is with `workbench export`"
        )


def trials_of(study: optuna.Study) -> list[TrialRecord]:
    """Rebuild the record of every trial from storage alone, in the order of trial numbers."""
    return records_of(study.get_trials(deepcopy=False), study.user_attrs)


def records_of(trials: Sequence[FrozenTrial], attributes: Mapping[str, Any]) -> list[TrialRecord]:
    """Rebuild the records of trials of a study, O0 among them where it has finished, from what has been read."""
    section = attributes.get("study_file", {}).get("study", {})
    reference = next((one for one in trials if _is_complete(one) and one.user_attrs.get("baseline")), None)
    baseline = None
    if reference is not None:
        trained = Trained.from_json(reference.user_attrs["trained"])
        budget = section.get("budget_steps", trained.curve[-1][0] if trained.curve else 0)
        baseline = Baseline(trained.metric, trained.curve, bool(attributes.get("higher_is_better", True)), budget)
    allowed_drop, objective = allowed_drop_of(attributes), str(section.get("objective", "time_to_target"))
    return [_record(trial, baseline, allowed_drop, objective) for trial in trials if is_its_own(trial)]


def metrics_seen(study: optuna.Study) -> Iterator[float]:
    """Yield every metric that a run of the search has measured."""
    for trial in study.get_trials(deepcopy=False):
        attributes = trial.user_attrs
        if RUN_METRICS in attributes:
            yield from (metric for metric in attributes[RUN_METRICS] if metric is not None)
        elif "trained" in attributes:
            yield from (metric for _, metric in Trained.from_json(attributes["trained"]).curve)


def keep_candidates(study: optuna.Study, candidates: Sequence[CandidateRecord]) -> None:
    """Store judged candidates as an attribute of the study."""
    keep(study, "candidates", plain(candidates))


def candidates_of(study: optuna.Study) -> list[CandidateRecord]:
    """Rebuild the judged candidates; none before a confirmation has ended."""
    attributes = study.user_attrs
    was_planned = any(name.startswith("confirm_tests:") for name in attributes)
    objective = attributes.get("study_file", {}).get("study", {}).get("objective")
    candidates = [_candidate(stored) for stored in attributes.get("candidates", [])]
    return candidates if was_planned else [_of_earlier_version(one, objective) for one in candidates]


def _of_earlier_version(candidate: CandidateRecord, objective: str | None) -> CandidateRecord:
    """Read what version 0.6 judged: of the metric alone, with the speed-up of a step whatever was minimised."""
    if candidate.n_seeds == 0:
        return candidate
    says_all = candidate.speedup_low > 1.0 and objective != "time_to_target"
    verdict = candidate.verdict
    if verdict is Verdict.CONFIRMED and not says_all:
        verdict = Verdict.UNDECIDED
    sentence = f"By version 0.6, which judged the metric alone and timed a step: {candidate.sentence}"
    return replace(candidate, verdict=verdict, sentence=sentence)


def _candidate(stored: Mapping[str, Any]) -> CandidateRecord:
    endless = {name: math.inf for name in ("speedup_high", "drop_bound") if stored[name] is None}
    metrics = tuple((math.nan if a is None else a, math.nan if b is None else b) for a, b in stored["metrics"])
    values = {**stored, **endless, "verdict": Verdict(stored["verdict"]), "metrics": metrics}
    return read_record(CandidateRecord, values)


def _is_complete(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.COMPLETE


def _record(trial: FrozenTrial, baseline: Baseline | None, allowed_drop: float, objective: str) -> TrialRecord:
    attributes = trial.user_attrs
    trained = Trained.from_json(attributes["trained"]) if "trained" in attributes else None
    speed = SpeedMeasured.from_json(attributes["speed"]) if "speed" in attributes else _NO_SPEED
    warm_up_steps = int(attributes.get("warm_up_steps", 0))
    value = float(trial.values[-1]) if _is_complete(trial) and trial.values else math.nan
    steps, feasible, metric, deficit = math.nan, False, math.nan, math.nan
    if _is_complete(trial) and baseline is not None and trained is not None and speed is not _NO_SPEED:
        scored = score(trained, speed, baseline, allowed_drop, objective, warm_up_steps)
        value, steps, feasible = scored.values[-1], scored.steps_to_target, scored.feasible
    if trained is not None and not trained.diverged:
        # A pruned trial's last evaluation is what is known of it.
        metric = trained.curve[-1][1] if math.isnan(trained.metric) and trained.curve else trained.metric
    if baseline is not None and not math.isnan(metric):
        deficit = metric_deficit(baseline.metric, metric, higher_is_better=baseline.higher_is_better)
        # It is scored by its drops beside O0's runs on the same seeds; what is shown is what its own runs reached.
        metric = fmean(attributes.get(RUN_METRICS, (metric,)))
    return TrialRecord(
        number=trial.number,
        state="failed" if trial.state == TrialState.FAIL else trial.state.name.lower(),
        level=str(attributes.get("level", "O0")),
        parameters=attributes.get("parameters", trial.params),
        config=attributes.get("config", {}),
        summary=str(attributes.get("summary", "")),
        value=value,
        metric=metric,
        metric_deficit=deficit,
        allowed_drop=allowed_drop,
        relative_step_time=speed.ratio,
        relative_low=speed.low,
        relative_high=speed.high,
        steps_to_target=steps,
        seconds=seconds_of(trial) if trial.state in FINISHED else math.nan,
        feasible=feasible,
        curve=() if trained is None else trained.curve,
        run_path="" if trained is None else trained.path,
        message=str(attributes.get("message", "")),
        warm_up_steps=warm_up_steps,
        overflows=0 if trained is None else trained.overflows,
    )


_NO_SPEED = SpeedMeasured(math.nan, math.nan, math.nan)
