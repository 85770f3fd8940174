"""Join a study that several machines search together: what ``workbench worker`` does.

Any scheduler may start any number of workers on one database, at any time. The first one makes the study and runs
O0, the others wait for it. Confirmation and export are one process's work: ``workbench tune`` on that database.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workbench.study.answer.status_keeper import StatusKeeper
from workbench.study.ask.study_file import read_study, study_folder
from workbench.study.errors import OutOfTimeError, StudyError
from workbench.study.run.experimenter import MakeExperimenter, experimenter_for
from workbench.study.run.progress import StudyWatch, TuneProgress
from workbench.study.run.runner import Limits, StoppableExperimenter
from workbench.study.run.searching import Search
from workbench.study.store import storage as kept
from workbench.study.store.ended_trials import FINISHED
from workbench.study.store.stored_records import counted_among, keep_question


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """What a worker leaves behind."""

    name: str
    finished_here: int  # trials that this process ran to their end, repeats of equal plans included
    finished: int  # trials of the study that have finished and count
    n_trials: int  # the study is meant to have
    complete: bool
    storage: str  # without its password
    seconds: float


def join_study(
    study_dir: str | Path,
    storage: str | None = None,
    *,
    trials: int | None = None,
    timeout: float | None = None,
    grace_seconds: float | None = None,
    on_progress: Callable[[TuneProgress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    make_experimenter: MakeExperimenter | None = None,
) -> WorkerResult:
    """Run trials of a study until it has enough of them, beside any number of other workers; return how far it has got.

    Args:
        study_dir: Folder with ``study.toml``; the same content on every machine.
        storage: Optuna storage URL; None takes the SQLite file beside the study, for workers of one machine.
        trials: Finished trials of the whole study; None takes what ``tune`` was asked for, else the file's.
        timeout: Seconds after which this worker ends and puts its running trial back; None for no limit.
        grace_seconds: How long it may be silent before others take its trial for abandoned; see `open_storage`.
        on_progress: Called with how far the study has got.
        stop: Asked at every step; True puts the running trial back and ends with a StudyStoppedError.
        make_experimenter: Who trains; None trains the task the file names.

    Raises:
        StudyError: When the study, an argument or the storage is wrong, or it asks another question than it began with.
        StudyFailedError: When O0 does not train, trials keep failing, or the database stays away.
    """
    began = time.monotonic()
    file, directory = read_study(study_dir), study_folder(study_dir)
    if file.study.ranks > 1:
        raise StudyError(
            f"`study.ranks` is {file.study.ranks}, and a worker trains alone; run such a study with `workbench tune`"
        )
    check_limits(trials=trials, timeout=timeout, grace_seconds=grace_seconds)
    url = storage or kept.default_storage(directory)
    deadline = None if timeout is None else began + timeout
    with kept.quiet_optuna(), kept.beside_others(directory) if storage is None else contextlib.nullcontext():
        expert = experimenter_for(file, directory, make_experimenter)
        experimenter = StoppableExperimenter(expert, Limits(stop, deadline))
        file.allowed_drops(expert.metric_name)  # a study that cannot run is not begun
        database = kept.open_storage(url, role="worker", grace_seconds=grace_seconds)
        study = kept.open_study(database, file, expert)
        file = kept.on_its_network(file, study)
        if "usual_seeds" not in study.user_attrs:
            keep_question(study, file)
        n_trials = trials or int(study.user_attrs.get("n_trials", file.study.n_trials))
        # Out of time: O0 waits for the next worker.
        with StatusKeeper(study_dir, study, file, storage) as status, contextlib.suppress(OutOfTimeError):
            watch = StudyWatch(study, file, n_trials, None, on_progress, deadline, status.refresh)
            where = (file, directory, database, study, experimenter)
            search = Search(*where, n_trials=n_trials, deadline=deadline, watch=watch, stop=stop)
            search.run_baseline()
            search.run()
        return WorkerResult(
            name=file.study.name,
            finished_here=search.finished_here,
            finished=sum(trial.state in FINISHED for trial in counted_among(study.get_trials(deepcopy=False))),
            n_trials=n_trials,
            complete=not search.is_wanted(),
            storage=kept.shown_url(url),
            seconds=time.monotonic() - began,
        )


def check_limits(
    *,
    trials: int | None,
    timeout: float | None,
    grace_seconds: float | None = None,
    confirm_seeds: int | None = None,
    jobs: int | None = None,
) -> None:
    """Refuse limits of a command that nothing could keep to."""
    if confirm_seeds is not None and not confirm_seeds >= 2:
        raise StudyError(f"--confirm-seeds must be at least 2, since one pair has no spread, got {confirm_seeds}")
    for option, number in (("--trials", trials), ("--jobs", jobs)):
        if number is not None and not number >= 1:
            raise StudyError(f"{option} must be at least 1, got {number}")
    for option, seconds in (("--timeout", timeout), ("--grace", grace_seconds)):
        if seconds is not None and not seconds > 0.0:
            raise StudyError(f"{option} must be greater than 0 seconds, got {seconds}")
