"""Where a study is kept, and how it survives whatever happens to the process.

By default a SQLite file beside the study. While ``tune`` runs it holds an exclusive lock on ``study.db.lock``, which
the system releases however the process ends; whoever holds it next knows that every trial still marked RUNNING was
interrupted, and puts it back into the queue under its own number, with what it had already drawn and measured. So
after ``kill -9`` no trial stays RUNNING and no number is lost. Trials of other machines on a shared database cannot be
judged that way; their heartbeats are, by Optuna's own rule.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import shutil
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
import psutil
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from workbench.atomic_file import DiskFullError
from workbench.tuning.errors import StudyBusyError, StudyChangedError, StudyError, StudyFailedError
from workbench.tuning.experimenter import Experimenter
from workbench.tuning.objective import plain
from workbench.tuning.study_file import StudyFile

__all__ = [
    "STORAGE_ERRORS",
    "archive_study",
    "beating",
    "changed_values",
    "default_storage",
    "find_study",
    "holding_study",
    "mark_process",
    "open_storage",
    "open_study",
    "plain_storage_errors",
    "put_back",
    "requeue_interrupted",
]

STORAGE_ERRORS = (optuna.exceptions.StorageInternalError, SQLAlchemyError)
"""What Optuna and the database driver raise when the database cannot be used."""

_HEARTBEAT_SECONDS = 30
_GRACE_SECONDS = 180
_WAIT_FOR_WORKERS_SECONDS = 5.0


def default_storage(directory: Path) -> str:
    """Return the URL of the SQLite file beside the study."""
    return f"sqlite:///{(directory / 'study.db').resolve()}"


def open_storage(url: str) -> RDBStorage:
    """Open a database.

    Args:
        url: SQLAlchemy URL as Optuna takes it.

    Raises:
        StudyError: When it cannot be opened.
    """
    # SQLite waits for another writer instead of failing; five seconds, its default, is short on a busy disk.
    engine = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return RDBStorage(
                url,
                engine_kwargs=engine,
                heartbeat_interval=_HEARTBEAT_SECONDS,
                grace_period=_GRACE_SECONDS,
                heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(),
            )
    except ImportError as error:
        raise StudyError(
            f"the storage {_without_password(url)} needs a driver that is not installed ({error}); "
            'for PostgreSQL: pip install "boost-workbench[cluster]"'
        ) from None
    except Exception as error:  # SQLAlchemy raises one class per driver and mistake
        reason = str(error).splitlines()[0]
        raise StudyError(f"the storage {_without_password(url)} cannot be opened: {reason}") from None


def _without_password(url: str) -> str:
    """Return a storage URL without its password."""
    try:
        return repr(make_url(url).render_as_string(hide_password=True))
    except SQLAlchemyError:
        return "given"  # what is no URL is not repeated: it may hold a password all the same


def open_study(storage: RDBStorage, file: StudyFile, experimenter: Experimenter) -> optuna.Study:
    """Open or create the Optuna study and see that it still asks the same question.

    Args:
        storage: Opened database.
        file: The study as it stands now.
        experimenter: Who trains; knows the metric and the data.

    Returns:
        The study, with O0 enqueued as its first trial.

    Raises:
        StudyChangedError: When ``study.toml`` or the data changed since the study began.
    """
    directions = [StudyDirection.MINIMIZE]
    if file.study.objective == "pareto":
        metric = StudyDirection.MAXIMIZE if experimenter.higher_is_better else StudyDirection.MINIMIZE
        directions = [metric, StudyDirection.MINIMIZE]
    # A new study is completed before it gets its name's attributes, in an order that a kill may cut anywhere: the
    # file last, so that a study without it is one that never began.
    known = {summary.study_name for summary in optuna.get_all_study_summaries(storage, include_best_trial=False)}
    if file.study.name in known:
        study = optuna.load_study(study_name=file.study.name, storage=storage)
        stored = study.user_attrs.get("study_file")
        if stored is not None:
            _refuse_changes(stored, file.canonical())
            _refuse_other_data(study.user_attrs.get("data_hash", ""), experimenter.data_hash)
    else:
        study = optuna.create_study(study_name=file.study.name, storage=storage, directions=directions)
    alive = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.RUNNING, TrialState.WAITING))
    if not any(trial.user_attrs.get("baseline") for trial in alive):
        levels = next((one.choices for one in file.dimensions if one.path == "level"), ())
        study.enqueue_trial({"level": "O0"} if "O0" in levels else {}, user_attrs={"baseline": True})
    if "study_file" not in study.user_attrs:
        study.set_user_attr("data_hash", experimenter.data_hash)
        study.set_user_attr("metric_name", experimenter.metric_name)
        study.set_user_attr("higher_is_better", experimenter.higher_is_better)
        study.set_user_attr("environment", plain(experimenter.environment()))
        study.set_user_attr("study_file", file.canonical())
    return study


def find_study(storage: RDBStorage, name: str) -> optuna.Study:
    """Load a study that exists.

    Raises:
        StudyError: When the database has no study of that name.
    """
    try:
        return optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        raise StudyError(f"the study {name!r} has not been started; run `workbench tune` first") from None


def changed_values(stored: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return path -> (stored value, value now) of everything that differs; a missing value is None."""
    before, after = _leaves(stored), _leaves(now)
    paths = [*before, *(path for path in after if path not in before)]
    return {path: (before.get(path), after.get(path)) for path in paths if before.get(path) != after.get(path)}


