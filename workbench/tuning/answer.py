"""The answer of a study: what it found, written as files, and read back from storage without training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import optuna

from workbench.records import CandidateRecord, TrialRecord, Verdict
from workbench.tuning import storage as kept
from workbench.tuning.errors import StudyError
from workbench.tuning.export import ExportContext, export_configs, write_tables
from workbench.tuning.freezing_limits import freezing_limits_of
from workbench.tuning.importance import parameter_importance
from workbench.tuning.notes import Notes
from workbench.tuning.objective import baseline_trial
from workbench.tuning.quiet import quiet_optuna
from workbench.tuning.search_space import all_off
from workbench.tuning.selection import TARGETS, aimed_at, choose, competing_trials, cost, with_policy
from workbench.tuning.stored_records import baseline_record, candidates_of, trials_of
from workbench.tuning.study_file import StudyFile, read_study, study_folder
from workbench.tuning.warm_up import WarmUpError, find_warm_up

__all__ = ["StudyResult", "export_study", "read_result", "write_answer"]


@dataclass(frozen=True, slots=True)
class StudyResult:
    """Everything a report needs to know of a study.

    Args:
        name: Name of the study.
        directory: Its folder.
        task: Task as named on the command line.
        metric_name: Name of the metric.
        higher_is_better: Direction of the metric.
        objective: What was minimised.
        n_trials: Trials the study is meant to have.
        trials: Record of every trial.
        candidates: Judged candidates, best first within each export.
        exported: Export (``"o1"``, ``"o2"``) -> file.
        chosen: Export -> label of what was exported (``"O0"`` when nothing was left).
        loss_scale_policy: What `tune_loss_scale` found; None when the study does not ask for it.
        freezing_limits: What `measure_freezing_limits` found, one row per trial; empty when nobody asked.
        importance: Parameter -> share of its influence on the objective; empty when it cannot be computed.
        environment: Versions and hardware.
        messages: Sentences for the user, the most important first.
        allowed_drops: Allowed drop per export, in the metric's unit.
        report: The HTML report, once somebody wrote it.
        seconds: Time this command took.
    """

    name: str
    directory: Path
    task: str
    metric_name: str
    higher_is_better: bool
    objective: str
    n_trials: int
    trials: list[TrialRecord]
    candidates: list[CandidateRecord] = field(default_factory=list)
    exported: dict[str, Path] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)
    loss_scale_policy: Mapping[str, Any] | None = None
    freezing_limits: list[dict[str, Any]] = field(default_factory=list)
    importance: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    allowed_drops: Mapping[str, float] = field(default_factory=dict)
    report: Path | None = None
    seconds: float = math.nan


def read_result(study_dir: str | Path, *, storage: str | None = None) -> StudyResult:
    """Return the state of a study from its storage alone; nothing is trained and no task is loaded.

    Args:
        study_dir: Folder with ``study.toml``.
        storage: Optuna storage URL; None reads the SQLite file beside the study.

    Raises:
        StudyError: When the study is wrong or has not been started.
    """
    file, directory = read_study(study_dir), study_folder(study_dir)
    if storage is None and not (directory / "study.db").exists():
        raise StudyError(f"{directory}: the study has not been started; run `workbench tune {study_dir}` first")
    with quiet_optuna():
        study = kept.find_study(kept.open_storage(storage or kept.default_storage(directory)), file.study.name)
        file = kept.on_its_network(file, study)
        result = _result(study, file, directory, candidates_of(study))
    files = {target: directory / "result" / f"boost_config.{target}.json" for target in TARGETS}
    report = directory / "result" / "report.html"
    return replace(
        result,
        exported={target: path for target, path in files.items() if path.exists()},
        chosen=dict(study.user_attrs.get("chosen", {})),
        report=report if report.exists() else None,
    )


def export_study(
    study_dir: str | Path, out: str | Path | None = None, *, require_confirmed: bool = False, storage: str | None = None
) -> StudyResult:
    """Write the files of a study again from its storage, for example into another folder.

    Args:
        study_dir: Folder with ``study.toml``.
        out: Folder for the files; None takes the study's ``result``.
        require_confirmed: Export confirmed candidates only.
        storage: Optuna storage URL; None reads the SQLite file beside the study.

    Raises:
        StudyError: When the study is wrong, has not been started or has no finished O0 trial.
    """
    result = read_result(study_dir, storage=storage)
    file = read_study(study_dir)
    with quiet_optuna():
        database = kept.open_storage(storage or kept.default_storage(result.directory))
        study = kept.find_study(database, file.study.name)
        file = kept.on_its_network(file, study)
        if baseline_trial(study) is None:
            raise StudyError(
                f"{study_dir}: the study has no finished trial to export; run `workbench tune {study_dir}`"
            )
        return write_answer(
            study,
            file,
            result.directory,
            result.candidates,
            result.loss_scale_policy,
            folder=result.directory / "result" if out is None else Path(out),
            require_confirmed=require_confirmed,
        )


def write_answer(
    study: optuna.Study,
    file: StudyFile,
    directory: Path,
    candidates: Sequence[CandidateRecord],
    policy: Mapping[str, Any] | None,
    *,
    folder: Path,
    require_confirmed: bool = False,
) -> StudyResult:
    """Choose what each export takes, write the files and say why.

    Args:
        study: The study; keeps the choice when the files go to its own ``result``.
        file: The study's file.
        directory: Folder of the study.
        candidates: Judged candidates.
        policy: The loss-scale policy that O0 gets, too; None, or one whose choice failed, changes nothing.
        folder: Folder of the files.
        require_confirmed: Export confirmed candidates only.

    Raises:
        StudyFailedError: When O0 has not finished.
        StudyError: When the components of a DimReduce candidate are not on this machine.
        OSError: When a file cannot be written; the old one is untouched then.
    """
    choices = {
        target: _choice(target, study, file, directory, candidates, require_confirmed=require_confirmed)
        for target in TARGETS
    }
    chosen = {target: choice.candidate for target, choice in choices.items()}
    policy_told = "" if policy is None else str(policy.get("sentence", policy.get("failed", "")))
    environment = study.user_attrs.get("environment", {})
    context = ExportContext(
        study=file.study.name,
        task=file.study.task,
        seed=file.study.seed,
        metric=str(study.user_attrs["metric_name"]),
        objective=file.study.objective,
        data_hash=str(study.user_attrs.get("data_hash", "")),
        environment=environment,
        loss_scale=policy_told,
    )
    off = with_policy(all_off(file.base_config()), policy, [dimension.path for dimension in file.dimensions])
    reasons = {target: choice.reason for target, choice in choices.items() if choice.candidate is None}
    exported = export_configs(folder, chosen, off, reasons, context, file.plans, _snapshots(file, directory))
    numbers = {target: None if one is None else one.trial_number for target, one in chosen.items()}
    write_tables(folder, candidates, numbers, environment)
    labels = {target: "O0" if one is None else one.label for target, one in chosen.items()}
    if folder == directory / "result":
        study.set_user_attr("chosen", labels)
    result = _result(study, file, directory, candidates)
    told = [f"{target}: {choice.reason}" for target, choice in choices.items()]
    told += [policy_told] if policy_told else []
    if folder == directory / "result":
        Notes(study, file).write(result.trials, told)
    return replace(result, exported=exported, chosen=labels, messages=[*told, *result.messages])


def _snapshots(file: StudyFile, directory: Path) -> Path | None:
    """Return where the weight snapshots of the search lie; None when it recorded none, or not here."""
    try:
        warm_up = find_warm_up(file, directory, file.study.seed)
    except WarmUpError:
        return None
    return None if warm_up is None else warm_up.snapshots


@dataclass(frozen=True, slots=True)
class _Choice:
    """What an export takes, None for O0, and why in a sentence."""

    candidate: CandidateRecord | None
    reason: str


def _choice(
    target: str,
    study: optuna.Study,
    file: StudyFile,
    directory: Path,
    candidates: Sequence[CandidateRecord],
    *,
    require_confirmed: bool,
) -> _Choice:
    objective = file.study.objective
    allowed_drop = float(study.user_attrs["allowed_drops"][target])
    higher = bool(study.user_attrs["higher_is_better"])
    trials = trials_of(study)
    baseline = baseline_record(study, trials)
    ranked = competing_trials(
        trials, baseline, target, allowed_drop, objective=objective, higher_is_better=higher, plans=file.plans
    )
    aimed = {trial.number: trial for trial in ranked}
    mine = [one for one in candidates if one.target == target]
    costs = {
        one.trial_number: cost(aimed[one.trial_number], objective, 1.0 / one.speedup)
        for one in mine
        if one.trial_number in aimed
    }
    limit = cost(aimed_at(baseline, baseline, allowed_drop, higher_is_better=higher), objective)
    candidate = choose(mine, costs, limit=limit, require_confirmed=require_confirmed)
    if candidate is None:
        return _Choice(None, _why_o0(mine, allowed_drop, require_confirmed=require_confirmed))
    time_told = _time_to_target(costs.get(candidate.trial_number, math.nan), limit, objective)
    safer = choose(mine, costs, limit=limit, require_confirmed=True)
    safer_told = "" if safer is None or safer is candidate else _instead(safer, directory)
    return _Choice(candidate, f"{candidate.label} ({candidate.summary}). {candidate.sentence}{time_told}{safer_told}")


def _result(
    study: optuna.Study, file: StudyFile, directory: Path, candidates: Sequence[CandidateRecord]
) -> StudyResult:
    importance, note = parameter_importance(study, file)
    attributes = study.user_attrs
    ended, notes = attributes.get("search_ended", ""), attributes.get("warm_start_notes", [])
    return StudyResult(
        name=file.study.name,
        directory=directory,
        task=file.study.task,
        metric_name=str(attributes.get("metric_name", "metric")),
        higher_is_better=bool(attributes.get("higher_is_better", True)),
        objective=file.study.objective,
        n_trials=file.study.n_trials,
        trials=trials_of(study),
        candidates=list(candidates),
        loss_scale_policy=attributes.get("loss_scale_policy"),
        freezing_limits=freezing_limits_of(study),
        importance=importance,
        environment=attributes.get("environment", {}),
        messages=[one for one in (ended, *notes, *file.not_drawn(), note) if one],
        allowed_drops=attributes.get("allowed_drops", {}),
    )


def _time_to_target(cost: float, limit: float, objective: str) -> str:
    """Say how the time to the target compares with O0's, where that is what the study minimises."""
    if objective != "time_to_target" or not (math.isfinite(cost) and math.isfinite(limit) and limit > 0.0):
        return ""
    return f" In the search it reached the target in {cost / limit:.2f} times the time of O0."


def _instead(confirmed: CandidateRecord, directory: Path) -> str:
    """Say that beside an undecided choice there is a confirmed one, and how to get it."""
    return (
        f" Confirmed is {confirmed.label} ({confirmed.summary}, {confirmed.speedup:.2f} x O0's speed per step): "
        f"workbench export {directory} --require-confirmed takes that."
    )


def _why_o0(candidates: list[CandidateRecord], allowed_drop: float, *, require_confirmed: bool) -> str:
    if not candidates:
        return f"O0 is exported: no trial was faster than O0 within the allowed drop of {allowed_drop:g}."
    refuted = sum(one.verdict is Verdict.REFUTED for one in candidates)
    if refuted == len(candidates):
        return f"O0 is exported: all {refuted} candidates were refuted."
    if require_confirmed:
        return f"O0 is exported: none of {len(candidates)} candidates is confirmed, and only that is accepted."
    return "O0 is exported: timed again, no candidate that keeps the metric was faster than O0."
