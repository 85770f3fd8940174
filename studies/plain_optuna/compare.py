"""Search one space with the staged search and with plain Optuna, and judge on fresh seeds what both hold, and when.

python studies/plain_optuna/compare.py digits-resnet [--minutes 4] [--repetitions 10] [--seeds 30] [--out FOLDER]

Both read the study that `workbench tune TASK --minutes` writes for the task. What the output folder has already is not
made again: the command may be stopped and repeated, or asked for more.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.samplers import TPESampler

from workbench.config import BoostConfig, ConfigError
from workbench.core import devices
from workbench.core.files import write_text_atomically
from workbench.study import StudyFile, TuneProgress, read_study, tune
from workbench.study.ask.plans import explicit_config
from workbench.study.ask.search_space import all_off, suggest
from workbench.study.ask.task_study import ask
from workbench.study.run.experimenter import MakeExperimenter, TaskExperimenter
from workbench.study.run.job import TrainJob
from workbench.study.run.objective import metric_deficit
from workbench.study.run.runner import Experimenter
from workbench.study.set_up.runtime_choice import ground_of
from workbench.tasks import load_task
from workbench.training.task_look import look_at

ASKED: dict[str, tuple[int, float | str]] = {"digits-resnet": (180, 0.005), "topics-gpt": (300, "1 %")}
"""Loader batches of a training today, and the allowed drop."""
OURS, PLAIN = "staged", "plain Optuna"
BASELINE_SEEDS = 3  # of plain Optuna: what a user would afford
FIRST_JUDGED_SEED = 50_000
SHARES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)  # of the budget

Held = list[tuple[float, dict[str, Any] | None]]
"""Which configuration a search held from which second on; None for the task as given."""


def asked(folder: Path, name: str, minutes: float) -> Path:
    """Return the folder of a task's study, written once: the machine's speed is part of the question."""
    path = folder / "study"
    if not path.exists():
        steps, drop = ASKED[name]
        look = look_at(load_task(name), devices.select_device("cpu"), steps)
        path.mkdir(parents=True)
        (path / "study.toml").write_text(ask(look, name, steps=steps, minutes=minutes, allowed_drop=drop).text)
    return path


def staged(
    study: Path,
    seed: int,
    minutes: float,
    folder: Path,
    make_experimenter: MakeExperimenter | None = None,
    began: float | None = None,
) -> tuple[Held, dict[str, Any] | None]:
    """Run the staged search; return what it held when, and what it exported.

    The time counts from ``began``, by ``time.monotonic()``; None is now.
    """
    folder.mkdir()
    (folder / "study.toml").write_text(re.sub(r"(?m)^seed = .*$", f"seed = {seed}", (study / "study.toml").read_text()))
    led: list[tuple[float, int]] = []
    began = time.monotonic() if began is None else began

    def watch(progress: TuneProgress) -> None:
        found = re.match(r"trial (\d+)", progress.best)
        if found and (not led or led[-1][1] != int(found[1])):
            led.append((time.monotonic() - began, int(found[1])))

    result = tune(folder, on_progress=watch, make_experimenter=make_experimenter, began=began)
    configs = {trial.number: dict(trial.config) for trial in result.trials if trial.config}
    taken = result.choices["o1"].candidate
    exported = None if taken is None else dict(taken.config)
    held: Held = [(second, configs[number]) for second, number in led]
    return [*held, (60.0 * minutes, exported)], exported


def plain(
    file: StudyFile, seed: int, minutes: float, experimenter: Experimenter, began: float | None = None
) -> tuple[Held, dict[str, Any] | None]:
    """Run Optuna's TPE on the same space: whole runs, a constraint on the metric, nothing else."""
    began = time.monotonic() if began is None else began
    base, steps, held = ground_of(file.base_config(), {}), file.study.budget_steps, Held()
    given = all_off(file.base_config())
    baseline = [experimenter.run(TrainJob(given, "O0", seed + one, steps, steps)) for one in range(BASELINE_SEEDS)]
    metric = float(np.mean([run.metric for run in baseline]))
    allowed = file.allowed_drops(experimenter.metric_name, metric)["o1"]
    study = optuna.create_study(sampler=TPESampler(seed=seed, multivariate=True, group=True))
    best = float(np.mean([run.seconds for run in baseline]))
    while time.monotonic() - began < 60.0 * minutes:
        trial = study.ask()
        runtime = {path: trial.suggest_categorical(path, values) for path, values in file.set_up.runtime.items()}
        try:
            drawn = suggest(trial, file.dimensions, base.with_values(runtime), file.plans)
        except ConfigError:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        run = experimenter.run(TrainJob(drawn.config, drawn.level, seed + trial.number, steps, steps))
        lost = 1.0
        if not run.diverged:
            lost = metric_deficit(metric, run.metric, higher_is_better=experimenter.higher_is_better)
        trial.set_constraint("drop", lost - allowed)
        study.tell(trial, run.seconds)
        elapsed = time.monotonic() - began
        if lost <= allowed and run.seconds < best and elapsed < 60.0 * minutes:
            best = run.seconds
            held.append((elapsed, explicit_config(file.plans.resolve(drawn.config, drawn.level)).to_dict()))
    return held, held[-1][1] if held else None


def at(held: Held, second: float) -> dict[str, Any] | None:
    """Return what a search held at a time."""
    return next((config for since, config in reversed(held) if since <= second), None)


