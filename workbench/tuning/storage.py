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
import math
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
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from workbench.atomic_file import DiskFullError
from workbench.records import TrialRecord
from workbench.tuning.errors import StudyBusyError, StudyChangedError, StudyError, StudyFailedError
from workbench.tuning.experimenter import Experimenter
from workbench.tuning.objective import metric_deficit, plain, read_speed, read_trained
from workbench.tuning.study_file import StudyFile

__all__ = [
    "FINISHED",
    "archive_study",
    "beating",
    "changed_values",
    "counted_trials",
    "default_storage",
    "find_study",
    "holding_study",
    "mark_process",
    "open_storage",
    "open_study",
    "plain_storage_errors",
    "put_back",
    "requeue_interrupted",
    "trials_of",
]

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of a trial that has run to an end."""


def counted_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that count towards ``n_trials``: begun or finished, and not the repeat of an equal plan."""
    begun = study.get_trials(deepcopy=False, states=(*FINISHED, TrialState.RUNNING))
    return [trial for trial in begun if "repeats" not in trial.user_attrs]


_HEARTBEAT_SECONDS = 30
_GRACE_SECONDS = 180
_WAIT_FOR_WORKERS_SECONDS = 5.0
_STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


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
        raise StudyError(f"the storage {url!r} needs a driver that is not installed: {error}") from None
    except Exception as error:  # SQLAlchemy raises one class per driver and mistake
        reason = str(error).splitlines()[0]
        raise StudyError(f"the storage {url!r} cannot be opened: {reason}") from None


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
    a moment; trials of other machines are left to their heartbeats.

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
            if process is not None and _is_alive(process):
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
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
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


def trials_of(study: optuna.Study) -> list[TrialRecord]:
    """Rebuild the record of every trial from storage alone.

    Args:
        study: The study.

    Returns:
        Records in the order of trial numbers.
    """
    trials = study.get_trials(deepcopy=False)
    baseline = next(
        (trial for trial in trials if trial.user_attrs.get("baseline") and trial.state == TrialState.COMPLETE), None
    )
    reference = None if baseline is None else read_trained(baseline.user_attrs["trained"]).metric
    higher = bool(study.user_attrs.get("higher_is_better", True))
    return [_record(trial, reference, higher) for trial in trials]


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
    )


def _duration(trial: FrozenTrial) -> float:
    return trial.duration.total_seconds() if trial.duration is not None else math.nan


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
