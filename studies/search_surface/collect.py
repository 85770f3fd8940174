"""Train random plans of `digits-resnet`, one run each, and the task as given now and then; write `result/runs.csv`.

python -m studies.search_surface.collect [--minutes 26] [--seed 0]
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.samplers import RandomSampler

from studies.search_surface.surface import COLUMNS, FOLDER
from workbench.config import ConfigError
from workbench.study import read_study
from workbench.study.ask.search_space import all_off, suggest
from workbench.study.run.experimenter import TaskExperimenter
from workbench.study.run.job import TrainJob
from workbench.study.set_up.runtime_choice import ground_of

_GIVEN_EVERY = 12  # runs, one of the task as given
_SHORT, _KEPT_SHORT, _KEPT_FREEZING = 0.2, 0.25, 0.4  # of what rarely keeps the quality only some is trained
_CHOSEN = {"runtime_choice": {"values": {"runtime.memory_format": "channels_last"}}}


def runs(minutes: float, seed: int) -> Iterator[dict[str, Any]]:
    """Yield a row of `COLUMNS` for each run."""
    file = read_study(FOLDER / "study")
    experimenter = TaskExperimenter(file.study.task, "cpu", Path(tempfile.mkdtemp()), 1)
    file = file.on_network(experimenter.network_facts())
    base, given, steps = ground_of(file.base_config(), _CHOSEN), all_off(file.base_config()), file.study.budget_steps
    rng, study = np.random.default_rng(seed), optuna.create_study(sampler=RandomSampler(seed))
    ends, number = time.monotonic() + 60.0 * minutes, 0
    while time.monotonic() < ends:
        values: Mapping[str, Any] = {}
        config, level = given, "O0"
        if number % _GIVEN_EVERY:
            trial = study.ask()
            try:
                drawn = suggest(trial, file.dimensions, base, file.plans)
            except ConfigError:
                continue
            values, config, level = trial.params, drawn.config, drawn.level
            if values["schedule.length"] < _SHORT and rng.random() > _KEPT_SHORT:
                continue
            if values["boost.grad_freeze"] and rng.random() > _KEPT_FREEZING:
                continue
        number += 1
        drawn_seed = int(rng.integers(1_000, 100_000))
        run = experimenter.run(TrainJob(config, level, drawn_seed, steps, steps))
        yield {**_row(values), "metric": run.metric, "seconds": run.seconds, "seed": drawn_seed}


def _row(values: Mapping[str, Any]) -> dict[str, Any]:
    if not values:
        return {"optimizer": "task", "length": 1.0, "batch": 1.0, "less_bn": 0}
    name = values["optimizer.name"]
    return {
        "optimizer": name,
        "length": values["schedule.length"],
        "batch": values["batch.factor"],
        "lr": values[f"optimizer.lr[{name}]"],
        "aux_lr": values.get("optimizer.aux_lr"),
        "warmup": values["schedule.warmup"],
        "smoothing": values["regularization.label_smoothing"],
        "decay": values.get("regularization.decay"),
        "until": values.get("curriculum.until"),
        "less_bn": int(values["boost.less_bn"]),
        "freeze_p": values.get("grad_freeze.freeze_p"),
    }


def main() -> None:
    """Write a row after each run, so that the command may be stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=26.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with (FOLDER / "result" / "runs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in runs(given.minutes, given.seed):
            writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
            file.flush()


if __name__ == "__main__":
    main()
