"""Processes that a test starts, and kills: forked from a fresh one that has imported what they need."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# torch imports torch._dynamo, for two seconds, when the first optimizer is made.
_PRELOADED = ("pytest", "torch._dynamo", "tests.kit.fake_runner", "workbench.training", "tests.cluster.preloaded")


def forkserver() -> ForkServerContext:
    """Return the context ``"forkserver"``, whose processes start in milliseconds; importing torch takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))  # one that is not installed is left out
    return context


def start(target: Callable[..., Any], *arguments: Any, **options: Any) -> BaseProcess:
    """Start a process that is killed later."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("WORKBENCH_")}
    process = forkserver().Process(target=_run, args=(settings, target, arguments, options))
    process.start()
    return process


def start_command(words: Sequence[str], said: Path) -> BaseProcess:
    """Start a command of workbench here, in this folder; it writes to ``said`` with the endings .out and .err."""
    return start(run_command, list(words), str(said), str(Path.cwd()))


def run_command(words: list[str], said: str, folder: str) -> None:
    """Run a command of workbench in this process, which is started for it."""
    os.chdir(folder)
    for number, ending in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{said}.{ending}", os.O_CREAT | os.O_WRONLY), number)
    from workbench.cli import main

    main(words)


def _run(
    settings: dict[str, str], target: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Run in the environment of now; the one that is forked from has that of its own beginning."""
    os.environ.update(settings)
    target(*arguments, **options)


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill(process: BaseProcess) -> None:
    """End a process by SIGKILL."""
    process.kill()
    process.join()


def wait_until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    """Wait until something has happened."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)
