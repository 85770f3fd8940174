"""``status.json``: a study's state beside its database, so that `workbench status` answers without loading Optuna.

Whoever works on the study keeps it, with a checksum, written as a whole or not at all. A reader takes it in two cases:
the process that wrote it is still there, and writes it again soon after anything has happened; or nothing has touched
the database since. In all other cases (another version of this package, an edited study.toml, files added to the
result) the database is read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, RootModel

from workbench.core.checksums import SEAL, is_intact, sealed
from workbench.core.files import replacing
from workbench.core.records import StudyResult, TrialRecord

STATUS_NAME = "status.json"
_BEGIN, _BETWEEN, _END = b'{"kept": ', b',\n"state": ', b"}\n"  # around what are two JSON texts, and together one
_TOGETHER = 100  # trials whose JSON is made at once
_CRC = "crc32 of kept"
_DATABASE = ("study.db", "study.db-wal", "study.db-journal")
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError)  # missing, damaged, or of another form

Stamp = Mapping[str, Any]
"""What a kept state depends on besides the study's trials: it holds for as long as this does not change."""


_NUMBERS = ConfigDict(ser_json_inf_nan="strings")  # JSON has no NaN, so such numbers are words


class _Kept(BaseModel):
    """A study's result as it is stored."""

    model_config = _NUMBERS

    result: StudyResult


class _Trials(RootModel[list[TrialRecord]]):
    """Some of its trials."""

    model_config = _NUMBERS


@dataclass(frozen=True, slots=True)
class KeptStatus:
    """A study's state, read back, and who is at work on the study: a process number, or None when none is."""

    result: StudyResult
    process: int | None
    phase: str  # of the work, as in `TuneProgress`; empty where none is at work
    age_seconds: float


def stamp_of(study: str | os.PathLike[str]) -> Stamp:
    """Return what a study's state depends on: its file, its database, what was exported, the version that reads."""
    path = Path(study)
    folder = path.parent if path.suffix == ".toml" else path
    file = path if path.suffix == ".toml" else folder / "study.toml"
    return {
        "version": _version(),
        "study": str(study),  # commands in its sentences name it so
        "file": zlib.crc32(file.read_bytes()),
        "exported": sorted(one.name for one in (folder / "result").glob("boost_config.*.json")),
        "database": {name: _look(folder / name) for name in _DATABASE},
    }


def write_status(study: str | os.PathLike[str], result: StudyResult, stamp: Stamp, *, phase: str = "") -> None:
    """Keep the state of a study; ``phase``: what this process is at, which will write it again. Empty: it ends.

    Raises:
        OSError: When it cannot be written; what was there stays as it was.
    """
    # Loaded here: a reader needs them only where a process may be at work.
    from workbench.core.process_identity import identity, machine

    process = {"machine": machine(), **identity(os.getpid()), "phase": phase} if phase else None
    checksum = 0
    with replacing(result.directory / STATUS_NAME) as temporary, temporary.open("wb") as file:
        file.write(_BEGIN)
        for part in _json_of(result):
            checksum = zlib.crc32(part, checksum)
            file.write(part)
        state = sealed({**stamp, "process": process, "written": time.time(), _CRC: checksum})
        file.writelines([_BETWEEN, json.dumps(state).encode(), _END])


def _json_of(result: StudyResult) -> Iterator[bytes]:
    """Return the JSON of a result, in parts: that of thousands of trials at once would stay in the process's memory."""
    others = _Kept(result=dataclasses.replace(result, trials=[]))
    yield others.model_dump_json(exclude={"result": {"report", "trials"}}).removesuffix("}}").encode() + b',"trials":['
    for first in range(0, len(result.trials), _TOGETHER):
        some = _Trials(result.trials[first : first + _TOGETHER]).model_dump_json()
        yield (b"," if first else b"") + some[1:-1].encode()
    yield b"]}}"


def read_status(study: str | os.PathLike[str]) -> KeptStatus | None:
    """Return the state that is kept beside a study; None where there is none, or none that still holds."""
    path = Path(study)
    folder = path.parent if path.suffix == ".toml" else path
    try:
        kept, stored = _stored(folder)
        now, process = stamp_of(study), stored["process"]
        changed = {name for name, value in now.items() if stored[name] != value}
        alive = process is not None and _is_alive(process)
        if not changed <= ({"database", "exported"} if alive else set()):
            return None
        result = _Kept.model_validate_json(kept).result
        phase = str(process["phase"]) if alive else ""
        age = max(time.time() - float(stored["written"]), 0.0)
    except _UNREADABLE:
        return None
    report = folder / "result" / "report.html"
    shown = report if report.exists() else None
    result = dataclasses.replace(result, report=shown, left_out=tuple(result.left_out), scripts=tuple(result.scripts))
    return KeptStatus(result, int(process["pid"]) if alive else None, phase, age)


def phase_now(folder: Path) -> str:
    """Return what a process on this machine is doing for the study in a folder; empty where none is at work."""
    try:
        process = _stored(folder)[1]["process"]
        return str(process["phase"]) if process is not None and _is_alive(process) else ""
    except _UNREADABLE:
        return ""


def _stored(folder: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the JSON of what is kept, and of the moment it was written; a ValueError if it is damaged."""
    content = (folder / STATUS_NAME).read_bytes()
    kept, _, state = content.removeprefix(_BEGIN).removesuffix(_END).rpartition(_BETWEEN)
    stored: dict[str, Any] = json.loads(state)
    if not (SEAL in stored and is_intact(stored) and stored[_CRC] == zlib.crc32(kept)):
        raise ValueError(f"{folder / STATUS_NAME} is damaged")
    return kept, stored


def _version() -> str:
    try:
        return metadata.version("boost-workbench")
    except metadata.PackageNotFoundError:  # used without being installed
        return ""


def _look(path: Path) -> list[int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    # An empty log of SQLite, which a reader may leave behind, holds nothing.
    return [status.st_size, status.st_mtime_ns] if status.st_size else None


def _is_alive(process: Mapping[str, Any]) -> bool:
    from workbench.core.process_identity import has_ended, is_here

    return is_here(process) and not has_ended(process)
