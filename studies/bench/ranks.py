"""Ranks of a benchmark: processes of this machine, joined by gloo, one thread each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from workbench.core import distributed

_SECONDS = 540.0


def answer_of_ranks(module: str, n_ranks: int, *arguments: object) -> Any:
    """Start ranks that call ``run_rank`` of a module, wait for them, and return what rank 0 printed.

    ``run_rank`` joins the others with ``distributed.joined``, finds the arguments in ``sys.argv``, and prints one JSON
    value on rank 0.

    Raises:
        RuntimeError: When a rank fails or does not end.
    """
    command = [sys.executable, "-c", f"import {module} as program; program.run_rank()", *map(str, arguments)]
    store, meeting = distributed.serve_store()
    processes = []
    try:
        for rank in range(n_ranks):
            told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n_ranks), "OMP_NUM_THREADS": "1"}
            env = {**os.environ, **told, **meeting}
            pipe = subprocess.PIPE
            processes.append(subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True))
        outputs = [process.communicate(timeout=_SECONDS) for process in processes]
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"the {n_ranks} ranks did not end within {_SECONDS:g} s") from error
    finally:
        for process in processes:
            process.kill()
            process.wait()
    del store
    for rank, (process, (_, said)) in enumerate(zip(processes, outputs, strict=True)):
        if process.returncode:
            raise RuntimeError(f"rank {rank} failed: {' '.join(said.split())[-500:]}")
    return json.loads(outputs[0][0])
