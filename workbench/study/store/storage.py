"""Where a study is kept, and how it survives whatever happens to the process.

By default a SQLite file beside the study, or any database that Optuna takes, for several machines. While ``tune`` runs
it holds an exclusive lock on ``study.db.lock``, which the system releases however the process ends. A running trial
whose process is gone goes back into the queue under its own number, with what it had drawn and measured
(``liveness.py``): after ``kill -9`` no trial stays RUNNING. A database that is away is waited for (``patience.py``).
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import logging
import os
import random
import re
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import TrialState
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from workbench.config import NetworkFacts
from workbench.core.arguments import seconds_from
from workbench.core.credentials import hide_passwords
from workbench.core.files import DiskFullError, free_path
from workbench.study.ask.study_file import StudyFile, asked
from workbench.study.ask.study_text import flat
from workbench.study.errors import StudyBusyError, StudyChangedError, StudyError, StudyFailedError
from workbench.study.run.job import plain
from workbench.study.run.patience import STORAGE_ERRORS, Patience, damaged, is_damage, reason_of
from workbench.study.run.runner import TaskExpert
from workbench.study.store.study_storage import StudyStorage
from workbench.study.store.trial_ids import storage_of

# Attribute of a study for each of the baseline's runs, with the seed's index behind it: several processes add to them.
BASELINE_RUN = "baseline_run:"

_BESIDE_STUDY = "study.db"
_WORKERS = "study.db.workers"  # locked by each worker on that file, and against them by who archives it
_NETWORK = "network_facts"
_GRACE_SECONDS = 180.0
_PATIENCE_SECONDS = 300.0
_TIMES_TO_MAKE_TABLES = 8
_NEW_BASELINE = (
    "continue under a new baseline with --new-baseline, which trains the best set-ups so far again first, or start "
    "over with --fresh; both archive the old one"
)
_MADE_MEANWHILE = re.compile("already exists|duplicate key|UNIQUE constraint")


def default_storage(directory: Path) -> str:
    """Return the URL of the SQLite file beside the study."""
    # Not by hand: a folder may have a character in its name that means something in a URL, or in Optuna's templates.
    return URL.create("sqlite", database=str((directory / _BESIDE_STUDY).resolve())).render_as_string()


def open_storage(url: str, *, role: str = "driver", grace_seconds: float | None = None) -> StudyStorage:
    """Open a database, by its SQLAlchemy URL as Optuna takes it; a StudyError when that cannot be done.

    ``role`` is ``"worker"`` for a process that only runs trials; it waits for a database that does not answer yet, for
    ``WORKBENCH_PATIENCE_SECONDS``, or 300. ``grace_seconds``, how long this process may be silent before others take
    its trial for abandoned, is by default ``WORKBENCH_GRACE_SECONDS``, or 180.
    """
    try:
        grace = seconds_from("WORKBENCH_GRACE_SECONDS", _GRACE_SECONDS) if grace_seconds is None else grace_seconds
        patience = Patience(seconds_from("WORKBENCH_PATIENCE_SECONDS", _PATIENCE_SECONDS))
    except ValueError as error:
        raise StudyError(str(error)) from None

    def open_once() -> StudyStorage:
        options = _engine_options(url)
        storage = StudyStorage(url, patience=patience, role=role, grace_seconds=grace, engine_kwargs=options)
        _refuse_damaged(storage)
        return storage

    try:
        for further_times in reversed(range(_TIMES_TO_MAKE_TABLES)):
            try:
                return patience.call(open_once) if role == "worker" else open_once()
            except (optuna.exceptions.StorageInternalError, DBAPIError) as error:
                # Of several processes that come to an empty database at once, one makes each table.
                if not (further_times and _MADE_MEANWHILE.search(str(error.__cause__ or error))):
                    raise
                time.sleep(random.uniform(0.05, 0.5))
        raise AssertionError("the loop above returns or raises")
    except ImportError as error:
        raise StudyError(
            f"the storage {shown_url(url)!r} needs a driver that is not installed ({error}); "
            'for PostgreSQL: pip install "boost-workbench[cluster]"'
        ) from None
    except StudyFailedError:
        raise
    except Exception as error:  # SQLAlchemy raises one class per driver and mistake
        if isinstance(error, (SQLAlchemyError, ValueError)) and not isinstance(error, DBAPIError):
            # The text of a mistyped URL may repeat its password.
            raise StudyError(
                "the storage given is not a database URL such as postgresql+psycopg://user@host/database"
            ) from None
        if is_damage(error):
            raise damaged(reason_of(error)) from None
        raise StudyError(f"the storage {shown_url(url)!r} cannot be opened: {reason_of(error)}") from None


def _refuse_damaged(storage: StudyStorage) -> None:
    """Refuse a SQLite file that is not well-formed, or has rows of a study or a trial that are nowhere in it."""
    if storage.engine.name != "sqlite":
        return
    with storage.engine.connect() as connection:
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        stray = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if found != "ok" or stray is not None:
        raise damaged("its file is not well-formed" if stray is None else f"it has lost what a row of {stray[0]} names")


def _engine_options(url: str) -> dict[str, Any]:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        # SQLite waits for another writer instead of failing; five seconds, its default, is short on a busy disk.
        return {"connect_args": {"timeout": 60}}
    options: dict[str, Any] = {"pool_pre_ping": True}
    if parsed.drivername in {"postgresql+psycopg", "postgresql+psycopg2", "postgresql"}:
        # A server whose machine was switched off closes no connection (libpq, "Parameter Key Words").
        options["connect_args"] = {"connect_timeout": 10, "keepalives_idle": 30, "tcp_user_timeout": 30_000}
    return options


def shown_url(url: str) -> str:
    """Return a storage URL without its passwords, for messages; "given" for what is not a URL but may hold one."""
    try:
        parsed = make_url(url)
    except (SQLAlchemyError, ValueError):
        return "given"
    secret = {key for key in parsed.query if any(word in key.lower() for word in ("pass", "secret", "token", "key"))}
    shown = parsed.update_query_dict(dict.fromkeys(secret, "***")).render_as_string(hide_password=True)
    return hide_passwords(shown.replace("%2A", "*"))


def open_study(storage: StudyStorage, file: StudyFile, experimenter: TaskExpert) -> optuna.Study:
    """Open or create the Optuna study, with O0 enqueued as its first trial; check that it asks the same question."""
    directions = [StudyDirection.MINIMIZE]
    if file.study.objective == "pareto":
        metric = StudyDirection.MAXIMIZE if experimenter.higher_is_better else StudyDirection.MINIMIZE
        directions = [metric, StudyDirection.MINIMIZE]
    # A new study is completed before it gets its name's attributes, in an order that a kill may cut anywhere: the
    # file last, so that a study without it is one that never began, and the code, by which an edit is known, before it.
    name = _stored_name(storage, file.study.name) or file.study.name
    study = optuna.create_study(study_name=name, storage=storage, directions=directions, load_if_exists=True)
    begins = "study_file" not in study.user_attrs
    if not begins:
        _refuse_changes(study.user_attrs["study_file"], file.canonical())
        begins = _begins_anew(study, experimenter)
    alive = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.RUNNING, TrialState.WAITING))
    if not any(trial.user_attrs.get("baseline") for trial in alive):
        levels = next((one.choices for one in file.dimensions if one.path == "level"), ())
        study.enqueue_trial({"level": "O0"} if "O0" in levels else {}, user_attrs={"baseline": True})
    if begins:
        runs = [name for name, run in study.user_attrs.items() if name.startswith(BASELINE_RUN) and run is not None]
        network = experimenter.network_facts()
        attributes = {
            **dict.fromkeys(runs),  # of a task that has been edited since
            "data_hash": experimenter.data_hash,
            "metric_name": experimenter.metric_name,
            "higher_is_better": experimenter.higher_is_better,
            _NETWORK: None if network is None else network.to_dict(),
            "environment": plain(experimenter.environment()),
            "study_file": file.canonical(),
        }
        for key, value in attributes.items():
            study.set_user_attr(key, value)
    return study


def _begins_anew(study: optuna.Study, experimenter: TaskExpert) -> bool:
    """Return whether the task was edited before O0 had finished; refuse an edit that comes too late, and other data."""
    stored = study.user_attrs
    before, now = stored.get("data_hash", ""), experimenter.data_hash
    if before and now and before != now:
        raise StudyChangedError(
            f"the task's data changed since the study began ({_other_data(before, now)}); put them back, "
            f"{_NEW_BASELINE}"
        )
    known, found = (one.get("sources", {}) for one in (stored.get("environment", {}), experimenter.environment()))
    edited = {name for name in known if name in found and not set(known[name].split()) & set(found[name].split())}
    is_turned = stored["higher_is_better"] != experimenter.higher_is_better
    if is_turned:
        edited.add("which way its metric is better")
    is_fixed = is_turned and len(study.directions) > 1  # Optuna takes directions of objectives for good
    if edited and (is_fixed or study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))):
        raise StudyChangedError(
            f"the task has changed since the study began ({', '.join(sorted(edited))}), and its trials are not "
            f"comparable with new ones; put it back, {_NEW_BASELINE}"
        )
    return bool(edited)


def _other_data(before: str, now: str) -> str:
    kinds = [one.partition(" sha256:")[0] for one in (before, now)]
    if kinds[0] == kinds[1] != before:  # of data without their own version: "first 8 batches sha256:..."
        return f"the {kinds[0]} are not what they were"
    return f"they were {before[:40]!r} and are {now[:40]!r}"


def find_study(storage: StudyStorage, name: str) -> optuna.Study:
    """Load a study that exists."""
    stored = _stored_name(storage, name)
    if stored is None:
        raise StudyError(f"the study {name!r} has not been started; run `workbench tune` first")
    return optuna.load_study(study_name=stored, storage=storage)


def close_connections(study: optuna.Study) -> None:
    """Close a study's connections to its database; the next request opens one again."""
    if isinstance(storage := storage_of(study), StudyStorage):
        storage.engine.dispose()


