"""Ranks of a benchmark: processes of this machine, joined by gloo, one thread each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from workbench.core import distributed as ranks

__all__ = ["answer_of_ranks"]

_PATIENCE_SECONDS = 540.0


def answer_of_ranks(module: str, function: str, n_ranks: int, arguments: Sequence[str]) -> Any:
    """Start ranks, wait for them, and return what rank 0 printed.

    Args:
        module: Name of a module.
        function: Name of a function in it that every rank calls; it joins the others with ``ranks.joined`` and finds
            the arguments in ``sys.argv``. On rank 0 it prints one JSON value.
        n_ranks: How many there are.
        arguments: What the function is to find on the command line.

    Raises:
        RuntimeError: When a rank fails or does not end.
    """
    store, meeting = ranks.serve_store()
    processes = []
    try:
        for rank in range(n_ranks):
            told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_ranks), "OMP_NUM_THREADS": "1"}
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", f"import {module} as program; program.{function}()", *arguments],
                    env={**os.environ, **told, **meeting},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        outputs = [process.communicate(timeout=_PATIENCE_SECONDS) for process in processes]
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"the {n_ranks} ranks did not end within {_PATIENCE_SECONDS:g} s") from error
    finally:
        for process in processes:
            process.kill()
            process.wait()
    del store
    for rank, (process, (_, told_last)) in enumerate(zip(processes, outputs, strict=True)):
        if process.returncode:
            raise RuntimeError(f"rank {rank} failed: {' '.join(told_last.split())[-500:]}")
    return json.loads(outputs[0][0])