class Judge:
    """Trains configurations beside the task as given on seeds that no search has seen, and keeps every run."""

    def __init__(self, file: StudyFile, kept: Path, n_seeds: int, runs: Path) -> None:
        self.file, self.kept, self.n_seeds = file, kept, n_seeds
        self.known: dict[str, dict[str, list[float]]] = json.loads(kept.read_text()) if kept.exists() else {}
        self.experimenter = TaskExperimenter(file.study.task, "cpu", runs, file.study.threads)
        self.given = all_off(file.base_config())

    def __call__(self, config: Mapping[str, Any] | None) -> tuple[float, float]:
        """Return total time relative to the task's, and the mean drop; (1, 0) for the task as given."""
        if config is None:
            return 1.0, 0.0
        ratios, drops = [], []
        for seed in range(FIRST_JUDGED_SEED, FIRST_JUDGED_SEED + self.n_seeds):
            seconds, metric = self._run(config, seed)
            given_seconds, given_metric = self._run(self.given.to_dict(), seed)
            ratios.append(np.log(seconds / given_seconds))
            drops.append(metric_deficit(given_metric, metric, higher_is_better=self.experimenter.higher_is_better))
        return float(np.exp(np.mean(ratios))), float(np.mean(drops))

    def allowed(self) -> float:
        """Return the allowed drop in the metric's unit."""
        seeds = range(FIRST_JUDGED_SEED, FIRST_JUDGED_SEED + self.n_seeds)
        metric = float(np.mean([self._run(self.given.to_dict(), seed)[1] for seed in seeds]))
        return self.file.allowed_drops(self.experimenter.metric_name, metric)["o1"]

    def _run(self, config: Mapping[str, Any], seed: int) -> tuple[float, float]:
        key = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
        row = self.known.setdefault(key, {})
        if str(seed) not in row:
            steps, level = self.file.study.budget_steps, "O0" if config == self.given.to_dict() else "O1"
            run = self.experimenter.run(TrainJob(BoostConfig.from_dict(dict(config)), level, seed, steps, steps))
            row[str(seed)] = [run.seconds, 1e9 if run.diverged else run.metric]
            write_text_atomically(self.kept, json.dumps(self.known))
        seconds, metric = row[str(seed)]
        return seconds, metric


def searches(folder: Path, name: str, minutes: float, repetitions: int) -> Iterator[tuple[str, int, Held]]:
    """Yield the searches of both kinds in turn, made where they are not there."""
    study = asked(folder, name, minutes)
    for repetition in range(repetitions):
        for method in (OURS, PLAIN):
            path = folder / f"{method.split()[0]}-{repetition}.json"
            if not path.exists():
                with tempfile.TemporaryDirectory() as scratch:
                    seed = 1000 * (repetition + 1)
                    if method == OURS:
                        held, exported = staged(study, seed, minutes, Path(scratch) / name)
                    else:
                        file = read_study(study)
                        experimenter = TaskExperimenter(file.study.task, "cpu", Path(scratch), file.study.threads)
                        file = file.on_network(experimenter.network_facts())
                        held, exported = plain(file, seed, minutes, experimenter)
                write_text_atomically(path, json.dumps({"held": held, "exported": exported}))
                print(f"{name}, {method} {repetition}: held {len(held)} in turn", flush=True)
            yield method, repetition, [(one[0], one[1]) for one in json.loads(path.read_text())["held"]]


def table(values: Mapping[str, list[list[float]]], failed: Mapping[str, int]) -> str:
    """Return the median time that each kind of search holds after each share of the budget, in Markdown."""
    medians = {method: np.median(np.array(rows), axis=0) for method, rows in values.items()}
    reached = np.flatnonzero(medians[OURS] <= medians[PLAIN][-1])
    lines = ["| share of the budget | " + " | ".join(f"{share:.3g}" for share in SHARES) + " | fails the judgement |"]
    lines.append("|" + " --- |" * (len(SHARES) + 2))
    for method, median in medians.items():
        cells = " | ".join(f"{one:.3f}" for one in median)
        lines.append(f"| {method} | {cells} | {failed[method]} of {len(values[method])} |")
    told = f"after {SHARES[reached[0]]:.3g} of the budget" if len(reached) else "not within the budget"
    lines += ["", f"The median staged search holds what plain Optuna's ends with {told}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Search, judge, and write what each search held after each share of its time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=list(ASKED))
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "result")
    options = parser.parse_args()
    folder = options.out / options.task
    folder.mkdir(parents=True, exist_ok=True)
    done = list(searches(folder, options.task, options.minutes, options.repetitions))
    with tempfile.TemporaryDirectory() as runs:
        judge = Judge(read_study(folder / "study"), folder / "judged.json", options.seeds, Path(runs))
        allowed = judge.allowed()
        values: dict[str, list[list[float]]] = {OURS: [], PLAIN: []}
        failed = dict.fromkeys(values, 0)
        for method, repetition, held in done:
            row = []
            for share in SHARES:
                time_ratio, drop = judge(at(held, 60.0 * options.minutes * share))
                row.append(time_ratio if drop <= allowed else 1.0)  # what loses too much is of no use
            failed[method] += drop > allowed
            values[method].append(row)
            print(f"{method} {repetition}: {time_ratio:.3f} of the time, drop {drop:.4f} of {allowed:.4f}", flush=True)
    text = table(values, failed)
    write_text_atomically(folder / "results.md", text)
    print(text, end="")


if __name__ == "__main__":
    main()
