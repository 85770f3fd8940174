"""Tune optimizers with the same budget, then count steps and time to a target over fresh seeds.

    python compare.py tune digits-autoencoder --trials 16
    python compare.py confirm digits-autoencoder
    python compare.py stability digits-autoencoder
    python compare.py speed digits-autoencoder
    python compare.py report

Every finished run is one line of ``result/runs.csv`` (step-time measurements: ``result/speed.csv``), written at once:
stop whenever you like, the same command goes on where it was. What is searched, and the targets: ``spaces.toml``.
"""

from __future__ import annotations

import argparse
import csv
import functools
import importlib
import json
import math
import os
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import optuna
import torch
from measures import CENSORED, first_step_at, trial_value, worst_after
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from torch import nn
from torch.optim import Optimizer

from workbench.config import BoostConfig
from workbench.optim.factory import decaying_damping
from workbench.optim.thor.optimizer import Thor
from workbench.tasks import Task, load_task
from workbench.training.run import RunMonitor, RunRequest, RunResult, run_task
from workbench.training.speed import measure_speed_ratio

HERE = Path(__file__).parent
CPU = torch.device("cpu")
LEVEL = "O0"
OPTIMIZERS = ("sgd", "adamw", "adam_offload", "muon", "soap", "thor")
STARTUP_TRIALS = 5
_STEPS_TIMED = 60  # a multiple of every refresh
HOPELESS = 1.5
"""A trial ends when it has cost this many times what the best one of its arm needed in all."""

RUN_COLUMNS = (
    "kind", "task", "arm", "trial", "seed", "parameters", "steps_to_target", "best", "worst_after", "final", "steps",
    "diverged", "step_time", "value", "ms_per_step",
)  # fmt: skip
SPEED_COLUMNS = ("task", "arm", "baseline", "frequency", "call", "ratio", "arm_ms", "baseline_ms", "load")


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked of every optimizer on a task.

    Args:
        task: The task.
        target: Metric to reach.
        budget: Steps of a run.
        evaluate_every: Steps between evaluations; steps to the target are a multiple of it.
        tuning_seeds: Seeds of every trial.
        final_seeds: Further seeds, that the winning trial has to stand as well.
        fresh_seeds: Seeds of the comparison, none of them used for tuning.
        weight_decay: For all arms that do not say otherwise.
    """

    task: Task
    target: float
    budget: int
    evaluate_every: int
    tuning_seeds: tuple[int, ...]
    final_seeds: tuple[int, ...]
    fresh_seeds: tuple[int, ...]
    weight_decay: float

    @property
    def higher_is_better(self) -> bool:
        """Direction of the task's metric."""
        return self.task.higher_is_better


@dataclass(frozen=True, slots=True)
class Arm:
    """An optimizer, or a convention of THOR, with what is searched.

    Args:
        name: As in ``spaces.toml``.
        fixed: Entries of the section ``optimizer`` that are not searched.
        space: Distribution per parameter.
        start: The first trial.
        thor_arguments: Arguments of ``Thor`` that the section ``optimizer`` does not have.
        compatibility: Section ``compatibility``.
        made_by: Module and name of another package's optimizer, which takes the parameters and what is searched.
    """

    name: str
    fixed: Mapping[str, Any]
    space: Mapping[str, BaseDistribution]
    start: Mapping[str, Any]
    thor_arguments: Mapping[str, Any]
    compatibility: Mapping[str, Any]
    made_by: str = ""

    def config(self, parameters: Mapping[str, Any], weight_decay: float) -> dict[str, Any]:
        """Return the configuration of a trial, as it stands in a ``boost_config.json``."""
        chosen = dict(parameters)
        if "beta1" in chosen:
            chosen["betas"] = [chosen.pop("beta1"), chosen.pop("beta2")]
        section = ({"weight_decay": weight_decay} if weight_decay else {}) | dict(self.fixed) | chosen
        return {"optimizer": section} | ({"compatibility": dict(self.compatibility)} if self.compatibility else {})


