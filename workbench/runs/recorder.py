"""Write a run directory while the run goes on.

A run lives in ``<root>/<run id>/``:

* ``config.json``, ``environment.json`` -- written first, never changed;
* ``steps.jsonl``, ``events.jsonl`` -- append-only, one line per record, one write per block, while it runs;
* ``steps.parquet``, ``events.parquet``, ``summary.json`` -- what ``finish`` turns the lines into;
* ``writer.lock`` -- who is writing, as long as anyone is.

At every moment the lines or the Parquet file are complete: a reader takes the lines when they are there and the Parquet
file otherwise. A killed run has lines and no summary; at most its last block is missing, and it can be reopened.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.core.checksums import crc_of_file, sealed
from workbench.core.files import DISK_FULL_CODES, write_bytes_atomically, write_text_atomically
from workbench.core.records import Event, StepRecord
from workbench.runs import tables, writer_lock
from workbench.runs.errors import RunError, TelemetryError
from workbench.runs.json_lines import encode_events, encode_steps, intact_size, read_rows
from workbench.runs.overview import is_finished, is_run
from workbench.runs.schema import COLUMNS, NAMED_LIKE, SCHEMA_VERSION, is_method_column

_TABLES = (tables.STEPS, tables.EVENTS)
_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


def new_run_id() -> str:
    """Return a run id that sorts by time (UTC, to the microsecond) and that no other process comes up with."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{secrets.token_hex(4)}"


