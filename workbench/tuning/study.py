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

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import optuna

from workbench.config import BoostConfig
from workbench.records import CandidateRecord
from workbench.tuning import storage as kept
from workbench.tuning.answer import StudyResult, write_answer
from workbench.tuning.confirming import Confirmation, Contender
from workbench.tuning.errors import StudyError
from workbench.tuning.experimenter import Experimenter, MakeExperimenter, experimenter_for
from workbench.tuning.loss_scale_policy import tune_loss_scale
from workbench.tuning.objective import plain
from workbench.tuning.progress import StudyWatch, TuneProgress
from workbench.tuning.quiet import quiet_optuna
from workbench.tuning.searching import Search
from workbench.tuning.selection import TARGETS, competing_trials, with_policy
from workbench.tuning.stored_records import baseline_record, trials_of
from workbench.tuning.study_file import StudyFile, read_study
from workbench.tuning.workers import run_workers

__all__ = ["tune"]


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
    with quiet_optuna(), kept.holding_study(directory), kept.plain_storage_errors():
        # The task first: a study that cannot run must not archive one that did.
        experimenter = experimenter_for(file, directory, make_experimenter)
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
        watch = StudyWatch(study, file, n_trials, confirm_seeds, on_progress)
        search_deadline = deadline
        if limit is not None and deadline is not None and file.confirm.enabled:
            search_deadline = deadline - limit * file.confirm.time_share
        runner = Search(file, database, study, experimenter, allowed, n_trials, search_deadline, watch)
        runner.baseline()
        if jobs > 1:
            url = storage or kept.default_storage(directory)
            run_workers(directory, url, jobs, n_trials, search_deadline, make_experimenter, watch.trial_finished)
        runner.search()
        policy = _loss_scale(study, file, experimenter, watch)
        command = f"workbench tune {study_dir} --confirm-seeds {{seeds}}"
        candidates = _confirm(study, file, experimenter, allowed, policy, command, confirm_seeds, deadline, watch)
        watch.phase("export")
        result = write_answer(
            study, file, directory, candidates, policy, allowed, require_confirmed, directory / "result"
        )
        watch.done()
        messages = [*result.messages, *messages]
        return replace(result, messages=messages, n_trials=n_trials, seconds=time.monotonic() - began)


def _loss_scale(
    study: optuna.Study, file: StudyFile, experimenter: Experimenter, watch: StudyWatch
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
    watch: StudyWatch,
) -> list[CandidateRecord]:
    trials = trials_of(study)
    baseline = baseline_record(study, trials)
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


def _check_arguments(trials: int | None, timeout: float | None, confirm_seeds: int | None, jobs: int) -> None:
    if trials is not None and not trials >= 1:
        raise StudyError(f"--trials must be at least 1, got {trials}")
    if timeout is not None and not timeout > 0.0:
        raise StudyError(f"--timeout must be greater than 0 seconds, got {timeout}")
    if confirm_seeds is not None and not confirm_seeds >= 2:
        raise StudyError(f"--confirm-seeds must be at least 2, since one pair has no spread, got {confirm_seeds}")
    if not jobs >= 1:
        raise StudyError(f"--jobs must be at least 1, got {jobs}")