@dataclass(frozen=True)
class _ThorTask(Task):
    """A task whose own optimizer is a ``Thor`` with arguments that a configuration cannot give."""

    arguments: Mapping[str, Any] = field(default_factory=dict)

    def new_optimizer(self, model: nn.Module) -> Optimizer:
        """Return the optimizer."""
        options = dict(self.arguments)
        of_damping = {"initial": options.pop("damping"), "decay": options.pop("damping_decay", 1.0)}
        damping = functools.partial(decaying_damping, **of_damping, frequency=options["frequency"])
        return Thor(model, options.pop("lr"), damping, **options)


@dataclass(frozen=True)
class _OthersTask(Task):
    """A task whose own optimizer is another package's."""

    made_by: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def new_optimizer(self, model: nn.Module) -> Optimizer:
        """Return the optimizer."""
        module, _, name = self.made_by.rpartition(".")
        made: Optimizer = getattr(importlib.import_module(module), name)(model.parameters(), **self.arguments)
        return made


def read_goal(task: str) -> Goal:
    """Return the goal of a built-in task, from ``spaces.toml``."""
    table = _tables()
    entry = table["tasks"][task]
    return Goal(
        task=load_task(task),
        target=entry["target"],
        budget=entry["budget"],
        evaluate_every=entry["evaluate_every"],
        tuning_seeds=tuple(entry["tuning_seeds"]),
        final_seeds=tuple(entry["final_seeds"]),
        fresh_seeds=tuple(entry["fresh_seeds"]),
        weight_decay=table.get("weight_decay", {}).get(task, 0.0),
    )


def read_arm(name: str, task: str) -> Arm:
    """Return an arm from ``spaces.toml``, with the ranges it has on a task."""
    arms = _tables()["arms"]
    entry = arms[name]
    model = arms[entry["like"]] if "like" in entry else entry
    ranges = model["space"] | entry.get("space", {}) | _tables()["tasks"][task].get("space", {}).get(name, {})
    space = {key: _distribution(value) for key, value in ranges.items()}
    return Arm(
        name,
        entry["fixed"],
        space,
        entry.get("start") or model["start"],
        entry.get("thor_arguments", {}),
        entry.get("compatibility", {}),
        entry.get("made_by", ""),
    )


@functools.cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((HERE / "spaces.toml").read_text())


def _distribution(entry: Mapping[str, Any]) -> BaseDistribution:
    if "choices" in entry:
        return CategoricalDistribution(entry["choices"])
    return FloatDistribution(entry["low"], entry["high"], log=entry.get("log", False))


class Records:
    """Finished runs and measurements in two tables that only grow.

    Args:
        folder: Where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tuned").mkdir(parents=True, exist_ok=True)

    def runs(self, **wanted: str) -> list[dict[str, str]]:
        """Return the runs whose columns have these values, in the order they were made."""
        return [row for row in _rows(self.folder / "runs.csv") if all(row[k] == v for k, v in wanted.items())]

    def speeds(self, **wanted: str) -> list[dict[str, str]]:
        """Return the measurements whose columns have these values."""
        return [row for row in _rows(self.folder / "speed.csv") if all(row[k] == v for k, v in wanted.items())]

    def add_run(self, row: Mapping[str, Any]) -> None:
        """Append a run."""
        _append(self.folder / "runs.csv", RUN_COLUMNS, row)

    def add_speed(self, row: Mapping[str, Any]) -> None:
        """Append a measurement."""
        _append(self.folder / "speed.csv", SPEED_COLUMNS, row)

    def curves(self, task: str) -> dict[str, dict[int, list[tuple[int, float]]]]:
        """Return the recorded curves of a task: pairs (steps, metric) per arm and seed."""
        found: dict[str, dict[int, list[tuple[int, float]]]] = {}
        for row in _rows(self.folder / "curves.csv"):
            if row["task"] == task:
                points = [(int(step), float(value)) for step, value in (p.split(":") for p in row["curve"].split())]
                found.setdefault(row["arm"], {})[int(row["seed"])] = points
        return found

    def add_curve(self, goal: Goal, arm: str, seed: int, run: RunResult) -> None:
        """Append the curve of a run."""
        told = " ".join(f"{step}:{value:.4g}" for step, value in run.curve)
        row = {"task": goal.task.name, "arm": arm, "seed": seed, "curve": told}
        _append(self.folder / "curves.csv", tuple(row), row)

    def tuned(self, goal: Goal, arm: str) -> Path:
        """Return the path of an arm's best configuration."""
        return self.folder / "tuned" / f"{goal.task.name}_{arm}.json"


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _append(path: Path, columns: Sequence[str], row: Mapping[str, Any]) -> None:
    new = not path.is_file()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})