class RunRecorder:
    """Write one run: blocks of steps and events while it goes on, Parquet and a summary at its end.

    Made by ``create`` or ``reopen``. It is an ``EventSink``: ``emit`` may be called from any thread, and the events go
    to the disk with the next ``write``. As a context manager it closes the run on the way out, which keeps everything
    but does not finish it: without ``finish`` it counts as killed. ``path`` is the run directory.
    """

    def __init__(self, path: Path, n_steps: int = 0, overflow_steps: int = 0, columns: Set[str] = frozenset()) -> None:
        self.path = path
        self.n_steps = n_steps  # on the disk
        self._overflow_steps, self._columns = overflow_steps, set(columns)  # columns: those of methods
        self._state = "open"
        self._pending: list[Event] = []
        self._lock = threading.RLock()

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str],
        config: Mapping[str, Any],
        environment: Mapping[str, Any],
        run_id: str | None = None,
    ) -> RunRecorder:
        """Start a new run directory below ``root``.

        Args:
            root: Folder that holds runs; made when it is missing.
            config: The full configuration, as plain values.
            environment: Where and with what the run is made, see ``collect_environment``; the schema version, the
                run's id and the time it started are added.
            run_id: Name of the folder; None for one that sorts by time.

        Raises:
            ValueError: When ``run_id`` is not a plain folder name.
            TypeError: When ``config`` or ``environment`` holds something that JSON cannot.
            TelemetryError: When the run exists already, or the folder cannot be written.
        """
        if run_id is not None and not _RUN_ID.fullmatch(run_id):
            raise ValueError(
                f"`run_id` must be 1 to 200 letters, digits, dots, dashes or underscores, without a leading dot or "
                f"dash, got {run_id!r}"
            )
        path = Path(root) / (run_id or new_run_id())
        started = {"schema_version": SCHEMA_VERSION, "run": path.name, "started": datetime.now(UTC).isoformat()}
        texts = {
            "config.json": _json_text(config, "config"),
            "environment.json": _json_text({**environment, **started}, "environment"),
        }
        with _telemetry_errors(f"start the run {path}"):
            try:
                path.mkdir(parents=True)
            except FileExistsError as error:
                raise TelemetryError(f"{path} exists already; choose another `run_id` or reopen that run") from error
            writer_lock.acquire(path)
            for name, text in texts.items():
                write_text_atomically(path / name, text)
            for table in _TABLES:
                (path / f"{table.name}.jsonl").touch()
        return cls(path)

    @classmethod
    def reopen(cls, path: str | os.PathLike[str], *, next_step: int | None = None) -> RunRecorder:
        """Continue a killed run; what a kill tore off the end of its files is dropped.

        Args:
            path: The run directory.
            next_step: Step the resumed training continues with, when that is a checkpoint earlier than the last
                recorded step: records from there on are dropped, they will come again. None keeps all.

        Raises:
            RunError: When the folder is not a run, is finished already, or its files are damaged.
            TelemetryError: When another process is writing the run, or the folder cannot be written.
        """
        path = Path(path)
        if not is_run(path):
            raise RunError(f"{path} is not a run directory: it has no environment.json")
        if is_finished(path):
            raise RunError(f"{path} is finished; start a new run instead of continuing it")
        with _telemetry_errors(f"continue the run {path}"):
            if not writer_lock.acquire(path):
                who, lock = writer_lock.owner(path), path / writer_lock.LOCK_NAME
                raise TelemetryError(
                    f"{path} is being written by another process ({who}); stop that one first, or remove {lock} if it "
                    "has ended"
                )
            try:
                _repair(path / "events.jsonl", next_step)
                rows = _repair(path / "steps.jsonl", next_step)
                overflow_steps = sum(bool(row.get("overflow", False)) for row in rows)
                columns = set[str]().union(*rows) - COLUMNS.keys()
                if strange := sorted(name for name in columns if not is_method_column(name)):
                    raise RunError(f"{path}: unknown column `{strange[0]}`; the file was damaged after it was written")
            except BaseException:
                writer_lock.release(path)
                raise
        return cls(path, len(rows), overflow_steps, columns)

    @property
    def run_id(self) -> str:
        """Name of the run directory."""
        return self.path.name

    def emit(self, event: Event) -> None:
        """Take one event, which goes to the disk with the next block; a TelemetryError when the run is closed."""
        with self._lock:
            self._require_open()
            self._pending.append(event)

    def write(self, records: Iterable[StepRecord], events: Iterable[Event] = ()) -> None:
        """Append one block of steps, in order, the events emitted since the last block, and those given.

        Raises:
            ValueError: When a method's column has no namespace, as in ``time.forward``.
            TelemetryError: When the block cannot be written, for example because the disk is full. Nothing of it is on
                the disk then, and the same call may be made again; emitted events are kept for it.
        """
        records = list(records)
        columns = set().union(*(record.columns for record in records if record.columns))
        for name in columns - self._columns:
            if not is_method_column(name):
                raise ValueError(f"a method's column must be {NAMED_LIKE}, got {name!r}")
        with self._lock:
            self._require_open()
            blocks = {
                self.path / "steps.jsonl": encode_steps(records),
                self.path / "events.jsonl": encode_events([*self._pending, *events]),
            }
            with _telemetry_errors(f"record to {self.path}", "everything before this block is intact"):
                _append_all({path: block for path, block in blocks.items() if block})
            self._pending = []
            self._columns |= columns
            self.n_steps += len(records)
            self._overflow_steps += sum(1 for record in records if record.overflow)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Turn the lines into Parquet, write the summary and close the run; a crash at any point leaves a whole run.

        Args:
            summary: Results, as plain values; ``metric`` is what ``list_runs`` shows. Counts, the time of the end and
                checksums of the files are added as ``recorded``, and a checksum of all that.

        Raises:
            TypeError: When ``summary`` holds something that JSON cannot.
            TelemetryError: When the run is closed or a file cannot be written; the lines stay, call again.
        """
        with self._lock:
            self._require_open()
            counts = {"steps": self.n_steps, "overflow_steps": self._overflow_steps}
            recorded: dict[str, Any] = {**counts, "finished": datetime.now(UTC).isoformat()}
            plain = json.loads(_json_text(summary, "summary"))
            self.write(())
            with _telemetry_errors(f"finish the run {self.path}", "everything recorded is intact"):
                for table in _TABLES:
                    tables.compact(self.path, table, self._columns)
                files = ["config.json", "environment.json", *(f"{table.name}.parquet" for table in _TABLES)]
                recorded["files"] = {name: crc_of_file(self.path / name) for name in files}
                whole = sealed({**plain, "recorded": recorded})
                write_text_atomically(self.path / "summary.json", json.dumps(whole, indent=2) + "\n")
                for table in _TABLES:
                    (self.path / f"{table.name}.jsonl").unlink()
            self._state = "finished"
            writer_lock.release(self.path)

    def close(self) -> None:
        """Write the events still waiting, or raise TelemetryError, and stop writing; the run can be reopened."""
        with self._lock:
            if self._state != "open":
                return
            try:
                self.write(())
            finally:
                self._state = "closed"
                writer_lock.release(self.path)

    def __enter__(self) -> RunRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RunRecorder {self.run_id}: {self._state}, {self.n_steps:,} steps>"

    def _require_open(self) -> None:
        if self._state != "open":
            raise TelemetryError(f"the run {self.path} is {self._state}; nothing more can be recorded in it")


def _append_all(blocks: Mapping[Path, bytes]) -> None:
    """Append to several files, or to none of them: on an error each is cut back to its old length."""
    sizes = {path: path.stat().st_size for path in blocks}
    try:
        for path, block in blocks.items():
            _append(path, block)
    except BaseException:
        for path, size in sizes.items():
            os.truncate(path, size)  # shortening needs no space, so it works on a full disk as well
        raise


def _append(path: Path, block: bytes) -> None:
    # Opened for every block: a block comes about once a second, and a run then holds no file open, so it survives
    # a fork, needs no clean-up and can be moved. Without O_CREAT, because a run somebody deleted must not come back
    # as a lone file.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        rest = memoryview(block)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def _repair(path: Path, next_step: int | None) -> list[dict[str, Any]]:
    """Cut off a torn tail and the records from ``next_step`` on; return every row that stays."""
    if not path.exists():
        path.touch()
    content = path.read_bytes()
    intact = intact_size(content)
    rows = [row for chunk in read_rows(path) for row in chunk]
    for number, row in enumerate(rows, start=1):
        if type(row.get("step", 0)) is not int:
            raise RunError(f"{path}: `step` must be a whole number, got {row['step']!r:.60} in line {number}")
    stays = [next_step is None or row.get("step", 0) < next_step for row in rows]
    if all(stays):
        if intact < len(content):
            os.truncate(path, intact)
    else:
        lines = content[:intact].split(b"\n")[:-1]
        write_bytes_atomically(path, b"".join(line + b"\n" for line, kept in zip(lines, stays, strict=True) if kept))
    return [row for row, kept in zip(rows, stays, strict=True) if kept]


def _json_text(values: Mapping[str, Any], name: str) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if (item := getattr(value, "item", None)) is not None:  # a NumPy number
            return item()
        raise TypeError(f"`{name}` must hold plain values (numbers, text, lists, dictionaries), got {value!r}")

    return json.dumps(dict(values), indent=2, default=plain) + "\n"


@contextlib.contextmanager
def _telemetry_errors(attempt: str, consolation: str = "") -> Iterator[None]:
    """Raise a TelemetryError that tells what the file system refused, and what is intact all the same."""
    try:
        yield
    except OSError as error:
        reason = str(error.strerror or error)
        if error.errno in DISK_FULL_CODES:
            reason = "no space left on the disk (free some and try again)"
        raise TelemetryError(f"cannot {attempt}: {reason}{consolation and f'; {consolation}'}") from error
