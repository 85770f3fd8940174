"""How soon do the commands answer that one types while waiting, and when does a training take its first step?

Every turn is a process of its own; its processor time is told, which a busy machine hardly stretches, and which is what
the clock shows on an idle one. A training is compared with a script that imports torch, builds the same model and data
and takes the same steps; a panel is made as in a fresh kernel.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from workbench.bench import Benchmark, Finding, Request, interleaved, median_of, ratio_of
from workbench.study import tune

from .study import Effortless, study_text

_TASK = "digits-lenet"
_TRAIN = (
    "import torch\n"
    "from workbench.tasks import load_task\n"
    "from workbench.core.batch import move_batch\n"
    "from itertools import islice\n"
    f"task = load_task({_TASK!r})\n"
    "model = task.model()\n"
    "optimizer = task.optimizer(list(model.named_parameters()))\n"
    "for batch in islice(task.batches(0), {steps}):\n"
    "    task.compute_loss(model, batch).backward()\n"
    "    optimizer.step(); optimizer.zero_grad()\n"
)
# The Train tab waits for all that is loaded while the first tab can be used; Optuna, later still, is for Tune alone.
_PANEL = f"import os; from workbench import Workbench; Workbench({_TASK!r}).panel('Train'); os._exit(0)"


def measure(request: Request, *, trials: int = 201) -> list[Finding]:
    """Measure commands on a study of so many trials, a training's start and a panel's."""
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "study"
        study.mkdir()
        (study / "study.toml").write_text(study_text(12, trials, 100, 0), encoding="utf-8")
        tune(study, make_experimenter=lambda *_: Effortless())
        config = study / "result" / "boost_config.o1.json"
        commands: dict[str, tuple[Sequence[str], float]] = {
            "workbench --help": (("--help",), 0.2),
            "workbench status": (("status", str(study)), 0.5),
            "workbench status --json": (("status", str(study), "--json"), 0.5),
            "workbench validate": (("validate", str(config)), 0.5),
            "workbench runs list": (("runs", "list", folder), 0.5),
        }
        sides = [partial(_seconds, "-m", "workbench", *arguments) for arguments, _ in commands.values()]
        train = ("-m", "workbench", "train", "--task", _TASK, "--steps", "1", "--device", "cpu")
        sides.append(partial(_seconds, *train, "--out", str(Path(folder) / "runs")))
        sides.append(partial(_seconds, "-c", _TRAIN.format(steps=1)))
        sides.append(partial(_seconds, "-c", _PANEL))
        sides.append(partial(_seconds, "-c", "import torch"))
        *looks, trained, script, panel, torch_alone = zip(*interleaved(sides, request.rounds), strict=True)
    note = f"processor time of a fresh process; a study of {trials - 1} trials"
    found = [
        Finding(name, "s", median_of(times), goal, note)
        for (name, (_, goal)), times in zip(commands.items(), looks, strict=True)
    ]
    return [
        *found,
        Finding("workbench train to the end of one step / a script's", "x", ratio_of(trained, script), 1.15, _TASK),
        Finding("workbench train to the end of one step", "s", median_of(trained)),
        Finding("the Workbench panel to its second tab, in a fresh kernel", "s", median_of(panel), 4.0, _TASK),
        Finding("`import torch` alone, on this machine", "s", median_of(torch_alone), note="to compare machines by"),
    ]


def _seconds(*arguments: str) -> float:
    """Run Python with arguments; return its processor time."""
    before = _of_children()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=environment)
    return _of_children() - before


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


BENCHMARK = Benchmark(
    "commands",
    "How soon do commands answer, and when does a training take its first step?",
    measure,
    rounds=3,
    place=1,
    quick=True,
    shown=("workbench", "the Workbench"),
)