def best_parameters(goal: Goal, arm: Arm, records: Records) -> dict[str, Any]:
    """Return the parameters of the arm's best trial.

    Raises:
        SystemExit: When it has not been tuned.
    """
    trials = records.runs(kind="tune", task=goal.task.name, arm=arm.name)
    if not trials:
        raise SystemExit(f"{arm.name} has not been tuned on {goal.task.name}; run `compare.py tune` first")
    return best_of_trials(trials)


def best_of_trials(rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return the parameters of the trial with the least mean value; empty without rows."""
    if not rows:
        return {}
    totals = _trial_values(rows)
    best = min(totals, key=lambda trial: totals[trial])
    found: dict[str, Any] = json.loads(next(row["parameters"] for row in rows if row["trial"] == best))
    return found


def _trial_values(rows: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """Return the mean value over tuning seeds, per trial."""
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row["trial"], []).append(float(row["value"]))
    return {trial: math.fsum(several) / len(several) for trial, several in values.items()}


def setting(goal: Goal, arm: Arm, parameters: Mapping[str, Any]) -> tuple[Task, BoostConfig]:
    """Return the task and the configuration that train an arm with these parameters."""
    told = arm.config(parameters, goal.weight_decay)
    if not arm.thor_arguments and not arm.made_by:
        return goal.task, BoostConfig.from_dict(told)
    arguments = {key: value for key, value in told["optimizer"].items() if key != "name"} | dict(arm.thor_arguments)
    kept = {entry.name: getattr(goal.task, entry.name) for entry in fields(Task)}
    if arm.made_by:
        return _OthersTask(**kept, made_by=arm.made_by, arguments=arguments), BoostConfig()
    return _ThorTask(**kept, arguments=arguments), BoostConfig()


def run_until(
    goal: Goal, arm: Arm, parameters: Mapping[str, Any], seed: int, *, to_the_end: bool = False,
    at_most: float = math.inf, steps: int | None = None,
) -> RunResult:  # fmt: skip
    """Train until the target is reached.

    Args:
        goal: Task, target and budget.
        arm: The optimizer.
        parameters: Its parameters.
        seed: Seed of weights, order and split.
        to_the_end: Go on after the target.
        at_most: End after this many steps, reached or not; the schedule is that of the whole budget all the same.
        steps: Another budget.
    """
    task, config = setting(goal, arm, parameters)

    def enough(step: int, metric: float) -> bool:
        reached = math.isfinite(first_step_at([(step, metric)], goal.target, higher_is_better=goal.higher_is_better))
        return (reached and not to_the_end) or step >= at_most

    request = RunRequest(config, LEVEL, seed, steps or goal.budget, goal.evaluate_every)
    return run_task(task, request, device=CPU, monitor=RunMonitor(on_evaluation=enough))


def row_of(
    kind: str, goal: Goal, arm: Arm, trial: int, seed: int, parameters: Mapping[str, Any], run: RunResult,
    step_time: float, budget: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the line of a run."""
    up = goal.higher_is_better
    reached = first_step_at(run.curve, goal.target, higher_is_better=up)
    values = [value for _, value in run.curve if math.isfinite(value)]
    return {
        "kind": kind, "task": goal.task.name, "arm": arm.name, "trial": trial, "seed": seed,
        "parameters": json.dumps(dict(parameters), sort_keys=True), "steps_to_target": reached,
        "best": (max(values) if up else min(values)) if values else math.nan,
        "worst_after": worst_after(run.curve, reached, higher_is_better=up),
        "final": run.curve[-1][1] if run.curve else math.nan, "steps": run.steps, "diverged": int(run.diverged),
        "step_time": step_time,
        "value": trial_value(
            run.curve, goal.target, higher_is_better=up, step_time=step_time, budget=budget, diverged=run.diverged
        ),
        "ms_per_step": run.seconds / max(run.steps, 1) * 1e3,
    }  # fmt: skip


def rough_step_time(goal: Goal, arm: Arm, parameters: Mapping[str, Any], records: Records, rounds: int) -> float:
    """Return the step time against the task's own optimizer, measured once per kind of step.

    Of the parameters only THOR's frequency changes what a step costs.
    """
    frequency = str(parameters.get("frequency", ""))
    known = records.speeds(task=goal.task.name, arm=arm.name, baseline="own", frequency=frequency)
    if known:
        return float(known[-1]["ratio"])
    return measure(goal, arm, parameters, None, {}, records, rounds=rounds)


def measure(
    goal: Goal, arm: Arm, parameters: Mapping[str, Any], baseline: Arm | None,
    baseline_parameters: Mapping[str, Any], records: Records, *, rounds: int, call: int = 0,
) -> float:  # fmt: skip
    """Measure a step-time ratio in interleaved rounds, and record it."""
    sides = ((arm, parameters), (baseline, baseline_parameters))
    if arm.made_by:
        tasks = [setting(goal, side, chosen) if side else (goal.task, BoostConfig()) for side, chosen in sides]
        ratio, arm_ms, base_ms = _ratio_of_runs(*tasks, seed=call, rounds=rounds)
    else:
        # What a configuration cannot say is how damping is split: a few operations on scalars at a refresh.
        config, base = (
            BoostConfig.from_dict(side.config(chosen, goal.weight_decay)) if side else BoostConfig()
            for side, chosen in sides
        )
        found = measure_speed_ratio(
            goal.task, (base, LEVEL), (config, LEVEL), device=CPU, seed=call, rounds=rounds, precision=math.inf
        )
        ratio, arm_ms, base_ms = found.ratio, found.candidate_ms, found.baseline_ms
    records.add_speed(
        {
            "task": goal.task.name, "arm": arm.name, "baseline": baseline.name if baseline else "own",
            "frequency": parameters.get("frequency", ""), "call": call, "ratio": ratio,
            "arm_ms": arm_ms, "baseline_ms": base_ms, "load": os.getloadavg()[0],
        }
    )  # fmt: skip
    return ratio


def _ratio_of_runs(
    one: tuple[Task, BoostConfig], other: tuple[Task, BoostConfig], *, seed: int, rounds: int
) -> tuple[float, float, float]:
    """Return the median ratio of step times of short runs in turn, and both times in ms."""

    def milliseconds(task: Task, config: BoostConfig) -> float:
        run = run_task(task, RunRequest(config, LEVEL, seed, _STEPS_TIMED, _STEPS_TIMED), device=CPU)
        return run.seconds / run.steps * 1e3

    times = [(milliseconds(*one), milliseconds(*other)) for _ in range(rounds)]
    ratios, (mine, theirs) = [a / b for a, b in times], zip(*times, strict=True)
    return statistics.median(ratios), statistics.median(mine), statistics.median(theirs)


def tune(goal: Goal, arm: Arm, trials: int, records: Records, rounds: int = 16) -> None:
    """Search an arm's space with TPE until it has this many trials, and write the best configuration.

    Args:
        goal: Task, target and budget.
        arm: What is tuned.
        trials: Trials in all, those of earlier calls included.
        records: Where runs are kept.
        rounds: Interleaved rounds of a step-time measurement.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    known: dict[int, dict[int, dict[str, str]]] = {}
    for row in records.runs(kind="tune", task=goal.task.name, arm=arm.name):
        known.setdefault(int(row["trial"]), {})[int(row["seed"])] = row
    # Seeded by what is done, so that a search that was stopped does not draw its first trials again.
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=len(known), n_startup_trials=STARTUP_TRIALS))
    best = math.inf
    for number in range(trials):
        done = known.get(number, {})
        if done:  # a trial that was stopped between two seeds goes on with its own parameters
            study.enqueue_trial(json.loads(next(iter(done.values()))["parameters"]))
        elif number == 0:
            study.enqueue_trial(dict(arm.start))
        trial = study.ask(dict(arm.space))
        values: list[float] = []
        for seed in goal.tuning_seeds:
            if seed in done:
                values.append(float(done[seed]["value"]))
            else:
                step_time = rough_step_time(goal, arm, trial.params, records, rounds)
                run = run_until(goal, arm, trial.params, seed, at_most=HOPELESS * best / step_time)
                told = row_of("tune", goal, arm, number, seed, trial.params, run, step_time, goal.budget)
                records.add_run(told)
                values.append(told["value"])
            if values[-1] >= CENSORED * goal.budget:
                break  # another seed would not save it
        value = math.fsum(values) / len(values)
        study.tell(trial, value)
        best = min(best, value)
        if len(done) < len(values):
            said = f"{goal.task.name} {arm.name} trial {number}: {value:.4g} (best {best:.4g})"
            print(said, _short(trial.params), flush=True)
    settle(goal, arm, records, rounds)
    if not arm.thor_arguments and not arm.made_by:  # a configuration cannot say these
        config = arm.config(best_parameters(goal, arm, records), goal.weight_decay)
        records.tuned(goal, arm.name).write_text(json.dumps(config, indent=2) + "\n")


def settle(goal: Goal, arm: Arm, records: Records, rounds: int) -> None:
    """Run the best trial with the further seeds, too; when another is better then, that one, until the best has all.

    A rate on the edge of divergence looks best with few seeds.

    Args:
        goal: Task, target and seeds.
        arm: What was tuned.
        records: Where runs are kept.
        rounds: Interleaved rounds of a step-time measurement.
    """
    while True:
        rows = records.runs(kind="tune", task=goal.task.name, arm=arm.name)
        totals = _trial_values(rows)
        best = min(totals, key=lambda trial: totals[trial])
        mine = [row for row in rows if row["trial"] == best]
        missing = set(goal.tuning_seeds + goal.final_seeds) - {int(row["seed"]) for row in mine}
        if not missing:
            return
        parameters, seed = json.loads(mine[0]["parameters"]), min(missing)
        step_time = rough_step_time(goal, arm, parameters, records, rounds)
        run = run_until(goal, arm, parameters, seed)
        row = row_of("tune", goal, arm, int(best), seed, parameters, run, step_time, goal.budget)
        records.add_run(row)
        print(f"{goal.task.name} {arm.name} trial {best} seed {seed}: {row['value']:.4g}", flush=True)


def _short(parameters: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value:.3g}" for key, value in sorted(parameters.items()))


def confirm(goal: Goal, arm: Arm, seeds: Sequence[int], records: Records) -> None:
    """Run the best configuration with seeds that tuning has not seen."""
    parameters = best_parameters(goal, arm, records)
    for seed in _missing("confirm", goal, arm, parameters, seeds, records):
        run = run_until(goal, arm, parameters, seed)
        records.add_run(row_of("confirm", goal, arm, 0, seed, parameters, run, math.nan, goal.budget))
        records.add_curve(goal, arm.name, seed, run)
        reached = first_step_at(run.curve, goal.target, higher_is_better=goal.higher_is_better)
        print(f"{goal.task.name} {arm.name} seed {seed}: {reached:g} steps", flush=True)


def watch_stability(
    goal: Goal, arm: Arm, seeds: Sequence[int], steps: int, decays: Sequence[float], records: Records
) -> None:
    """Run tuned THOR far beyond the target, with the damping kept and with the damping decaying.

    Args:
        goal: Task and target.
        arm: THOR.
        seeds: Seeds.
        steps: Length of each run.
        decays: Factors of the damping at every refresh; 1 keeps it.
        records: Where runs are kept.
    """
    for factor in decays:
        parameters = best_parameters(goal, arm, records) | {"damping_decay": factor}
        for seed in _missing("stability", goal, arm, parameters, seeds, records):
            run = run_until(goal, arm, parameters, seed, to_the_end=True, steps=steps)
            row = row_of("stability", goal, arm, 0, seed, parameters, run, math.nan, steps)
            records.add_run(row)
            print(f"{goal.task.name} {arm.name} damping x {factor:g} seed {seed}:", end=" ")
            print(
                f"in the target after {row['steps_to_target']:g} steps, then at worst {row['worst_after']:.3f},",
                end=" ",
            )
            print(f"{row['final']:.3f} at the end", flush=True)


def _missing(
    kind: str, goal: Goal, arm: Arm, parameters: Mapping[str, Any], seeds: Sequence[int], records: Records
) -> Iterator[int]:
    told = json.dumps(dict(parameters), sort_keys=True)
    rows = records.runs(kind=kind, task=goal.task.name, arm=arm.name, parameters=told)
    done = {int(row["seed"]) for row in rows}
    return (seed for seed in seeds if seed not in done)


def measure_speeds(goal: Goal, arms: Sequence[Arm], calls: int, rounds: int, records: Records) -> None:
    """Measure tuned arms against tuned SGD, and THOR against AdamW, in turns; each call has fresh models."""
    sgd, adamw = read_arm("sgd", goal.task.name), read_arm("adamw", goal.task.name)
    pairs = [(arm, sgd) for arm in arms if arm.name != "sgd"] + [(arm, adamw) for arm in arms if arm.name == "thor"]
    for call in range(calls):
        for arm, baseline in pairs:
            known = records.speeds(task=goal.task.name, arm=arm.name, baseline=baseline.name, call=str(call))
            parameters = best_parameters(goal, arm, records)
            if any(row["frequency"] == str(parameters.get("frequency", "")) for row in known):
                continue
            base = best_parameters(goal, baseline, records)
            ratio = measure(goal, arm, parameters, baseline, base, records, rounds=rounds, call=call)
            print(f"{goal.task.name} {arm.name} / {baseline.name} call {call}: {ratio:.3f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one part of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("tune", "confirm", "stability", "speed", "report"))
    parser.add_argument("task", nargs="?", choices=tuple(_tables()["tasks"]))
    parser.add_argument("--arms", nargs="+", help="arms of spaces.toml; the five optimizers unless given")
    parser.add_argument("--trials", type=int, default=16, help="trials per arm in all")
    parser.add_argument("--seeds", type=int, help="seeds at most: fresh ones, or those of tuning")
    parser.add_argument("--steps", type=int, help="budget of tuning and confirmation; length of stability runs (2000)")
    parser.add_argument(
        "--decays", type=float, nargs="+", default=[1.0, 0.95], help="of the damping, in stability runs"
    )
    parser.add_argument("--calls", type=int, default=8, help="step-time measurements per pair")
    parser.add_argument("--rounds", type=int, default=12, help="interleaved rounds per step-time measurement")
    parser.add_argument("--out", type=Path, default=HERE / "result", help="folder of the results")
    options = parser.parse_args(arguments)
    records = Records(options.out)
    if options.part == "report":
        from report import write_report

        write_report(records, _tables()["tasks"], OPTIMIZERS)
        return
    if options.task is None:
        parser.error(f"`{options.part}` needs a task")
    goal = read_goal(options.task)
    if options.steps and options.part != "stability":
        goal = replace(goal, budget=options.steps)
    if options.part == "tune" and options.seeds:
        first, further = goal.tuning_seeds[: options.seeds], (goal.tuning_seeds + goal.final_seeds)[: options.seeds]
        goal = replace(goal, tuning_seeds=first, final_seeds=further[len(first) :])
    arms = [
        read_arm(name, options.task)
        for name in options.arms or (("thor",) if options.part == "stability" else OPTIMIZERS)
    ]
    seeds = goal.fresh_seeds[: options.seeds]
    if options.part == "speed":
        measure_speeds(goal, arms, options.calls, options.rounds, records)
    for arm in arms:
        if options.part == "tune":
            tune(goal, arm, options.trials, records, options.rounds)
        elif options.part == "confirm":
            confirm(goal, arm, seeds, records)
        elif options.part == "stability":
            watch_stability(goal, arm, seeds, options.steps or 2000, options.decays, records)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
