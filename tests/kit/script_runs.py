"""Run a written script as its user would: in a process of its own, where some packages may not be there."""

from __future__ import annotations

import json
import os
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


def run_script(
    path: Path, *, without: Sequence[str] = (), options: Mapping[str, Any] | None = None, strict: bool = True
) -> dict[str, Any]:
    """Call a script's `train_model` where some packages are not there; return its metric and the sum of its weights.

    ``strict`` makes a warning an error, which is too much to ask of other people's trainers.
    """
    program = _PROGRAM.format(refused=set(without), path=str(path), options=dict(options or {}))
    ended = subprocess.run(
        [sys.executable, *(["-W", "error::UserWarning"] if strict else []), "-c", program],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=path.parent,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return dict(json.loads(ended.stdout.splitlines()[-1]))
