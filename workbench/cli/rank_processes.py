"""Run a command as several ranks of this machine, as torchrun would, and end as rank 0 ends.

Instead of torchrun because of the end: an exit code that says what happened (2 for wrong input, 130 for Ctrl-C), and
one sentence instead of a table of processes. Ctrl-C reaches rank 0 alone, which decides for all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import FrameType

import typer

from workbench.cli.command_start import for_ranks
from workbench.cli.failures import FAILED
from workbench.core.signals import handling_signals

__all__ = ["run_as_ranks"]

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 30.0  # for the others to find out who failed and to say so


def run_as_ranks(n_ranks: int, arguments: Sequence[str]) -> int:
    """Run ``workbench`` with these arguments in several processes that train together.

    Args:
        n_ranks: Processes, at least 2.
        arguments: What stands after ``workbench``.

    Returns:
        Rank 0's exit code; 1 when it was killed.
    """
    from workbench.core.distributed import serve_store

    # Served here, so that it outlives every rank: who is left reads there who has died. Kept by its name until the end.
    store, meeting = serve_store()
    processes = [_start(rank, n_ranks, arguments, meeting) for rank in range(n_ranks)]
    with _passing_signals_on(processes):
        _wait(processes)
    del store
    codes = [process.returncode for process in processes]
    if all(code < 0 for code in codes):  # nobody was left to say it
        killed = signal.Signals(-codes[0]).name
        typer.echo(f"workbench: all {n_ranks} ranks were ended from outside (rank 0 by {killed})", err=True)
    return codes[0] if codes[0] >= 0 else FAILED


def _start(rank: int, n_ranks: int, arguments: Sequence[str], meeting: dict[str, str]) -> subprocess.Popen[bytes]:
    told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_ranks), **meeting}
    environment = {**os.environ, **told, **for_ranks()}
    # Each rank's torch would take all cores.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // n_ranks)))
    # A session of its own: the terminal's Ctrl-C comes here, not to every rank.
    return subprocess.Popen([sys.executable, "-m", "workbench", *arguments], env=environment, start_new_session=True)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for all; when one fails the others get some time, then SIGTERM, then SIGKILL."""
    failed_at = None
    sent: list[int] = []
    while any(process.poll() is None for process in processes):
        if failed_at is None and any(process.poll() for process in processes):
            failed_at = time.monotonic()
        waited = 0.0 if failed_at is None else time.monotonic() - failed_at
        for number, after in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, 2 * _GRACE_SECONDS)):
            if waited > after and number not in sent:
                sent.append(number)
                _send(processes, number)
        time.sleep(_POLL_SECONDS)


def _passing_signals_on(processes: Sequence[subprocess.Popen[bytes]]) -> AbstractContextManager[None]:
    """Pass Ctrl-C to rank 0, and SIGTERM and a closed terminal to all."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            _send(processes[:1], number)
        else:
            _send(processes, signal.SIGTERM)

    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has no SIGHUP
    return handling_signals({signal.Signals[name]: pass_on for name in names})


def _send(processes: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)
