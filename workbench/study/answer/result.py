"""The answer of a study: what it found, written as files, and read back from storage without training."""

from __future__ import annotations

import math
import os
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState

from workbench.core.records import Choice, StudyResult, TrialRecord
from workbench.core.text import first_line
from workbench.study.answer.doubts import finds_steps_alone, learns_nothing, needs_no_training
from workbench.study.answer.export import export_configs, write_tables
from workbench.study.answer.freezing_limits import freezing_limits_of
from workbench.study.answer.not_exported import faster_untested, nothing_found, nothing_shorter
from workbench.study.answer.notes import Notes, note_trial, with_notes
from workbench.study.answer.selection import computing_as_o0, select, with_policy
from workbench.study.ask.search_space import all_off
from workbench.study.ask.sections import TARGETS
from workbench.study.ask.study_file import StudyFile, read_study, study_folder
from workbench.study.errors import StudyChangedError, StudyError
from workbench.study.run.objective import baseline_trial, metric_scale_of
from workbench.study.run.warm_up import WarmUpError, find_warm_up
from workbench.study.set_up.attribution import attribution_of, told_apart
from workbench.study.set_up.runtime_choice import steps_timed
from workbench.study.set_up.standing import SURE, baseline_metrics, standing_now, without_reference
from workbench.study.set_up.tuned_plain import plain_standing, tuned_plain_of
from workbench.study.store import storage as kept
from workbench.study.store.stored_records import candidates_of, keep, trials_of
from workbench.study.store.study_storage import StudyStorage
from workbench.study.store.trial_ids import storage_of

__all__ = ["StudyResult", "export_study", "open_begun", "read_result", "write_answer", "write_note"]

_FEWEST_SET_UPS = 5  # below, what matters for the objective is unknown, also of those that have drawn a parameter
_COMMAND = re.compile(r"`workbench tune [^`]+ --confirm-seeds ")


def open_begun(study_dir: str | Path, storage: str | None) -> tuple[optuna.Study, StudyFile, Path]:
    """Open a study that has been started, with its file and folder.

    Its file may have been edited since: what it has found is still read, unless another objective is asked about.
    """
    file, directory = read_study(study_dir), study_folder(study_dir)
    if storage is None and not (directory / "study.db").exists():
        raise StudyError(f"{directory}: the study has not been started; run `workbench tune {study_dir}` first")
    study = kept.find_study(kept.open_storage(storage or kept.default_storage(directory)), file.study.name)
    objective = study.user_attrs.get("study_file", {}).get("study", {}).get("objective", file.study.objective)
    if objective != file.study.objective:
        raise StudyChangedError(
            f"{directory}: the study was begun with the objective {objective!r}, and study.toml names "
            f"{file.study.objective!r} by now; put it back, or start over with --fresh"
        )
    return study, kept.on_its_network(file, study), directory


def read_result(study_dir: str | Path, *, storage: str | None = None) -> StudyResult:
    """Return the state of a study from its storage alone; nothing is trained and no task is loaded.

    ``storage`` is an Optuna URL, None for the SQLite file beside the study. A study that is wrong or has not been
    started is a StudyError.
    """
    return StudyReader(study_dir, storage=storage).read()


class StudyReader:
    """Reads the state of a study again and again, as `read_result` does once.

    The first reading opens the storage and checks it; the next ones read only what is new of its trials. In between no
    connection is open: with one, the end of a search could not make its database a plain file again.
    """

    def __init__(self, study_dir: str | Path, *, storage: str | None = None) -> None:
        self._study_dir, self._storage = study_dir, storage
        self._opened: tuple[optuna.Study, StudyFile] | None = None

    def read(self) -> StudyResult:
        """Return the state of the study; one that is wrong or has not been started is a StudyError."""
        with kept.quiet_optuna():
            if self._opened is None:
                self._opened = open_begun(self._study_dir, self._storage)[:2]
            try:
                return standing_result(self._study_dir, *self._opened)
            finally:
                kept.close_connections(self._opened[0])


