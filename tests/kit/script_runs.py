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
    path: Path,
    *,
    without: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    strict: bool = True,
    python: str = sys.executable,
) -> dict[str, Any]:
    """Call a script's `train_model` where some packages are not there; return its metric and the sum of its weights.

    ``strict`` makes a warning an error, which is too much to ask of other people's trainers; ``python`` is another
    environment's interpreter, which sees nothing of this repository.
    """
    program = _PROGRAM.format(refused=set(without), path=str(path), options=dict(options or {}))
    elsewhere = python != sys.executable
    environment = {name: value for name, value in os.environ.items() if not (elsewhere and name.startswith("PYTHON"))}
    ended = subprocess.run(
        [python, *(["-W", "error::UserWarning"] if strict else []), "-c", program],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=path.parent,
        env=environment | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return dict(json.loads(ended.stdout.splitlines()[-1]))
