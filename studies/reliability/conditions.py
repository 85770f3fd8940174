"""What a machine may do to a study while it runs: each tried, and what became of the finished trials.

    python studies/reliability/conditions.py

``workbench.tune`` runs in a process of its own, with real files and a stand-in for training that needs no torch. Every
study meets one condition, is then continued by the same call, and compared with one that nothing happened to. File
systems are mounted for it, which needs root. ``result/conditions.md`` is the table.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna.storages._rdb.models
import psutil
from ledger import Trials, finished
from processes import wait_until
from soak import STUDY, Nothing
from sqlalchemy import Engine, event

from workbench.cli.failures import exit_code_of, sentence_of
from workbench.study import StudyFile, tune
from workbench.study.run.job import UNMONITORED, Job, Monitor

RESULT = Path(__file__).resolve().parent / "result"
N_TRIALS, SOME, TRIAL_SECONDS = 8, 3, 0.3
DAY = 86_400.0
Finished = dict[int, tuple[Any, ...]]


class Slow(Nothing):
    """Takes a while for each job."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        """Wait and answer."""
        time.sleep(TRIAL_SECONDS / 2)
        return super().run(job, monitor)


def make(file: StudyFile, directory: Path) -> Any:
    """Return who trains."""
    return Slow()


def begin(directory: Path, change: Callable[[], object] = lambda: None, jobs: int = 1) -> int:
    """Tune in a process of its own, after something has been changed in it; return its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 0
    with _log(directory).open("a") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        try:
            change()
            tune(directory, make_experimenter=make, jobs=jobs)
        except BaseException as error:
            code = exit_code_of(error) if isinstance(error, Exception) else 130
            print(f"SAID {sentence_of(error)}" if isinstance(error, Exception) else "interrupted", flush=True)
        finally:
            sys.stdout.flush()
            os._exit(code)


def end(pid: int, seconds: float = 120.0) -> int:
    """Wait for a process, kill it after a while, and return its exit code."""
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            deadline = math.inf
        time.sleep(0.05)


def trials_of(directory: Path) -> Finished:
    """Return what has finished."""
    with tempfile.TemporaryDirectory() as copied:  # nothing is held open in the folder
        for path in directory.glob("study.db*"):
            shutil.copy(path, copied)
        trials = Trials(f"sqlite:///{Path(copied) / 'study.db'}")
        try:
            return {number: (one.params, tuple(one.values or ())) for number, one in finished(trials.look()).items()}
        finally:
            trials.close()  # a process that is forked later must not have it


def write(directory: Path) -> Path:
    """Write the study."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "study.toml").write_text(STUDY.format(n_trials=N_TRIALS), encoding="utf-8")
    return directory


def begun(directory: Path) -> int:
    """Begin a study, and return its process once some trials have finished."""
    pid = begin(directory)
    wait_until(lambda: len(trials_of(directory)) >= SOME, every=0.2)
    return pid


def last_words(directory: Path) -> str:
    """Return the sentence with which a process ended."""
    lines = _log(directory).read_text(errors="replace").splitlines()
    said = [line.removeprefix("SAID ") for line in lines if line.startswith("SAID ")]
    return re.sub(r" \(line \d+ of .*?\)", "", said[-1]).replace(str(directory), "FOLDER") if said else "(nothing)"


def _log(directory: Path) -> Path:
    return Path(tempfile.gettempdir()) / f"{directory.as_posix().strip('/').replace('/', '_')}.log"


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """Mount a file system of 16 MiB."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def full_disk(folder: Path) -> tuple[str, Finished, Path]:
    """Fill the disk while trials run, then make room."""
    directory = write(folder / "disk" / "s")
    pid = begun(directory)
    filler = folder / "disk" / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as handle:
        while True:
            handle.write(b"\0" * 4096)
    code, before = end(pid), trials_of(directory)
    filler.unlink()
    return f"exit code {code}: {last_words(directory)}", before, directory


def read_only_disk(folder: Path) -> tuple[str, Finished, Path]:
    """End a command, make the disk read-only, try again, and make it writable again."""
    directory = write(folder / "disk" / "s")
    pid = begun(directory)
    os.kill(pid, signal.SIGKILL)
    end(pid)
    subprocess.run(["mount", "-o", "remount,ro", str(folder / "disk")], check=True)
    code, before = end(begin(directory)), trials_of(directory)
    subprocess.run(["mount", "-o", "remount,rw", str(folder / "disk")], check=True)
    return f"exit code {code}: {last_words(directory)}", before, directory


def no_memory(folder: Path) -> tuple[str, Finished, Path]:
    """Let a command have no more memory than it has now."""
    directory = write(folder / "s")
    pid = begun(directory)
    limit = psutil.Process(pid).memory_info().vms
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
    code, before = end(pid, 20.0), trials_of(directory)
    said = f"exit code {code}: {last_words(directory) if code else 'it needed no more'}"
    hung = "it hangs, killed after 20 s (CPython waits for a thread that ran out of memory before it began)"
    return hung if code == -signal.SIGKILL else said, before, directory