def standing_result(study_dir: str | Path, study: optuna.Study, file: StudyFile) -> StudyResult:
    """Like `read_result`, for a study that has already been opened."""
    directory, attributes = study_folder(study_dir), study.user_attrs
    confirmed_only = bool(attributes.get("require_confirmed", False))  # as when the files were written
    is_judged = "candidates" in attributes or "chosen" in attributes
    result = _result(study, file, directory, is_judged=is_judged, require_confirmed=confirmed_only)
    files = {target: directory / "result" / f"boost_config.{target}.json" for target in TARGETS}
    exported = {target: path for target, path in files.items() if path.exists()}
    earlier = f"The files hold an earlier choice; `workbench export {study_dir}` writes this one."
    more = [earlier] if exported and attributes.get("chosen", {}) != result.chosen else []
    report = directory / "result" / "report.html"
    result = replace(result, exported=exported, report=report if report.exists() else None)
    return _with_messages(result, study, file, more)


def write_note(study_dir: str | Path, number: int, text: str, *, storage: str | None = None) -> None:
    """Keep what a person writes about a trial, where optuna-dashboard shows it, too; an empty text removes it.

    Study and storage are as in `read_result`; a trial that the study does not have is a StudyError.
    """
    with kept.quiet_optuna():
        study, _, _ = open_begun(study_dir, storage)
        trial = next((one for one in trials_of(study) if one.number == number), None)
        if trial is None:
            raise StudyError(f"{study_dir}: there is no trial {number}")
        note_trial(study, trial, text)


def export_study(
    study_dir: str | Path, out: str | Path | None = None, *, require_confirmed: bool = False, storage: str | None = None
) -> StudyResult:
    """Write the files of a study again from its storage into ``out``, by default the study's ``result``.

    Study and storage are as in `read_result`; without a finished O0 trial this is a StudyError.
    """
    with kept.quiet_optuna():
        study, file, directory = open_begun(study_dir, storage)
        if baseline_trial(study) is None:
            raise StudyError(
                f"{study_dir}: the study has no finished trial to export; run `workbench tune {study_dir}`"
            )
        folder = directory / "result" if out is None else Path(out)
        return write_answer(study, file, directory, folder, require_confirmed=require_confirmed)


def write_answer(
    study: optuna.Study, file: StudyFile, directory: Path, folder: Path, *, require_confirmed: bool
) -> StudyResult:
    """Choose what each export takes, write the files into ``folder`` and say why.

    The loss-scale policy applies to O0, too. The study keeps the choice when the files go to its own ``result``.
    """
    result = _result(study, file, directory, is_judged=True, require_confirmed=require_confirmed)
    policy = result.loss_scale_policy
    policy_sentence = "" if policy is None else str(policy.get("sentence", policy.get("failed", "")))
    origin = {
        "study": file.study.name,
        **{name: getattr(file.study, name) for name in ("task", "seed", "objective")},
        "metric": result.metric_name,
        "data_hash": str(study.user_attrs.get("data_hash", "")),
        "loss_scale": policy_sentence or None,
        "runs": None if result.shortened is None else "{} of today's {} batches".format(*result.shortened),
        "environment": result.environment,
    }
    off = with_policy(all_off(file.base_config()), policy, [dimension.path for dimension in file.dimensions])
    try:
        warm_up = find_warm_up(file, directory, file.study.seed)
    except WarmUpError:  # of which nothing is left here
        warm_up = None
    snapshots = None if warm_up is None else warm_up.snapshots
    exported = export_configs(folder, result.choices, off, origin, file.plans, snapshots)
    write_tables(folder, result)
    more = [policy_sentence] if policy_sentence else []
    is_own_folder = folder == directory / "result"
    if is_own_folder:
        keep(study, "chosen", result.chosen)
        keep(study, "require_confirmed", require_confirmed)
    # Importance takes a while: the files come first.
    result = _with_messages(replace(result, exported=exported), study, file, more)
    if is_own_folder:
        Notes(study, file).write(result.trials, [*result.choice_sentences, *more])
    return result


