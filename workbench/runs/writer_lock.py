"""Record who is writing a run, in a way that a killed writer does not block for ever.

The lock file names the host, the process and when that began, because process numbers are reused. A process on
another host cannot be asked, so its lock counts until the run has been silent: for a day where the run would be
removed, for ten minutes where somebody asks to continue it, since that host may be gone for good.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from pathlib import Path

import psutil

from workbench.core.process_identity import is_running, start_ticks

LOCK_NAME = "writer.lock"
QUIET_SECONDS = 600.0
"""An unfinished run that changed this recently counts as being written even without a lock."""
FOREIGN_QUIET_SECONDS = 86_400.0


def acquire(folder: Path) -> bool:
    """Take the lock of a run; return False when a process holds it that may be living."""
    if _held(folder, time.time(), QUIET_SECONDS):
        return False
    (folder / LOCK_NAME).unlink(missing_ok=True)  # left by a killed writer
    owner = {
        "host": platform.node(),
        "pid": os.getpid(),
        "began": psutil.Process().create_time(),
        "ticks": start_ticks(os.getpid()),
    }
    try:
        with (folder / LOCK_NAME).open("x", encoding="utf-8") as file:
            json.dump(owner, file)
    except FileExistsError:  # somebody else resumed the same run in this very moment
        return False
    return True


def release(folder: Path) -> None:
    """Release the lock of a run; nothing happens if it is gone."""
    with contextlib.suppress(OSError):
        (folder / LOCK_NAME).unlink()


def being_written(folder: Path, *, finished: bool, now: float | None = None) -> bool:
    """Return whether somebody is writing this run, or did so shortly before ``now`` and has not finished it."""
    now = time.time() if now is None else now
    return _held(folder, now, FOREIGN_QUIET_SECONDS) or (not finished and now - last_change(folder) < QUIET_SECONDS)


def last_change(folder: Path) -> float:
    """Return when anything in a run directory last changed, in seconds since the epoch."""
    changes = [folder.stat().st_mtime]
    for entry in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            changes.append(entry.lstat().st_mtime)
    return max(changes)


def owner(folder: Path) -> str:
    """Return who holds the lock of a run, as far as that can be read, for a message."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        held = json.loads((folder / LOCK_NAME).read_text(encoding="utf-8"))
        return f"{held['pid']} on {held['host']}"
    return "its number is unknown"


def _held(folder: Path, now: float, foreign_quiet: float) -> bool:
    try:
        owner = json.loads((folder / LOCK_NAME).read_text(encoding="utf-8"))
        host, pid, began = str(owner["host"]), int(owner["pid"]), float(owner["began"])
        ticks = None if owner.get("ticks") is None else float(owner["ticks"])
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        # Half a lock: its writer was stopped, or is at it right now. The quiet time decides.
        return now - last_change(folder) < QUIET_SECONDS
    if host != platform.node():
        return now - last_change(folder) < foreign_quiet
    return is_running(pid, ticks=ticks, began=began)