def one_core(folder: Path) -> tuple[str, Finished, Path]:
    """Let a command and its two workers share one core, and kill the command once."""
    directory, core = write(folder / "s"), min(os.sched_getaffinity(0))

    def change() -> None:
        os.sched_setaffinity(0, {core})

    pid = begin(directory, change, jobs=2)
    wait_until(lambda: len(trials_of(directory)) >= SOME, every=0.2)
    os.kill(pid, signal.SIGKILL)
    end(pid)
    before = trials_of(directory)
    while (code := end(begin(directory, change, jobs=2), 600.0)) == 2 and "being tuned" in last_words(directory):
        time.sleep(0.2)  # its workers have not ended yet
    return f"killed and started again with `--jobs 2`: exit code {code}", before, directory


def jumping_clock(folder: Path) -> tuple[str, Finished, Path]:
    """Set the time of day a day forward, back, forward, ... every half second."""
    directory = write(folder / "s")
    now, monotonic = time.time, time.monotonic

    def offset() -> float:
        return DAY * (int(2 * monotonic()) % 3 - 1)

    class Date(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(now() + offset(), tz)

    def change() -> None:
        time.time = lambda: now() + offset()
        optuna.storages._rdb.storage.datetime = Date
        those = SimpleNamespace(datetime=Date, timedelta=datetime.timedelta, UTC=datetime.UTC)
        sys.modules["workbench.study.run.ending"].datetime = those  # type: ignore[attr-defined]

    return f"exit code {end(begin(directory, change))}", trials_of(directory), directory


def slow_folder(folder: Path) -> tuple[str, Finished, Path]:
    """Let every statement, file that is put in place, and wait for the disk take as long as over a slow network."""
    directory = write(folder / "s")
    replace, sync = os.replace, os.fsync

    def change() -> None:
        event.listen(Engine, "before_cursor_execute", lambda *_: time.sleep(0.02))
        event.listen(Engine, "commit", lambda *_: time.sleep(0.1))
        os.replace = lambda *given: (time.sleep(0.2), replace(*given))[1]  # type: ignore[assignment]
        os.fsync = lambda given: (time.sleep(0.2), sync(given))[1]  # type: ignore[assignment]

    return f"exit code {end(begin(directory, change))}", trials_of(directory), directory


def two_commands(folder: Path) -> tuple[str, Finished, Path]:
    """Begin a second command while the first runs."""
    directory = write(folder / "s")
    first = begun(directory)
    second = end(begin(directory))
    said, before = last_words(directory), trials_of(directory)
    return f"the second: exit code {second}: {said}; the first: exit code {end(first)}", before, directory


def moved_folder(folder: Path) -> tuple[str, Finished, Path]:
    """Kill a command, give the folder another name elsewhere, and go on there."""
    directory = write(folder / "s")
    pid = begun(directory)
    os.kill(pid, signal.SIGKILL)
    end(pid)
    before = trials_of(directory)
    elsewhere = folder / "elsewhere" / "renamed"
    elsewhere.parent.mkdir()
    directory.rename(elsewhere)
    return "it goes on in the new place", before, elsewhere


CONDITIONS = {
    "the disk is full": full_disk,
    "the disk is read-only": read_only_disk,
    "no memory is left": no_memory,
    "one core for all processes": one_core,
    "the clock jumps by a day, twice a second": jumping_clock,
    "a folder as slow as over a network (20 ms a statement, 100 ms a commit, 200 ms a file)": slow_folder,
    "two commands at once": two_commands,
    "the folder is moved and renamed after a kill": moved_folder,
}


def main() -> None:
    """Try all of them and write the table."""
    random.seed(0)
    rows = [("what happens", "what the command does", "finished before", "lost", "different after going on")]
    harm = 0
    with tempfile.TemporaryDirectory() as root:
        steady = write(Path(root) / "steady")
        if end(begin(steady)) != 0:
            raise RuntimeError(last_words(steady))
        expected = trials_of(steady)
        for number, (what, act) in enumerate(CONDITIONS.items()):
            folder = Path(root) / str(number)
            folder.mkdir()
            with small_disk(folder / "disk"):
                told, before, directory = act(folder)
                code = end(begin(directory))
                after = trials_of(directory)
                lost = sum(after.get(one) != was for one, was in before.items())
                different = sum(after.get(one) != was for one, was in expected.items()) + len(after) - len(expected)
                harm += lost + different + code
                then = "" if code == 0 else f"; going on: exit code {code}: {last_words(directory)}"
                rows.append((what, told.replace("|", "/") + then, str(len(before)), str(lost), str(different)))
                print(*rows[-1], sep=" | ", flush=True)
    lines = ["| " + " | ".join(row) + " |" for row in [rows[0], ("---",) * len(rows[0]), *rows[1:]]]
    (RESULT / "conditions.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.exit(bool(harm))


if __name__ == "__main__":
    main()
