"""Draw random set-ups of three tasks, predict how long whole runs of them take, and train them to see.

python studies/total_time/run.py [--plans 30] [--pairs 3] [--seed 0] [--out studies/total_time/result]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import optuna
import pandas as pd
import torch
from optuna.samplers import RandomSampler

from workbench.config import ConfigError
from workbench.study import parse_study
from workbench.study.ask.plans import explicit_config
from workbench.study.ask.search_space import all_off, suggest
from workbench.study.ask.task_study import ask
from workbench.study.run.experimenter import TaskExperimenter
from workbench.study.run.job import TrainJob
from workbench.study.set_up.total_time import StepTimes, total_time
from workbench.tasks import load_task
from workbench.training.task_look import look_at

TASKS = ("digits-resnet", "digits-autoencoder", "topics-gpt")
LIMIT = 0.05


def predicted_and_measured(name: str, n_plans: int, n_pairs: int, seed: int, runs: Path) -> pd.DataFrame:
    """Return a row per plan: what was predicted, and what whole runs beside the task's own measured."""
    torch.set_num_threads(1)
    task = load_task(name)
    steps = task.steps or 100
    question = ask(look_at(task, torch.device("cpu"), steps), name, steps=steps, minutes=60, allowed_drop=None)
    experimenter = TaskExperimenter(task, "cpu", runs, threads=1)
    file = parse_study(question.text).on_network(experimenter.network_facts())
    study = optuna.create_study(sampler=RandomSampler(seed))
    times = StepTimes(study, file, experimenter)
    base = file.base_config()
    # The runtime is a stage of its own in a study; here it is drawn with the rest.
    ground = base.with_values({"boost.mode": "manual"})
    draw = np.random.default_rng(seed)
    steps = file.study.budget_steps
    rows: list[dict[str, object]] = []
    while len(rows) < n_plans:
        runtime = {path: values[draw.integers(len(values))] for path, values in file.set_up.runtime.items()}
        drawn = suggest(study.ask(), file.dimensions, ground.with_values(runtime), file.plans)
        plan = file.plans.resolve(drawn.config, drawn.level)
        try:
            predicted = total_time(plan, times.measured(plan), steps)
        except (ConfigError, RuntimeError) as error:
            print(f"{name}: left out, {error}")
            continue
        seconds = []
        for pair in range(n_pairs):
            sides = [(all_off(base), "O0"), (explicit_config(plan), plan.level)]
            order = (0, 1) if pair % 2 == 0 else (1, 0)
            taken = [0.0, 0.0]
            for side in order:
                config, level = sides[side]
                job = TrainJob(config, level, seed=100 + pair, steps=steps, evaluate_every=steps)
                taken[side] = experimenter.run(job).seconds
            seconds.append(taken)
        table = np.array(seconds)
        measured = float(np.exp(np.log(table[:, 1] / table[:, 0]).mean()))
        spread = float(np.log(table[:, 1] / table[:, 0]).std(ddof=1)) if n_pairs > 1 else float("nan")
        rows.append(
            {
                "task": name,
                "predicted": predicted.ratio,
                "measured": measured,
                "error": predicted.ratio / measured - 1.0,
                "error_of_measurement": spread / n_pairs**0.5,
                "plan": plan.key(),
                "drawn": ", ".join(f"{path}={value}" for path, value in {**runtime, **drawn.parameters}.items()),
            }
        )
        print(f"{name} {len(rows)}/{n_plans}: predicted {predicted.ratio:.3f}, measured {measured:.3f}", flush=True)
    return pd.DataFrame(rows)


def main() -> None:
    """Draw, predict, train, compare; the table and its summary go to the folder ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=30)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as runs:
        tables = [
            predicted_and_measured(name, options.plans, options.pairs, options.seed, Path(runs))
            for name in options.tasks
        ]
    table = pd.concat(tables)
    options.out.mkdir(parents=True, exist_ok=True)
    table.round(5).to_csv(options.out / "plans.csv", index=False)
    lines = [
        f"| task | plans | within {LIMIT:.0%} | median error | largest | error of the measurement |",
        "|" + " --- |" * 6,
    ]
    for name, rows in table.groupby("task", sort=False):
        size = rows["error"].abs()
        lines.append(
            f"| {name} | {len(rows)} | {(size <= LIMIT).sum()} | {rows['error'].median():+.1%} | {size.max():.1%} | "
            f"{rows['error_of_measurement'].median():.1%} |"
        )
    page = f"Written by `python studies/total_time/run.py`, torch {torch.__version__}, one thread.\n\n"
    (options.out / "results.md").write_text(page + "\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