def _judged(study: optuna.Study, file: StudyFile) -> list[TrialRecord]:
    """Return the trials; in a search for set-ups, with their quality as judged from all its runs."""
    trials = with_notes(study, trials_of(study))
    if file.study.objective != "time_to_quality" or baseline_trial(study) is None:
        return trials
    standing, plain = standing_now(study, file), plain_standing(study, file).sure  # those are judged among themselves
    sure = {number: max(one, plain.get(number, 0.0)) for number, one in standing.sure.items()}

    def judged(trial: TrialRecord) -> TrialRecord:
        if trial.number not in sure:
            return trial
        deficit, chance = float(np.mean(standing.tried[trial.number].deficits)), sure[trial.number]
        deficit = round(deficit, 12) + 0.0  # of equal metrics the mean may be -1e-16
        return replace(trial, metric_deficit=deficit, chance=chance, feasible=chance >= SURE)

    return [judged(trial) for trial in trials]


def _result(
    study: optuna.Study, file: StudyFile, directory: Path, *, is_judged: bool, require_confirmed: bool
) -> StudyResult:
    """Return the answer without files and messages, and without choices until candidates have been judged."""
    attributes, trials = study.user_attrs, _judged(study, file)
    metric, drops = metric_scale_of(attributes), attributes.get("allowed_drops", {})
    # Sentences were stored with a command; the study's folder may be called otherwise by now.
    here = f"`workbench tune {shlex.quote(str(directory))}{_elsewhere(study, directory)} --confirm-seeds "
    candidates = [replace(one, sentence=_COMMAND.sub(lambda _: here, one.sentence)) for one in candidates_of(study)]
    as_given = "O0 is exported: no training is needed for the quality that is asked."
    choices: dict[str, Choice] = {}
    for target, drop in drops.items() if is_judged else ():
        if needs_no_training(study, file):
            choices[target] = Choice(target, None, as_given)
            continue
        steps_alone = finds_steps_alone(study, file)
        nothing = nothing_found(trials, float(drop), metric.name, file, steps_alone=steps_alone)
        as_o0 = computing_as_o0(study)
        choice = select(target, candidates, nothing=nothing, require_confirmed=require_confirmed, as_o0=as_o0)
        tested = {one.trial_number for one in candidates if one.target == target}
        untested = faster_untested(choice, trials, tested, attributes)
        choices[target] = replace(choice, others=(*choice.others, *untested))
    known = attribution_of(attributes)
    taken = {target: choice.candidate for target, choice in choices.items() if choice.candidate is not None}
    parts = {target: told_apart(known.get(str(one.trial_number), ())) for target, one in taken.items()}
    return StudyResult(
        name=file.study.name,
        directory=directory,
        task=file.study.task,
        metric_name=metric.name,
        higher_is_better=metric.higher_is_better,
        objective=file.study.objective,
        n_trials=int(attributes.get("n_trials", file.study.n_trials)),
        trials=trials,
        candidates=candidates,
        choices=choices,
        loss_scale_policy=attributes.get("loss_scale_policy"),
        freezing_limits=freezing_limits_of(study),
        environment=attributes.get("environment", {}),
        allowed_drops=drops,
        attribution={target: one for target, one in parts.items() if one},
        tuned_plain=tuned_plain_of(attributes),
        left_out=tuple(file.set_up.left_out),
        shortened=None if (today := file.set_up.todays_steps) is None else (file.study.budget_steps, today),
        doubt=learns_nothing(study, file),
    )


def _elsewhere(study: optuna.Study, directory: Path) -> str:
    """Return the option that names a study's database; empty for the file beside it, or where the environment does."""
    storage = storage_of(study)
    if not isinstance(storage, StudyStorage) or os.environ.get("WORKBENCH_STORAGE"):
        return ""
    url = storage.engine.url.render_as_string(hide_password=False)
    return "" if url == kept.default_storage(directory) else f" --storage {shlex.quote(kept.shown_url(url))}"


