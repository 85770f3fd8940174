"""The whole way of a study: search, loss-scale policy, confirmation, export.

    trial 0 = O0
    while fewer than n_trials plans have run and time is left:   draw, measure speed, train, score
    record one float16 run, replay the policies, verify the best        (when the study asks for it)
    for the best of each export: train it and O0 over fresh seeds until the verdict is in
    take the best that is not refuted, else O0; write the files

Every arrow of this way is stored when it is done, so the same command continues wherever the last one ended, whatever
ended it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from workbench.config import BoostConfig
from workbench.records import CandidateRecord, TrialRecord, Verdict
from workbench.tuning import storage as kept
from workbench.tuning.confirming import Confirmation, Contender
from workbench.tuning.errors import StudyError, StudyFailedError
from workbench.tuning.experimenter import Experimenter, RunStep, TaskExperimenter
from workbench.tuning.export import ExportContext, export_configs, write_tables
from workbench.tuning.loss_scale_policy import tune_loss_scale
from workbench.tuning.objective import Objective, baseline_trial, plain
from workbench.tuning.sampling import make_pruner, make_sampler
from workbench.tuning.search_space import all_off
from workbench.tuning.selection import TARGETS, aimed_at, choose, competing_trials, cost, with_policy
from workbench.tuning.study_file import StudyFile, read_study

__all__ = ["StudyResult", "TuneProgress", "export_study", "read_result", "search", "tune"]

MakeExperimenter = Callable[[StudyFile, Path], Experimenter]

_FAILURES_IN_A_ROW = 3
_REPEATS_PER_TRIAL = 3


@dataclass(frozen=True, slots=True)
class TuneProgress:
    """How far a study is.

    Args:
        phase: ``"search"``, ``"loss scale"``, ``"confirm"`` or ``"export"``.
        done: Units of the phase that are done (trials, runs); a running one counts by its share.
        total: Units of the phase as far as known.
        eta_seconds: Time the rest of this command will probably take; NaN while unknown.
        best: The best so far in a few words; empty while there is none.
    """

    phase: str
    done: float
    total: float
    eta_seconds: float
    best: str


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
    importance: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    allowed_drops: Mapping[str, float] = field(default_factory=dict)
    report: Path | None = None
    seconds: float = math.nan


def tune(
    study_dir: str | Path,
    *,
    trials: int | None = None,
    timeout: float | None = None,
    fresh: bool = False,
    confirm_seeds: int | None = None,
    require_confirmed: bool = False,
    jobs: int = 1,
    storage: str | None = None,
    on_progress: Callable[[TuneProgress], None] | None = None,
    make_experimenter: MakeExperimenter | None = None,
) -> StudyResult:
    """Run a study to its end, or continue it.

    Args:
        study_dir: Folder with ``study.toml``.
        trials: Finished trials of the whole study; None follows the file.
        timeout: Seconds this command may take; None follows the file. A run that has begun is finished.
        fresh: Archive what the study has produced and begin anew.
        confirm_seeds: Paired seeds of the confirmation, at least 2; None follows the file.
        require_confirmed: Export confirmed candidates only.
        jobs: Processes that search at the same time.
        storage: Optuna storage URL; None keeps a SQLite file beside the study.
        on_progress: Told how far it is, several times per run.
        make_experimenter: Who trains; None trains the task the file names. A function at module level when
            ``jobs`` is above 1.

    Returns:
        The result, with the exported files; ``report`` is None, since reports are written above this layer.

    Raises:
        StudyError: When the study, an argument or the storage is wrong, or the study is being tuned already.
        StudyChangedError: When ``study.toml`` changed since the study began.
        StudyFailedError: When O0 does not train or trials keep failing.
        KeyboardInterrupt: After Ctrl-C; the state is saved, the running trial will be run again.
    """
    began = time.monotonic()
    directory = Path(study_dir)
    file = read_study(directory)
    directory = directory.parent if directory.suffix == ".toml" else directory
    _check_arguments(trials, timeout, confirm_seeds, jobs)
    n_trials = file.study.n_trials if trials is None else trials
    limit = timeout if timeout is not None else file.study.timeout_seconds
    deadline = None if limit is None else began + limit
    with _quiet_optuna(), kept.holding_study(directory), kept.plain_storage_errors():
        # The task first: a study that cannot run must not archive one that did.
        experimenter = _experimenter(make_experimenter, file, directory)
        allowed = file.allowed_drops(experimenter.metric_name)
        messages: list[str] = []
        if fresh:
            if storage is not None:
                raise StudyError(
                    "--fresh archives the SQLite file beside the study; with --storage give the study a new name"
                )
            archived = kept.archive_study(directory)
            if archived is not None:
                messages.append(f"The earlier study is archived in {archived}.")
        database = kept.open_storage(storage or kept.default_storage(directory))
        study = kept.open_study(database, file, experimenter)
        study.set_user_attr("allowed_drops", allowed)
        kept.requeue_interrupted(database, study)
        watch = _Watch(study, file, n_trials, confirm_seeds, on_progress)
        search_deadline = deadline
        if limit is not None and deadline is not None and file.confirm.enabled:
            search_deadline = deadline - limit * file.confirm.time_share
        runner = _Search(file, database, study, experimenter, allowed, n_trials, search_deadline, watch)
        runner.baseline()
        if jobs > 1:
            from workbench.tuning.workers import run_workers

            url = storage or kept.default_storage(directory)
            run_workers(directory, url, jobs, n_trials, search_deadline, make_experimenter, watch.trial_finished)
        runner.search()
        policy = _loss_scale(study, file, experimenter, watch)
        command = f"workbench tune {study_dir} --confirm-seeds {{seeds}}"
        candidates = _confirm(study, file, experimenter, allowed, policy, command, confirm_seeds, deadline, watch)
        watch.phase("export")
        result = _export(study, file, directory, candidates, policy, allowed, require_confirmed, directory / "result")
        watch.done()
        messages = [*result.messages, *messages]
        return replace(result, messages=messages, n_trials=n_trials, seconds=time.monotonic() - began)


def read_result(study_dir: str | Path, *, storage: str | None = None) -> StudyResult:
    """Return the state of a study from its storage alone; nothing is trained and no task is loaded.

    Args:
        study_dir: Folder with ``study.toml``.
        storage: Optuna storage URL; None reads the SQLite file beside the study.

    Raises:
        StudyError: When the study is wrong or has not been started.
    """
    directory = Path(study_dir)
    file = read_study(directory)
    directory = directory.parent if directory.suffix == ".toml" else directory
    if storage is None and not (directory / "study.db").exists():
        raise StudyError(f"{directory}: the study has not been started; run `workbench tune {study_dir}` first")
    with _quiet_optuna():
        study = kept.find_study(kept.open_storage(storage or kept.default_storage(directory)), file.study.name)
        stored = study.user_attrs.get("candidates", [])
        result = _result(study, file, directory, [_candidate(one) for one in stored])
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
    with _quiet_optuna():
        database = kept.open_storage(storage or kept.default_storage(result.directory))
        study = kept.find_study(database, file.study.name)
        if baseline_trial(study) is None:
            raise StudyError(
                f"{study_dir}: the study has no finished trial to export; run `workbench tune {study_dir}`"
            )
        folder = Path(out) if out is not None else result.directory / "result"
        return _export(
            study,
            file,
            result.directory,
            result.candidates,
            result.loss_scale_policy,
            result.allowed_drops,
            require_confirmed,
            folder,
        )


def search(
    study_dir: Path,
    url: str,
    *,
    n_trials: int | None = None,
    deadline: float | None = None,
    make_experimenter: MakeExperimenter | None = None,
) -> None:
    """Run trials of a study that ``tune`` has begun: what one worker process does.

    Args:
        study_dir: Folder with ``study.toml``.
        url: Optuna storage URL.
        n_trials: Finished trials of the whole study; None follows the file.
        deadline: ``time.monotonic()`` after which no trial is begun; None for none.
        make_experimenter: Who trains; None trains the task the file names.

    Raises:
        StudyError: When the study is wrong or has not been started.
        StudyFailedError: When trials keep failing.
    """
    file = read_study(study_dir)
    with _quiet_optuna():
        experimenter = _experimenter(make_experimenter, file, study_dir)
        database = kept.open_storage(url)
        study = kept.find_study(database, file.study.name)
        total = n_trials or file.study.n_trials
        watch = _Watch(study, file, total, None, None)
        allowed = file.allowed_drops(experimenter.metric_name)
        with kept.plain_storage_errors():
            runner = _Search(file, database, study, experimenter, allowed, total, deadline, watch)
            runner.baseline()
            runner.search()


class _Search:
    """Run trials until the whole study has enough of them or the time is over."""

    def __init__(
        self,
        file: StudyFile,
        database: RDBStorage,
        study: optuna.Study,
        experimenter: Experimenter,
        allowed: dict[str, float],
        n_trials: int,
        deadline: float | None,
        watch: _Watch,
    ) -> None:
        self._file = file
        self._database = database
        self._study = study
        self._n_trials = n_trials
        self._deadline = deadline
        self._watch = watch
        self._objective = Objective(file, study, experimenter, allowed, on_step=watch.step)
        study.pruner = make_pruner(file.pruner.name, file.pruner.options, budget_steps=file.study.budget_steps)

    def baseline(self) -> None:
        """Run O0 if it has not been run, or wait for the process that runs it."""
        self._watch.phase("search")
        while baseline_trial(self._study) is None:
            states = {trial.state for trial in self._study.get_trials(deepcopy=False)}
            if TrialState.WAITING in states:
                self._one()
            elif TrialState.RUNNING in states:
                time.sleep(1.0)
            else:
                raise StudyFailedError("the study has no O0 trial any more; start over with --fresh")

    def search(self) -> None:
        """Run the other trials."""
        failures = 0
        while self._wanted() and not self._out_of_time():
            self._watch.trial_finished()
            failures = 0 if self._one() else failures + 1
            if failures >= _FAILURES_IN_A_ROW:
                last = self._study.get_trials(deepcopy=False, states=(TrialState.FAIL,))[-1]
                raise StudyFailedError(
                    f"{failures} trials in a row failed, the last with: {last.user_attrs.get('message', 'no message')}"
                )
        self._watch.trial_finished()

    def _wanted(self) -> bool:
        counted = kept.counted_trials(self._study)
        begun = self._study.get_trials(deepcopy=False, states=(*kept.FINISHED, TrialState.RUNNING))
        # Repeats cost nothing, but a space with fewer plans than trials would be drawn from for ever.
        repeats = len(begun) - len(counted)
        return len(counted) < self._n_trials and repeats < _REPEATS_PER_TRIAL * self._n_trials

    def _one(self) -> bool:
        """Run one trial; return whether it finished."""
        study = self._study
        trials = study.get_trials(deepcopy=False)
        # Seeded anew for every trial: a study that was interrupted draws what it would have drawn anyway, instead of
        # the draws its first process has used up already.
        waiting = [trial.number for trial in trials if trial.state == TrialState.WAITING]
        number = waiting[0] if waiting else len(trials)
        study.sampler = make_sampler(
            self._file.sampler.name,
            self._file.sampler.options,
            seed=_trial_seed(self._file, number),
            n_trials=self._n_trials,
        )
        trial = study.ask()
        kept.mark_process(trial)
        if self._is_surplus(trial.number):
            study.tell(trial, state=TrialState.FAIL)
            return True
        try:
            with kept.beating(self._database, study, trial.number):
                values = self._objective(trial)
        except optuna.TrialPruned:
            study.tell(trial, state=TrialState.PRUNED)
            return True
        except (KeyboardInterrupt, SystemExit):
            kept.put_back(self._database, study, trial.number)
            raise
        except (StudyFailedError, OSError):
            # O0 does not train, or the disk is full: no later trial would do better, and this one is worth repeating.
            kept.put_back(self._database, study, trial.number)
            raise
        except Exception as error:  # one configuration that cannot run must not end the search
            if trial.user_attrs.get("baseline"):
                kept.put_back(self._database, study, trial.number)
                raise
            trial.set_user_attr("message", f"{type(error).__name__}: {error}")
            study.tell(trial, state=TrialState.FAIL)
            return False
        study.tell(trial, values)
        return True

    def _is_surplus(self, number: int) -> bool:
        """Return whether other processes have begun the last trials in the meantime."""
        others = [one for one in kept.counted_trials(self._study) if one.number != number]
        earlier = [one for one in others if one.state in kept.FINISHED or one.number < number]
        return len(earlier) >= self._n_trials

    def _out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline


class _Watch:
    """Turn what happens into `TuneProgress`."""

    def __init__(
        self,
        study: optuna.Study,
        file: StudyFile,
        n_trials: int,
        confirm_seeds: int | None,
        on_progress: Callable[[TuneProgress], None] | None,
    ) -> None:
        self._study = study
        self._file = file
        self._n_trials = n_trials
        self._on_progress = on_progress
        self._phase = "search"
        self._done = 0.0
        self._total = float(n_trials)
        self._share = 0.0
        self._trial_seconds = math.nan
        self._best = ""
        seeds = file.confirm.seeds_min if confirm_seeds is None else confirm_seeds
        plans = 1 + file.confirm.candidates
        self._later_runs = float(seeds * plans) if file.confirm.enabled else 0.0

    def phase(self, name: str, done: float = 0.0, total: float = 1.0) -> None:
        """Begin a phase."""
        if name == "search":
            self._refresh()
        else:
            self._phase, self._done, self._total, self._share = name, done, total, 0.0
            if name == "export":
                self._later_runs = 0.0
        self._tell()

    def step(self, step: RunStep) -> None:
        """Take a step of the run in progress."""
        self._share = min(step.step / max(step.steps, 1), 1.0)
        self._tell()

    def trial_finished(self) -> None:
        """Look at the trials again."""
        self._refresh()
        self._tell()

    def run_finished(self, done: int, total: int) -> None:
        """Take the number of confirmation runs done."""
        self._phase, self._done, self._total, self._share = "confirm", float(done), float(total), 0.0
        self._later_runs = 0.0
        self._tell()

    def done(self) -> None:
        """End the last phase."""
        self._done, self._share = self._total, 0.0
        self._tell()

    def _refresh(self) -> None:
        if self._on_progress is None:
            return
        records = kept.trials_of(self._study)
        counted = {trial.number for trial in kept.counted_trials(self._study)}
        finished = [one for one in records if one.state in {"complete", "pruned"} and one.number in counted]
        seconds = [record.seconds for record in finished if record.seconds > 0.0]
        self._trial_seconds = sum(seconds) / len(seconds) if seconds else math.nan
        self._phase, self._done, self._total, self._share = "search", float(len(finished)), float(self._n_trials), 0.0
        self._best = self._best_of(records)

    def _best_of(self, records: list[TrialRecord]) -> str:
        """Say who leads the export with the smaller allowed drop, or else the other."""
        baseline = baseline_trial(self._study)
        if baseline is None:
            return ""
        attributes = self._study.user_attrs
        reference = next(one for one in records if one.number == baseline.number)
        for target in TARGETS:
            ranked = competing_trials(
                records,
                reference,
                target,
                attributes["allowed_drops"][target],
                objective=self._file.study.objective,
                higher_is_better=bool(attributes["higher_is_better"]),
            )
            if ranked:
                best = ranked[0]
                return f"{target}: trial {best.number}, {1.0 / best.relative_step_time:.2f}x per step, {best.summary}"
        return ""

    def _tell(self) -> None:
        if self._on_progress is None:
            return
        done = min(self._done + self._share, self._total)
        left = max(self._total - done, 0.0)
        eta = (left + self._later_runs) * self._trial_seconds if self._phase != "export" else 0.0
        self._on_progress(TuneProgress(self._phase, done, self._total, eta, self._best))


def _loss_scale(
    study: optuna.Study, file: StudyFile, experimenter: Experimenter, watch: _Watch
) -> Mapping[str, Any] | None:
    if file.loss_scale_replay is None or not file.loss_scale_replay.enabled:
        return None
    watch.phase("loss scale")
    return tune_loss_scale(study, file, experimenter, on_step=watch.step)


def _confirm(
    study: optuna.Study,
    file: StudyFile,
    experimenter: Experimenter,
    allowed: Mapping[str, float],
    policy: Mapping[str, Any] | None,
    command: str,
    confirm_seeds: int | None,
    deadline: float | None,
    watch: _Watch,
) -> list[CandidateRecord]:
    trials = kept.trials_of(study)
    baseline = _baseline_record(study, trials)
    searched = [dimension.path for dimension in file.dimensions]
    usable = None if policy is None or "failed" in policy else policy
    pools: dict[str, list[Contender]] = {}
    for target in TARGETS:
        ranked = competing_trials(
            trials,
            baseline,
            target,
            allowed[target],
            objective=file.study.objective,
            higher_is_better=experimenter.higher_is_better,
        )
        pools[target] = [
            Contender(
                trial,
                target,
                with_policy(BoostConfig.from_dict(trial.config), usable, searched),
                trial.level,
                allowed[target],
            )
            for trial in ranked
        ]
    confirmation = Confirmation(
        study,
        file,
        experimenter,
        command=command,
        confirm_seeds=confirm_seeds,
        deadline=deadline,
        on_run=watch.run_finished,
        on_step=watch.step,
    )
    candidates = confirmation.judge(pools)
    study.set_user_attr("candidates", plain([asdict(one) for one in candidates]))
    return candidates


def _export(
    study: optuna.Study,
    file: StudyFile,
    directory: Path,
    candidates: list[CandidateRecord],
    policy: Mapping[str, Any] | None,
    allowed: Mapping[str, float],
    require_confirmed: bool,
    folder: Path,
) -> StudyResult:
    trials = kept.trials_of(study)
    baseline = _baseline_record(study, trials)
    by_number = {trial.number: trial for trial in trials}
    higher = bool(study.user_attrs["higher_is_better"])
    chosen: dict[str, CandidateRecord | None] = {}
    reasons: dict[str, str] = {}
    sentences: list[str] = []
    for target in TARGETS:
        mine = [one for one in candidates if one.target == target]
        ranked = competing_trials(
            list(by_number.values()),
            baseline,
            target,
            allowed[target],
            objective=file.study.objective,
            higher_is_better=higher,
        )
        aimed = {trial.number: trial for trial in ranked}
        costs = {
            one.trial_number: cost(aimed[one.trial_number], file.study.objective, 1.0 / one.speedup)
            for one in mine
            if one.trial_number in aimed
        }
        limit = cost(aimed_at(baseline, baseline, allowed[target], higher_is_better=higher), file.study.objective)
        chosen[target] = choose(mine, costs, limit=limit, require_confirmed=require_confirmed)
        if chosen[target] is None:
            reasons[target] = _why_o0(mine, allowed[target], require_confirmed=require_confirmed)
        candidate = chosen[target]
        sentences.append(
            f"{target}: {reasons[target]}"
            if candidate is None
            else f"{target}: {candidate.label} ({candidate.summary}). {candidate.sentence}"
            + _time_to_target(costs.get(candidate.trial_number, math.nan), limit, file.study.objective)
        )
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
    searched = [dimension.path for dimension in file.dimensions]
    usable = None if policy is None or "failed" in policy else policy
    base = with_policy(all_off(file.base_config()), usable, searched)
    exported = export_configs(folder, chosen, base, reasons, context)
    numbers = {target: None if one is None else one.trial_number for target, one in chosen.items()}
    write_tables(folder, candidates, numbers, environment)
    labels = {target: "O0" if one is None else one.label for target, one in chosen.items()}
    if folder == directory / "result":
        study.set_user_attr("chosen", labels)
    result = _result(study, file, directory, candidates)
    told = [*sentences, *([policy_told] if policy_told else []), *result.messages]
    return replace(result, exported=exported, chosen=labels, messages=told)


def _result(study: optuna.Study, file: StudyFile, directory: Path, candidates: list[CandidateRecord]) -> StudyResult:
    importance, note = _importance(study, file)
    attributes = study.user_attrs
    return StudyResult(
        name=file.study.name,
        directory=directory,
        task=file.study.task,
        metric_name=str(attributes.get("metric_name", "metric")),
        higher_is_better=bool(attributes.get("higher_is_better", True)),
        objective=file.study.objective,
        n_trials=file.study.n_trials,
        trials=kept.trials_of(study),
        candidates=candidates,
        loss_scale_policy=attributes.get("loss_scale_policy"),
        importance=importance,
        environment=attributes.get("environment", {}),
        messages=[note] if note else [],
        allowed_drops=attributes.get("allowed_drops", {}),
    )


def _importance(study: optuna.Study, file: StudyFile) -> tuple[dict[str, float], str]:
    """Return how much each parameter matters, or nothing and a sentence why."""
    target = None
    if len(study.directions) > 1:
        target = _relative_time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = optuna.importance.get_param_importances(study, target=target)
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        return {}, f"The importance of the parameters cannot be told from so few trials ({reason})."
    settings = {dimension.path for dimension in file.dimensions if len(dimension.extremes) == 1}
    return {name: float(share) for name, share in found.items() if math.isfinite(share) and name not in settings}, ""


def _relative_time(trial: optuna.trial.FrozenTrial) -> float:
    return float(trial.values[-1])


def _time_to_target(cost: float, limit: float, objective: str) -> str:
    """Say how the time to the target compares with O0's, where that is what the study minimises."""
    if objective != "time_to_target" or not (math.isfinite(cost) and math.isfinite(limit) and limit > 0.0):
        return ""
    return f" In the search it reached the target in {cost / limit:.2f} times the time of O0."


