"""What LessBN, O1 and the fastest exports cost in accuracy: ``digits-resnet`` beside O0, paired over fresh seeds.

Every seed gives weights, data order and split, the same for all sides. Prints, per side, the mean drop of accuracy and
its 95 % interval in points, and writes every run to a CSV file. Processes share the seeds.

    python studies/bench/accuracy.py --seeds 120 --processes 2 --out studies/bench/result/accuracy.csv
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch

from workbench.config import BoostConfig
from workbench.core.paired_bounds import paired_drop_bounds, paired_drops, smallest_gap
from workbench.tasks import load_task
from workbench.training.run import RunRequest, run_task

TASK = "digits-resnet"
FIRST_SEED = 50_000  # far from those of studies: they search from their `seed` and confirm from 1000 above it
EXPORTED_BY = ("boost_levels", "freeze_p")  # those that `workbench bench levels` found fastest, one thread and two


def sides(steps: int) -> Mapping[str, tuple[BoostConfig, str]]:
    """Return what is compared, O0 first: name -> configuration and level."""
    plain = BoostConfig.from_dict({"amp": {"level": "O0"}}).with_values({"grad_freeze.total_steps": steps})
    less_bn = plain.with_values({"boost.mode": "manual", "boost.less_bn": True, "boost.grad_freeze": False})
    return {
        "O0": (plain, "O0"),
        "LessBN": (less_bn, "O1"),
        "O1": (plain, "O1"),
        **{f"export of {study}": (BoostConfig.from_json(_exported(study)), "O2") for study in EXPORTED_BY},
    }


def _exported(study: str) -> Path:
    return Path(__file__).parents[1] / study / "result" / "boost_config.o2.json"


def accuracies(seed: int, *, steps: int) -> list[dict[str, object]]:
    """Train every side with one seed, on one thread."""
    torch.set_num_threads(1)
    task, rows = load_task(TASK), []
    for name, (config, level) in sides(steps).items():
        result = run_task(task, RunRequest(config, level, seed, steps), device=torch.device("cpu"))
        rows.append({"side": name, "in_effect": result.plan.summary(), "seed": seed, "accuracy": result.metric})
    return rows


def main() -> None:
    """Train, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=120)
    parser.add_argument("--steps", type=int, default=126, help="three passes, as in studies/boost_levels")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
    with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
        rows = [row for some in pool.map(partial(accuracies, steps=asked.steps), seeds) for row in some]
    table = pd.DataFrame(rows)
    if asked.out is not None:
        table.to_csv(asked.out, index=False)
    by_side = {name: table.loc[table["side"] == name].sort_values("seed")["accuracy"].tolist() for name in sides(1)}
    seen = table["accuracy"].tolist()
    for name, values in by_side.items():
        pairs = list(zip(by_side["O0"], values, strict=True))
        drops = paired_drops(pairs, higher_is_better=True)
        drop = paired_drop_bounds(drops, error=0.025, resolution=smallest_gap(seen))  # of each bound: 95 % for both
        print(f"{name}: accuracy {sum(values) / len(values):.4f}, drop {1e2 * drop.mean:.2f} points, ", end="")
        print(f"95 % interval {1e2 * drop.lower:.2f} to {1e2 * drop.upper:.2f}, {drop.n_pairs} pairs")


if __name__ == "__main__":
    main()