def _with_messages(result: StudyResult, study: optuna.Study, file: StudyFile, more: Sequence[str]) -> StudyResult:
    """Return the answer with what matters and its messages: the choices' sentences, then ``more`` and what they left.

    Nothing is repeated.
    """
    attributes = study.user_attrs
    importance, why_unknown = _importance(study, file)
    sentences = [file.set_up.shortened, attributes.get("search_ended", ""), attributes.get("cut_short", "")]
    sentences += [_where_o0_diverged(attributes, file), *attributes.get("warm_start_notes", [])]
    sentences += [steps_timed(file, attributes)] if finds_steps_alone(study, file) else []
    sentences += [nothing_shorter(result, file), *file.not_drawn(), why_unknown]
    sentences += [_threads_of_o0(result)] if result.taken else []
    said = " ".join(choice.sentence for choice in result.choices.values())
    left = [one for one in sentences if one and one.rstrip(".") not in said]
    return replace(result, importance=importance, messages=[*result.choice_sentences, *more, *left])


def _threads_of_o0(result: StudyResult) -> str:
    """Say with how many threads the CPU trained where it has more cores: with others the ratios may be others."""
    known = result.environment.get("device", {})
    threads, cores = known.get("torch_threads", 1), known.get("cpu_cores_usable", 1)
    if known.get("device") != known.get("cpu") or threads >= cores:
        return ""
    many = f"{threads} threads" if threads > 1 else "one thread"
    return (
        f"O0 was trained with {many}, on a machine with {cores} cores: what a set-up gains with more threads was not "
        "measured."
    )


def _where_o0_diverged(attributes: Mapping[str, Any], file: StudyFile) -> str:
    """Say on which of the search's seeds nothing was compared, since O0 diverged; empty where it never did."""
    lost = [str(file.study.seed + index) for index in sorted(without_reference(attributes))]
    if not lost:
        return ""
    which = f"seed{'s' if len(lost) > 1 else ''} {', '.join(lost)} of the search"
    return (
        f"The task as given diverged on {which} ({len(lost)} of its {len(baseline_metrics(attributes))} runs): no "
        "set-up was compared there, and the answer holds for trainings in which it does not diverge."
    )


def _importance(study: optuna.Study, file: StudyFile) -> tuple[dict[str, float], str]:
    """Return each parameter's share of the influence on the objective, or an empty dictionary and why, as a sentence.

    In a search for the fastest set-up it is that on the quality, by the search's own regression: what a run takes
    follows from its length and its batches, and Optuna compares those that were drawn around the leader with the rest.

    If none matters all are 0, where Optuna's own shares would be equal. A parameter that hardly any trial has drawn, as
    the rate of an optimizer that was soon given up, has none: Optuna compares those few trials with each other.
    """
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    n_plans = sum("repeats" not in trial.user_attrs for trial in complete)
    if n_plans < _FEWEST_SET_UPS:
        few = f"The importance of the parameters needs {_FEWEST_SET_UPS} set-ups that ran to their end."
        has_few = n_plans <= 1 or finds_steps_alone(study, file) or (file.most_plans() or math.inf) < _FEWEST_SET_UPS
        return {}, "" if has_few else few  # where there can be no more, that goes without saying
    if file.study.objective == "time_to_quality":
        standing = standing_now(study, file)
        found = standing.model.influence([one.values for one in standing.tried.values()])
    else:
        target = (lambda trial: float(trial.values[-1])) if len(study.directions) > 1 else None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = optuna.importance.get_param_importances(study, target=target, normalize=False)
        except (ValueError, RuntimeError) as error:
            return {}, f"There are too few trials to estimate the importance of the parameters ({first_line(error)})."
    settings = {dimension.path for dimension in file.dimensions if len(dimension.extremes) == 1}
    drawn = Counter(name for trial in complete for name in trial.params)
    told = {name: one for name, one in found.items() if drawn[name] >= _FEWEST_SET_UPS}
    known = {name: float(one) for name, one in told.items() if math.isfinite(one)}
    known = dict(sorted(known.items(), key=lambda one: (-one[1], one[0])))  # equal ones in the same order everywhere
    total = sum(known.values()) or 1.0
    return {name: one / total for name, one in known.items() if name not in settings}, ""