def _why_o0(candidates: list[CandidateRecord], allowed_drop: float, *, require_confirmed: bool) -> str:
    if not candidates:
        return f"O0 is exported: no trial was faster than O0 within the allowed drop of {allowed_drop:g}."
    refuted = sum(one.verdict is Verdict.REFUTED for one in candidates)
    if refuted == len(candidates):
        return f"O0 is exported: all {refuted} candidates were refuted."
    if require_confirmed:
        return f"O0 is exported: none of {len(candidates)} candidates is confirmed, and only that is accepted."
    return "O0 is exported: timed again, no candidate that keeps the metric was faster than O0."


def _baseline_record(study: optuna.Study, trials: list[TrialRecord]) -> TrialRecord:
    baseline = baseline_trial(study)
    if baseline is None:
        raise StudyFailedError("the study has no finished O0 trial to compare with")
    return next(trial for trial in trials if trial.number == baseline.number)


def _candidate(stored: Mapping[str, Any]) -> CandidateRecord:
    numbers = ("speedup", "speedup_low", "speedup_high", "drop")
    values = {name: math.nan if stored[name] is None else stored[name] for name in numbers}
    bound = math.inf if stored["drop_bound"] is None else stored["drop_bound"]
    metrics = tuple((math.nan if a is None else a, math.nan if b is None else b) for a, b in stored["metrics"])
    verdict = Verdict(stored["verdict"])
    return CandidateRecord(**{**stored, **values, "drop_bound": bound, "verdict": verdict, "metrics": metrics})


