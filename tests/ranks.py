"""Processes of a distributed test: ranks that wait for work, and how a rank leaves."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch

from tests.kit.processes import forkserver

__all__ = ["Ranks", "leave_together"]

_TIMEOUT_SECONDS = 120


def leave_together() -> NoReturn:
    """Wait for the other ranks and end this process successfully, without taking the process group down.

    At a normal exit gloo's threads end in no particular order, and now and then a process aborts ("terminate called
    without an active exception") after everything has passed. The system closes what is open.
    """
    torch.distributed.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Ranks:
    """Processes joined by gloo that run functions together; started once, as their start takes seconds.

    Args:
        n_ranks: How many.
        folder: Where they meet.
    """

    def __init__(self, n_ranks: int, folder: Path) -> None:
        context = forkserver()
        pipes = [context.Pipe() for _ in range(n_ranks)]
        self._ends = [own for own, _ in pipes]
        self._processes = [
            context.Process(target=_serve, args=(rank, n_ranks, str(folder / "meeting"), other), daemon=True)
            for rank, (_, other) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call a function of a module on every rank and return what each gave.

        Raises:
            AssertionError: With the traceback of the first rank that failed.
        """
        for end in self._ends:
            end.send((function, args))
        answers = []
        for rank, end in enumerate(self._ends):
            assert end.poll(_TIMEOUT_SECONDS), f"rank {rank} gave no answer"
            answers.append(end.recv())
        failures = [f"rank {rank}:\n{text}" for rank, (failed, text) in enumerate(answers) if failed]
        assert not failures, "\n".join(failures)
        return [value for _, value in answers]

    def close(self) -> None:
        """End the processes."""
        for end in self._ends:
            end.send(None)
        for process in self._processes:
            process.join(_TIMEOUT_SECONDS)


def _serve(rank: int, n_ranks: int, meeting: str, end: Connection) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=n_ranks)
    while (work := end.recv()) is not None:
        function, args = work
        try:
            end.send((False, function(*args)))
        except BaseException:
            end.send((True, traceback.format_exc()))
    leave_together()
