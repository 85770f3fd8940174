"""Search for a set-up from each framework's own example, and train by it there: how well, and how fast.

python studies/everyones_loop/run.py find [transformers lightning accelerate] [--minutes 4]
python studies/everyones_loop/run.py compare [transformers lightning accelerate] [--seeds 6]
python studies/everyones_loop/run.py tuner [--seeds 6]          # Lightning's own tuner on its example

A set-up for another processor has a folder of its own: `find lightning --folder without_bfloat16`, `tuner` likewise.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

import workbench
from workbench.integrations.lightning import from_lightning
from workbench.integrations.transformers import task_from_trainer
from workbench.tasks.in_memory import task_in_memory

HERE = Path(__file__).parent
FRAMEWORKS = ("transformers", "lightning", "accelerate")
DROP = {"transformers": 0.02, "lightning": 0.01, "accelerate": 0.01}  # of the accuracy, allowed in the search


def example(framework: str, which: str) -> Any:
    """Return the program of before or after as a module."""
    spec = importlib.util.spec_from_file_location(f"{framework}_{which}", HERE / f"with_{framework}" / f"{which}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def task_of(framework: str) -> workbench.Task:
    """Return the task that the framework's example is."""
    before = example(framework, "before")
    if framework == "transformers":
        return task_from_trainer(before.make_trainer(0), name=framework)
    if framework == "lightning":
        return from_lightning(
            before.LitDigits, before.Digits(), metric="val_acc", max_epochs=before.EPOCHS, name=framework
        )
    loader, held_out = before.loaders()
    return task_in_memory(
        before.make_model,
        loader,
        held_out,
        optimizer=lambda named: before.make_optimizer([parameter for _, parameter in named]),
        loss=nn.CrossEntropyLoss(),
        epochs=before.EPOCHS,
        name=framework,
    )


def length_of(task: workbench.Task) -> int:
    """Return the batches that the example is trained for."""
    if task.steps is not None:
        return task.steps
    loader = task.train(0) if callable(task.train) else task.train
    return round((task.epochs or 1) * len(loader))


def find(framework: str, minutes: float, folder_name: str) -> None:
    """Search from the example as it stands, and keep what is exported, beside the example or in a folder there."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        result = workbench.tune(task_of(framework), minutes=minutes, allowed_drop=DROP[framework])
        print(result)
        export = next(Path(folder).rglob("boost_config.o1.json"))
        into = HERE / f"with_{framework}" / folder_name
        into.mkdir(exist_ok=True)
        shutil.copy(export, into / "boost_config.o1.json")
        answer = dict(result.exports["o1"]) | {"minutes": minutes, "versions": versions()}
    keep(f"{framework}_found{folder_name and '_'}{folder_name}.json", answer)


def compare(framework: str, seeds: range) -> None:
    """Train before and after in turn, and by `workbench.train`, which the set-up's promise was measured with."""
    before, after, task = example(framework, "before"), example(framework, "after"), task_of(framework)
    config = workbench.BoostConfig.from_json(HERE / f"with_{framework}" / "boost_config.o1.json")
    steps = length_of(task)
    rows = []
    for seed in seeds:
        row: dict[str, float] = {"seed": seed}
        for name, module in [("before", before), ("after", after)][:: 1 if seed % 2 == 0 else -1]:
            row[f"{name}_seconds"], row[f"{name}_accuracy"] = module.train(seed)
        row["workbench_accuracy"] = float(workbench.train(task, config, steps=steps, seed=seed, out=None).metric)
        print(framework, row, flush=True)
        rows.append(row)
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    keep(
        f"{framework}_compared.json",
        {
            "rows": rows,
            "ratio": interval(np.log(columns["before_seconds"] / columns["after_seconds"]), np.exp),
            "after_less_workbench": interval(columns["after_accuracy"] - columns["workbench_accuracy"]),
            "after_less_before": interval(columns["after_accuracy"] - columns["before_accuracy"]),
            "means": {name: float(values.mean()) for name, values in columns.items() if name != "seed"},
            "versions": versions(),
        },
    )


def compare_tuner(seeds: range, folder_name: str) -> None:
    """Train Lightning's example as it stands, after Lightning's own tuner, and with our set-up, in turn."""
    before, after, tuner = (example("lightning", which) for which in ("before", "after", "tuner"))
    after.HERE /= folder_name
    rows = []
    for seed in seeds:
        row: dict[str, float] = {"seed": seed}
        for name, batch_size in (("rate", False), ("rate_and_batch", True)):
            chosen, row[f"{name}_seconds"], row[f"{name}_accuracy"] = tuner.train(seed, batch_size=batch_size)
            row |= {f"{name}_{key}": float(value) for key, value in chosen.items()}
        for name, module in (("before", before), ("after", after)):
            row[f"{name}_seconds"], row[f"{name}_accuracy"] = module.train(seed)
        print(row, flush=True)
        rows.append(row)
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    arms = {
        arm: {
            "ratio": interval(np.log(columns["before_seconds"] / columns[f"{arm}_seconds"]), np.exp),
            "less_before": interval(columns[f"{arm}_accuracy"] - columns["before_accuracy"]),
        }
        for arm in ("rate", "rate_and_batch", "after")
    }
    keep("lightning_tuner.json", {"arms": arms, "rows": rows, "versions": versions()})
    print(json.dumps(arms, indent=1))


def interval(values: np.ndarray, back: Any = float) -> dict[str, float]:
    """Return the mean and its 95 % t-interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return {name: float(back(values.mean() + of * half)) for name, of in (("low", -1), ("mean", 0), ("high", 1))}


def versions() -> dict[str, str]:
    """Return the versions of what trained."""
    return {name: importlib.metadata.version(name) for name in ("torch", *FRAMEWORKS)}


def keep(name: str, value: Any) -> None:
    """Write a part of the result."""
    (HERE / "result").mkdir(exist_ok=True)
    text = json.dumps(_without_nan(value), indent=1, default=str, allow_nan=False)
    (HERE / "result" / name).write_text(f"{text}\n", encoding="utf-8")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and value != value else value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["find", "compare", "tuner"])
    parser.add_argument("frameworks", nargs="*", default=FRAMEWORKS)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--folder", default="", help="of the set-up, beside the example")
    parser.add_argument("--first", type=int, default=0, help="first seed of a comparison")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(given.first, given.first + given.seeds)
    if given.what == "tuner":
        compare_tuner(seeds, given.folder)
        sys.exit()
    for framework in given.frameworks:
        find(framework, given.minutes, given.folder) if given.what == "find" else compare(framework, seeds)
