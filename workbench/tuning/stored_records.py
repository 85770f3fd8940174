"""Records of trials and candidates, rebuilt from what a study's storage keeps; nothing is trained for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from workbench.records import CandidateRecord, TrialRecord, Verdict
from workbench.tuning.errors import StudyFailedError
from workbench.tuning.objective import baseline_trial, metric_deficit, plain, read_speed, read_trained

__all__ = [
    "FINISHED",
    "baseline_record",
    "candidates_of",
    "counted_among",
    "counted_trials",
    "keep_candidates",
    "records_of",
    "trials_of",
]

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of a trial that has run to an end."""

_STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


def counted_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that count towards ``n_trials``: begun or finished, and not the repeat of an equal plan."""
    return counted_among(study.get_trials(deepcopy=False))


def counted_among(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return those of some trials that count, as `counted_trials` does."""
    begun = (*FINISHED, TrialState.RUNNING)
    return [trial for trial in trials if trial.state in begun and "repeats" not in trial.user_attrs]


def trials_of(study: optuna.Study) -> list[TrialRecord]:
    """Rebuild the record of every trial from storage alone.

    Args:
        study: The study.

    Returns:
        Records in the order of trial numbers.
    """
    trials = study.get_trials(deepcopy=False)
    return records_of(trials, higher_is_better=bool(study.user_attrs.get("higher_is_better", True)))


def records_of(
    trials: Sequence[FrozenTrial], *, higher_is_better: bool, known: Mapping[int, TrialRecord] | None = None
) -> list[TrialRecord]:
    """Rebuild the records of trials that have been read.

    Args:
        trials: All trials of the study, in the order of their numbers.
        higher_is_better: Direction of the metric.
        known: Records by number that are taken as they are; of trials that have ended since O0 had.

    Returns:
        Records in the order of the trials.
    """
    finished = (trial for trial in trials if trial.state == TrialState.COMPLETE)
    baseline = next((trial for trial in finished if trial.user_attrs.get("baseline")), None)
    reference = None if baseline is None else read_trained(baseline.user_attrs["trained"]).metric
    known = known or {}
    return [known.get(trial.number) or _record(trial, reference, higher_is_better) for trial in trials]


def baseline_record(study: optuna.Study, trials: Sequence[TrialRecord]) -> TrialRecord:
    """Return the record of the finished O0 trial.

    Args:
        study: The study.
        trials: Its records.

    Raises:
        StudyFailedError: When O0 has not finished.
    """
    baseline = baseline_trial(study)
    if baseline is None:
        raise StudyFailedError("the study has no finished O0 trial to compare with")
    return next(trial for trial in trials if trial.number == baseline.number)


def keep_candidates(study: optuna.Study, candidates: Sequence[CandidateRecord]) -> None:
    """Store judged candidates as an attribute of the study."""
    study.set_user_attr("candidates", plain([asdict(one) for one in candidates]))


def candidates_of(study: optuna.Study) -> list[CandidateRecord]:
    """Rebuild the judged candidates; none before a confirmation has ended."""
    return [_candidate(stored) for stored in study.user_attrs.get("candidates", [])]


def _candidate(stored: Mapping[str, Any]) -> CandidateRecord:
    numbers = ("speedup", "speedup_low", "speedup_high", "drop")
    values = {name: math.nan if stored[name] is None else stored[name] for name in numbers}
    bound = math.inf if stored["drop_bound"] is None else stored["drop_bound"]
    metrics = tuple((math.nan if a is None else a, math.nan if b is None else b) for a, b in stored["metrics"])
    verdict = Verdict(stored["verdict"])
    return CandidateRecord(**{**stored, **values, "drop_bound": bound, "verdict": verdict, "metrics": metrics})


def _record(trial: FrozenTrial, reference: float | None, higher_is_better: bool) -> TrialRecord:
    attributes = trial.user_attrs
    trained = read_trained(attributes["trained"]) if "trained" in attributes else None
    speed = read_speed(attributes["speed"]) if "speed" in attributes else None
    scored = attributes.get("score") or {}
    complete = trial.state == TrialState.COMPLETE
    metric = math.nan
    if trained is not None:
        # A pruned trial's last evaluation is what is known of it.
        metric = trained.curve[-1][1] if math.isnan(trained.metric) and trained.curve else trained.metric
        metric = math.nan if trained.diverged else metric
    deficit = math.nan
    if reference is not None and not math.isnan(metric):
        deficit = metric_deficit(reference, metric, higher_is_better=higher_is_better)
    steps = math.nan
    if complete and scored:
        steps = math.inf if scored["steps_to_target"] is None else float(scored["steps_to_target"])
    message = str(attributes.get("message", ""))
    return TrialRecord(
        number=trial.number,
        state=_STATES[trial.state],
        level=str(attributes.get("level", "O0")),
        parameters=dict(attributes.get("parameters", trial.params)),
        config=dict(attributes.get("config", {})),
        summary=str(attributes.get("summary", "")),
        value=float(trial.values[-1]) if complete and trial.values else math.nan,
        metric=metric,
        metric_deficit=deficit,
        allowed_drop=float(attributes.get("allowed_drop", math.nan)),
        relative_step_time=math.nan if speed is None else speed.ratio,
        relative_low=math.nan if speed is None else speed.low,
        relative_high=math.nan if speed is None else speed.high,
        steps_to_target=steps,
        seconds=0.0 if "repeats" in attributes else (_duration(trial) if trial.state in FINISHED else math.nan),
        feasible=complete and bool(scored.get("feasible", False)),
        curve=() if trained is None else trained.curve,
        run_path="" if trained is None else trained.path,
        message=message,
        warm_up_steps=int(attributes.get("warm_up_steps", 0)),
        overflows=0 if trained is None else trained.overflows,
    )


def _duration(trial: FrozenTrial) -> float:
    return trial.duration.total_seconds() if trial.duration is not None else math.nan