@contextlib.contextmanager
def holding_study(directory: Path) -> Iterator[None]:
    """Hold the study against other ``tune`` commands on this machine.

    Raises:
        StudyBusyError: When another process holds it.
    """
    path = directory / "study.db.lock"
    with path.open("a+", encoding="utf-8") as handle:
        try:
            import fcntl
        except ImportError:  # no such lock outside Unix; heartbeats and process numbers remain
            yield
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            owner = handle.read().strip() or "another process"
            raise StudyBusyError(
                f"{directory}: this study is being tuned by {owner}; `workbench status {directory}` shows how far it is"
            ) from None
        handle.truncate(0)
        handle.write(f"process {os.getpid()}")
        handle.flush()
        yield


def mark_process(trial: optuna.Trial) -> None:
    """Record which process runs a trial."""
    trial.set_user_attr("process", _this_process())


def requeue_interrupted(storage: RDBStorage, study: optuna.Study) -> list[int]:
    """Put trials whose process is gone back into the queue; call it while holding the study.

    A worker whose ``tune`` was killed notices within a second or two and ends, so trials of living processes are given
    a moment; trials of other machines are left to their heartbeats. This process has begun none yet: a trial under its
    own name is from an earlier ``tune`` in it that could not put the trial back, for want of disk space, say.

    Args:
        storage: The study's database.
        study: The study.

    Returns:
        Numbers of the trials that will be run again.
    """
    study_id = storage.get_study_id_from_name(study.study_name)
    deadline = time.monotonic() + _WAIT_FOR_WORKERS_SECONDS
    requeued: list[int] = []
    while True:
        alive = False
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            process = trial.user_attrs.get("process")
            if process is not None and process["host"] != socket.gethostname():
                continue
            if process is not None and process["pid"] != os.getpid() and _is_alive(process):
                alive = True
                continue
            trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
            storage.set_trial_state_values(trial_id, TrialState.WAITING)
            requeued.append(trial.number)
        if not alive or time.monotonic() > deadline:
            return requeued
        time.sleep(0.2)


def put_back(storage: RDBStorage, study: optuna.Study, number: int) -> None:
    """Put one running trial back into the queue, for a process that is about to end."""
    study_id = storage.get_study_id_from_name(study.study_name)
    trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, number)
    if storage.get_trial(trial_id).state == TrialState.RUNNING:
        storage.set_trial_state_values(trial_id, TrialState.WAITING)


@contextlib.contextmanager
def beating(storage: RDBStorage, study: optuna.Study, number: int) -> Iterator[None]:
    """Send heartbeats for a trial while it runs, as ``Study.optimize`` would."""
    study_id = storage.get_study_id_from_name(study.study_name)
    trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, number)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(_HEARTBEAT_SECONDS):
            with contextlib.suppress(Exception):  # a database that is away for a moment ends no training
                storage.record_heartbeat(trial_id)

    storage.record_heartbeat(trial_id)
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def plain_storage_errors() -> Iterator[None]:
    """Turn what a database driver raises while the study runs into one sentence.

    Raises:
        DiskFullError: When the disk is full; everything finished before is kept.
        StudyFailedError: When the database cannot be used for another reason.
    """
    try:
        yield
    except STORAGE_ERRORS as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        if "disk is full" in reason:
            raise DiskFullError(
                errno.ENOSPC, "the disk is full, so the study cannot go on; make room and run the same command again"
            ) from None
        raise StudyFailedError(f"the study's database cannot be used: {reason}") from None


def archive_study(directory: Path) -> Path | None:
    """Move what a study has produced into ``archive/<time>``.

    Args:
        directory: Folder of the study.

    Returns:
        The archive folder; None when there was nothing to move.
    """
    names = ["study.db", "study.db-journal", "study.db-wal", "study.db-shm", "result", "runs"]
    present = [directory / name for name in names if (directory / name).exists()]
    if not present:
        return None
    stamp = datetime.datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
    folders = (directory / "archive" / name for name in (stamp, *(f"{stamp}.{n}" for n in range(2, 1000))))
    target = next(folder for folder in folders if not folder.exists())
    target.mkdir(parents=True)
    for path in present:
        shutil.move(path, target / path.name)
    return target


def _refuse_changes(stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changes = changed_values(stored, json.loads(json.dumps(plain(now))))
    if not changes:
        return
    told = "; ".join(f"`{path}` was {_shown(before)}, is {_shown(after)}" for path, (before, after) in changes.items())
    hint = ""
    if set(changes) <= {"study.n_trials", "study.timeout_seconds"}:
        hint = ", or undo it and extend the study with --trials or --timeout"
    raise StudyChangedError(
        f"study.toml changed since the study began ({told}); start over with --fresh, which archives the old one{hint}"
    )


def _refuse_other_data(stored: str, now: str) -> None:
    if stored and now and stored != now:
        raise StudyChangedError(
            f"the task's data changed since the study began (hash {stored[:12]}, now {now[:12]}); start over with "
            "--fresh, which archives the old one"
        )


def _shown(value: Any) -> str:
    return "not there" if value is None else json.dumps(value)


def _leaves(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            leaves.update(_leaves(value, f"{prefix}{key}."))
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": psutil.Process().create_time()}


def _is_alive(process: Mapping[str, Any]) -> bool:
    """Return whether a recorded process still runs; its start time tells it from a later one of the same number."""
    try:
        found = psutil.Process(int(process["pid"]))
        same = abs(found.create_time() - float(process["started"])) < 1.0
        return bool(same and found.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
