"""Run a written script as its user would: in a process of its own, where some packages may not be there."""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PROGRAM = """\
import json, sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refusing())
import runpy, torch
torch.set_num_threads(1)
script = runpy.run_path({path!r})
model, metric = script["train_model"](**{options!r})
total = sum(float(value.double().abs().sum()) for value in model.state_dict().values())
print("\\n" + json.dumps({{"metric": metric, "weights": total}}))
"""

# A process that has imported torch, what it is told and nothing of ours, and runs each program in a fork of itself.
_SERVER = """\
import importlib, json, os, sys, traceback, warnings
import torch
torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first one imports half of torch
for name in sys.argv[1:]:
    importlib.import_module(name)
for line in sys.stdin:
    job = json.loads(line)
    if not (child := os.fork()):
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(job[name], os.O_CREAT | os.O_WRONLY), number)
        os.chdir(job["folder"])
        code = 1
        try:
            if job["strict"]:
                warnings.simplefilter("error", UserWarning)
            exec(job["program"], {"__name__": "__main__"})
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.cache
def _server(environment: tuple[tuple[str, str], ...], imported: tuple[str, ...]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _SERVER, *imported]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environment), cwd="/"
    )
    atexit.register(server.communicate)  # the end of its input is its own
    return server


def _run_in_a_fork(
    program: str, path: Path, environment: Mapping[str, str], imported: Sequence[str], *, strict: bool
) -> tuple[int, str, str]:
    server = _server(tuple(sorted(environment.items())), tuple(imported))
    assert server.stdin is not None
    assert server.stdout is not None
    written = {name: str(path.with_suffix(f".{name}")) for name in ("stdout", "stderr")}
    job = written | {"folder": str(path.parent), "program": program, "strict": strict}
    server.stdin.write(json.dumps(job) + "\n")
    server.stdin.flush()
    code = int(server.stdout.readline())
    return code, *(Path(name).read_text(encoding="utf-8") for name in written.values())


def run_here(path: Path, **options: Any) -> dict[str, Any]:
    """Call a script's `train_model` in this process; return its metric and the sum of its weights."""
    model, metric = runpy.run_path(str(path))["train_model"](**options)
    total = sum(float(value.double().abs().sum()) for value in model.state_dict().values())
    return {"metric": metric, "weights": total}


def run_script(
    path: Path,
    *,
    without: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    strict: bool = True,
    python: str = sys.executable,
    imported: Sequence[str] = (),
) -> dict[str, Any]:
    """Call a script's `train_model` where some packages are not there; return its metric and the sum of its weights.

    ``strict`` makes a warning an error, which is too much to ask of other people's trainers; ``python`` is another
    environment's interpreter, which sees nothing of this repository. What is ``imported`` once for all scripts, those
    that need it need not load for seconds.
    """
    program = _PROGRAM.format(refused=set(without), path=str(path), options=dict(options or {}))
    elsewhere = python != sys.executable
    environment = {name: value for name, value in os.environ.items() if not (elsewhere and name.startswith("PYTHON"))}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    if elsewhere:
        ended = subprocess.run(
            [python, *(["-W", "error::UserWarning"] if strict else []), "-c", program],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=path.parent,
            env=environment,
            check=False,
        )
        code, out, complaints = ended.returncode, ended.stdout, ended.stderr
    else:
        environment.pop("PYTEST_CURRENT_TEST", None)
        code, out, complaints = _run_in_a_fork(program, path, environment, imported, strict=strict)
    assert code == 0, complaints[-3000:]
    return dict(json.loads(out.splitlines()[-1]))
