"""Run a command as several ranks of this machine, as torchrun would, and exit as rank 0 does.

Used instead of torchrun because of how it ends: with an exit code for what happened (2 for wrong input, 130 for
Ctrl-C) and one sentence, not a table of processes. Ctrl-C reaches only rank 0, which decides for all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

import typer

from workbench.cli.command_start import for_ranks
from workbench.cli.failures import FAILED
from workbench.cli.interrupts import ENDING
from workbench.core.processor import usable_cores
from workbench.core.signals import handling_signals

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 30.0  # for the others to find out who failed and to say so


def run_as_ranks(n_ranks: int, arguments: Sequence[str]) -> int:
    """Run ``workbench`` in processes that train together; return rank 0's exit code, 1 when it was killed."""
    from workbench.core.distributed import serve_store

    # Served here, so that it outlives every rank: who is left reads there who has died. Kept by its name until the end.
    store, meeting = serve_store()
    # Each rank's torch would take all cores.
    environment = {"OMP_NUM_THREADS": str(max(1, usable_cores() // n_ranks)), **os.environ, **meeting}
    environment |= {"WORLD_SIZE": str(n_ranks), **for_ranks()}
    command = [sys.executable, "-m", "workbench", *arguments]
    # A separate session: the terminal's Ctrl-C comes here, not to every rank.
    processes = [
        subprocess.Popen(
            command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, start_new_session=True
        )
        for rank in range(n_ranks)
    ]

    def pass_on(number: int, frame: FrameType | None) -> None:
        """Pass Ctrl-C to rank 0, and SIGTERM and a closed terminal to all."""
        if number == signal.SIGINT:
            _send(processes[:1], number)
        else:
            _send(processes, signal.SIGTERM)

    with handling_signals(dict.fromkeys((signal.SIGINT, *ENDING), pass_on)):
        _wait(processes)
    del store
    codes = [process.returncode for process in processes]
    if all(code < 0 for code in codes):  # no rank was left to say it
        killed = signal.Signals(-codes[0]).name
        typer.echo(f"workbench: all {n_ranks} ranks were ended from outside (rank 0 by {killed})", err=True)
    return codes[0] if codes[0] >= 0 else FAILED


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for all; if one fails the others get some time, then SIGTERM, then SIGKILL."""
    failed_at = None
    later = [(signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, 2 * _GRACE_SECONDS)]
    while any(process.poll() is None for process in processes):
        if failed_at is None and any(process.poll() for process in processes):
            failed_at = time.monotonic()
        if failed_at is not None and later and time.monotonic() - failed_at > later[0][1]:
            _send(processes, later.pop(0)[0])
        time.sleep(_POLL_SECONDS)


def _send(processes: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)
