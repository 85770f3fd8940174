"""Commands that are killed: started as a shell does, or forked from a process that has imported what they need.

Both run the same lines with the same arguments; a forked one begins without the seconds that the interpreter takes to
load torch, and so a hundred kills take minutes. How many of each were killed is counted.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import torch

_PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.fx.experimental.proxy_tensor",
    "optuna.storages._rdb.models",
    "alembic.command",
    "optuna.importance",
    "pandas",
    "plotly.graph_objects",
    "plotly.graph_objs",
    "pyarrow.parquet",
    "psutil",
    "rich.live",
    "scipy.stats",
    "sqlalchemy.dialects.sqlite",
    "workbench.cli.progress",
    "workbench.cli.run_commands",
    "workbench.cli.study_commands",
    "workbench.online",
    "workbench.rec",
    "workbench.report",
    "workbench.study.run.experimenter",
    "workbench.study.run.search_and_confirm",
    "workbench.training.compare",
    "workbench.training.run",
    "workbench.training.speed",
)


class Command:
    """A running command.

    Args:
        words: ``["workbench", ...]``, or a Python file and its arguments.
        log: File that takes what it prints.
        real: Whether it is a process as a shell starts it, and not a forked one.
        variables: What it finds in its environment besides this process's.
        folder: Its working directory; by default this process's.
    """

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        *,
        real: bool,
        variables: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.real, self.log, self.began = real, log, time.monotonic()
        self._process: subprocess.Popen[bytes] | BaseProcess
        given, folder = dict(variables or {}), folder or Path.cwd()
        if real:
            program = ["-m", "workbench"] if words[0] == "workbench" else [words[0]]
            with log.open("ab") as said:
                self._process = subprocess.Popen(
                    [sys.executable, *program, *words[1:]],
                    stdout=said, stderr=said, env={**os.environ, **given}, cwd=folder,
                )  # fmt: skip
        else:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(list(_PRELOADED))  # one that is not installed is left out
            self._process = context.Process(target=_run, args=(list(words), str(log), given, str(folder)))
            self._process.start()

    @property
    def pid(self) -> int:
        """Its process number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, negative after a signal; None while it runs."""
        if isinstance(self._process, BaseProcess):
            return self._process.exitcode
        return self._process.poll()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self.wait()

    def wait(self, seconds: float = 600.0) -> int:
        """Wait until it has ended, and return its exit code.

        Raises:
            RuntimeError: When it has not ended in that time.
        """
        end = time.monotonic() + seconds
        while self.code is None:
            if time.monotonic() > end:
                raise RuntimeError(f"it did not end within {seconds:g} s: {self.said()}")
            time.sleep(0.02)
        return int(self.code)

    def said(self) -> str:
        """Return the last that it, or one before it with the same log, has said."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""


def _run(words: list[str], log: str, variables: dict[str, str], folder: str) -> None:
    """Become a command, in a process that was forked for it."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.environ.update(variables)
    os.chdir(folder)
    if "OMP_NUM_THREADS" in variables:  # read when torch is loaded, which it is by now
        torch.set_num_threads(int(variables["OMP_NUM_THREADS"]))
    sys.argv = list(words)
    if words[0] == "workbench":
        runpy.run_module("workbench", run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def workers_of(pid: int) -> list[psutil.Process]:
    """Return the processes that a command with ``--jobs`` has started to run trials."""
    try:
        return [one for one in psutil.Process(pid).children() if any("spawn_main" in word for word in one.cmdline())]
    except psutil.Error:
        return []


def wait_until(condition: Callable[[], bool], seconds: float = 240.0, every: float = 0.05) -> bool:
    """Wait until something has happened; return whether it has."""
    end = time.monotonic() + seconds
    while not (happened := condition()) and time.monotonic() < end:
        time.sleep(every)
    return happened