def _experimenter(make: MakeExperimenter | None, file: StudyFile, directory: Path) -> Experimenter:
    if make is not None:
        return make(file, directory)
    return TaskExperimenter(file.study.task, file.study.device, directory / "runs", file.study.threads)


def _trial_seed(file: StudyFile, number: int) -> int:
    if file.sampler.name == "qmc":  # one sequence over all processes; its position is in the storage
        return file.study.seed
    return int(np.random.SeedSequence([file.study.seed, number]).generate_state(1)[0])


def _check_arguments(trials: int | None, timeout: float | None, confirm_seeds: int | None, jobs: int) -> None:
    if trials is not None and not trials >= 1:
        raise StudyError(f"--trials must be at least 1, got {trials}")
    if timeout is not None and not timeout > 0.0:
        raise StudyError(f"--timeout must be greater than 0 seconds, got {timeout}")
    if confirm_seeds is not None and not confirm_seeds >= 2:
        raise StudyError(f"--confirm-seeds must be at least 2, since one pair has no spread, got {confirm_seeds}")
    if not jobs >= 1:
        raise StudyError(f"--jobs must be at least 1, got {jobs}")


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Keep Optuna's own log lines and its notes on experimental parts off the user's screen."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # We send the heartbeats ourselves (storage.beating).
            warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed to be used with")
            yield
    finally:
        optuna.logging.set_verbosity(before)