def _stored_name(storage: StudyStorage, name: str) -> str | None:
    """Return a study's stored name, None when it was not started; beside its file it may be an earlier one."""
    studies = storage.get_all_studies()
    if any(study.study_name == name for study in studies):
        return name
    beside = storage.engine.name == "sqlite" and Path(storage.engine.url.database or "").name == _BESIDE_STUDY
    begun = [study.study_name for study in studies if "study_file" in study.user_attrs]
    return begun[0] if beside and len(begun) == len(studies) == 1 else None


def on_its_network(file: StudyFile, study: optuna.Study) -> StudyFile:
    """Return a study's file with what was known of its network when it began: all processes resolve plans alike.

    A study that began without knowing (before 0.7) goes on without, or other plans would be equal from now on.
    """
    stored = study.user_attrs.get(_NETWORK)
    return file.on_network(None if stored is None else NetworkFacts.from_dict(stored))


def _refuse_changes(stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    before, after = flat(asked(stored)), flat(plain(now))
    changes = {key: (before.get(key), after.get(key)) for key in before | after if before.get(key) != after.get(key)}
    if changes:
        shown = "; ".join(f"`{path}` was {_shown(old)}, is {_shown(new)}" for path, (old, new) in changes.items())
        raise StudyChangedError(
            f"study.toml changed since the study began ({shown}); start over with --fresh, which archives the old one"
        )


def _shown(value: Any) -> str:
    return "not there" if value is None else json.dumps(value)


@contextlib.contextmanager
def holding_study(directory: Path) -> Iterator[None]:
    """Hold the study against other ``tune`` commands on this machine; a StudyBusyError when another one holds it."""
    with (directory / "study.db.lock").open("a+", encoding="utf-8") as handle:
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
            owner = "this program already (another panel or cell)" if owner == f"process {os.getpid()}" else owner
            raise StudyBusyError(
                f"{directory}: this study is being tuned by {owner}; `workbench status {directory}` shows its progress"
            ) from None
        handle.truncate(0)
        handle.write(f"process {os.getpid()}")
        handle.flush()
        yield


@contextlib.contextmanager
def beside_others(directory: Path) -> Iterator[None]:
    """Keep the files of a study where they are for the block, for a worker on the database beside it."""
    with (directory / _WORKERS).open("a", encoding="utf-8") as handle:
        with contextlib.suppress(ImportError, OSError):  # without file locks nothing prevents archiving
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def _without_others(directory: Path) -> Iterator[None]:
    with (directory / _WORKERS).open("a", encoding="utf-8") as handle:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StudyBusyError(
                    f"{directory}: a `workbench worker` is running trials of this study, which cannot be archived "
                    "under it; stop it first, or wait until it has ended"
                ) from None
        yield


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna's own words from the user: its log lines, its notes on experimental parts, and its storage errors.

    What a database driver raises in the block becomes one sentence; a full disk is a DiskFullError.
    """
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    except STORAGE_ERRORS as error:
        reason = reason_of(error)
        if "disk is full" in reason:
            raise DiskFullError(
                errno.ENOSPC, "the disk is full, so the study cannot continue; make room and run the same command again"
            ) from None
        raise StudyFailedError(f"the study's database cannot be used: {reason}") from None
    finally:
        optuna.logging.set_verbosity(before)


def archive_idle_study(directory: Path) -> Path | None:
    """Archive a study before another question takes its file's place; a StudyBusyError where it is being tuned."""
    if not directory.exists():
        return None
    with holding_study(directory):
        return archive_study(directory)


def archive_study(directory: Path) -> Path | None:
    """Move what a study has produced into ``archive/<time>``; return that folder, None when there was nothing."""
    names = ("study.db", "study.db-journal", "study.db-wal", "study.db-shm", "status.json", "result", "runs")
    present = [directory / name for name in names if (directory / name).exists()]
    if not present:
        return None
    target = free_path(directory / "archive" / datetime.datetime.now().strftime("%Y-%m-%dT%H-%M-%S"))
    with _without_others(directory):
        target.mkdir(parents=True)
        for path in present:
            shutil.move(path, target / path.name)
    if (directory / "study.toml").exists():  # so that it is a complete study: to be looked at, or begun with
        shutil.copy(directory / "study.toml", target)
    return target
