"""What does a study cost beside its training?

Real studies run in a temporary folder, with their database on disk as ``workbench tune`` has it. Their training costs
nothing: it calls back as a real run does, step by step and evaluation by evaluation, and returns a number made from
the configuration. So what a trial takes is what the study takes. After each study plain Optuna has its turn: TPE with
its defaults, over as many ranges, with a SQLite database of its own and as many reports.

The times are this process's processor times, which a busy machine stretches less than the clock, and the clock's for
whole trials: the rest is waiting for the disk.
"""

from __future__ import annotations

import math
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from workbench.bench import Benchmark, Finding, Request, median_of, ratio_of
from workbench.config import NetworkFacts, describe_parameters
from workbench.study import tune
from workbench.study.run.job import UNMONITORED, Job, Monitor, RunStep, SpeedJob, SpeedMeasured, Trained, TrainJob
from workbench.study.run.progress import TuneProgress

_GOALS = {3: 0.05, 12: 0.08, 40: 0.12}  # seconds of any trial, by ranges
_SPACES = (3, 12, 40)
_AROUND = 5  # trials before and after the one in question whose median is told
_FREEZING = ("grad_freeze.freeze_p", "grad_freeze.param_groups", "grad_freeze.freeze_type")


@dataclass(frozen=True, slots=True)
class _Trial:
    """What one trial took, seconds: by the clock, and of this process's processor time."""

    wall: float
    processor: float


def measure(
    request: Request,
    *,
    spaces: Sequence[int] = _SPACES,
    trials: Sequence[int] = (10, 50, 200),
    evaluations: int = 10,
) -> list[Finding]:
    """Measure what trials take in studies whose training takes nothing, beside plain Optuna's.

    For each number of ranges as many studies as there are rounds; told are trials of these numbers, which increase.
    """
    findings = []
    n_trials = trials[-1] + _AROUND
    for ranges in spaces:
        studies = []
        plain = []
        for seed in range(request.rounds):
            studies.append(_study(ranges, n_trials, evaluations, seed))
            plain.append(_plain_optuna(ranges, n_trials, evaluations, seed))
        for number in trials:
            near = [one for study in studies for one in _near(study, number)]
            alone = [seconds for study in plain for seconds in _near(study[1:], number)]
            wall, processor = median_of([one.wall for one in near]), median_of([one.processor for one in near])
            note = f"{evaluations} evaluations, TPE"
            label = f"{ranges} ranges, trial {number}"
            findings += [
                Finding(f"{label}: whole trial", "s", wall, _GOALS.get(ranges), note),
                Finding(f"{label}: processor time", "s", processor),
                Finding(f"{label}: plain Optuna", "s", median_of(alone), None, "processor time; SQLite, too"),
                Finding(f"{label}: ours / plain Optuna", "x", ratio_of([one.processor for one in near], alone), 1.0),
            ]
    return findings


def _near(values: Sequence[Any], number: int) -> Sequence[Any]:
    return values[max(number - _AROUND, 0) : number + _AROUND]


def _study(ranges: int, n_trials: int, evaluations: int, seed: int) -> list[_Trial]:
    """Run a study and return what each trial after O0 took."""
    with tempfile.TemporaryDirectory() as folder:
        steps = 10 * evaluations
        path = Path(folder) / "study.toml"
        path.write_text(study_text(ranges, n_trials, steps, seed), encoding="utf-8")
        trials: list[_Trial] = []
        last = (0, time.perf_counter(), time.process_time())

        def on_progress(progress: TuneProgress) -> None:
            nonlocal last
            if progress.phase == "search" and progress.trials > last[0]:
                now = (progress.trials, time.perf_counter(), time.process_time())
                trials.append(_Trial(now[1] - last[1], now[2] - last[2]))
                last = now

        tune(folder, on_progress=on_progress, make_experimenter=lambda *_: Effortless())
    return trials[1:]


def study_text(ranges: int, n_trials: int, steps: int, seed: int) -> str:
    """Return the study.toml of a study over so many ranges."""
    space = "\n".join(f'"{path}" = {values}' for path, values in _space(ranges).items())
    return f"""
[study]
task = "effortless"
seed = {seed}
budget_steps = {steps}
evaluate_every = 10
n_trials = {n_trials}
objective = "time_to_target"
[allowed_drop]
o1 = 0.05
o2 = 0.1
[confirm]
enabled = false
[space]
{space}
"""


def _space(ranges: int) -> Mapping[str, str]:
    """Return so many dimensions: of freezing alone, or from all there are, with the switches that decide."""
    if ranges <= len(_FREEZING):
        return {"boost.grad_freeze": "[true]", **dict.fromkeys(_FREEZING[:ranges], "true")}
    first = ["level", "boost.less_bn", "boost.grad_freeze", "boost.grad_accumulation", "amp.level", "loss_scale.kind"]
    first += [*_FREEZING, "optimizer.lr", "optimizer.weight_decay", "loss_scale.init"]
    searchable = [
        path
        for path, about in describe_parameters().items()
        if about.kind in {"bool", "choice"} or (about.kind in {"int", "float"} and about.low is not None)
    ]
    others = [path for path in searchable if path not in first and path != "boost.mode"]
    others = [path for path in others if "dim_reduce" not in path and "snapshots" not in path]  # those want snapshots
    return dict.fromkeys([*first, *others][:ranges], "true")


def _plain_optuna(ranges: int, n_trials: int, evaluations: int, seed: int) -> list[float]:
    """Return the processor time of each trial of Optuna's own TPE with a database, and a pruner that is asked."""
    times: list[float] = []
    last = [time.process_time()]

    def objective(trial: optuna.Trial) -> float:
        value = sum(trial.suggest_float(f"x{number}", 0.0, 1.0) ** 2 for number in range(ranges))
        for step in range(evaluations):
            trial.report(value, step)
            trial.should_prune()
        return value

    def note(_: optuna.Study, __: optuna.trial.FrozenTrial) -> None:
        now = time.process_time()
        times.append(now - last[0])
        last[0] = now

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as folder:
            sampler, pruner = optuna.samplers.TPESampler(seed=seed), optuna.pruners.NopPruner()
            study = optuna.create_study(storage=f"sqlite:///{folder}/study.db", sampler=sampler, pruner=pruner)
            study.optimize(objective, n_trials=n_trials, callbacks=[note])
    finally:
        optuna.logging.set_verbosity(verbosity)
    return times


class Effortless:
    """Trains nothing, and calls back as training does."""

    metric_name = "accuracy"
    higher_is_better = True
    data_hash = ""

    def environment(self) -> dict[str, Any]:
        """Return nothing; no machine is described by this."""
        return {}

    def network_facts(self) -> NetworkFacts:
        """Return a network large enough for everything, so that plans are resolved as in a study that knows its own."""
        return NetworkFacts(50, 30, 50, 25, 30, 25)

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        """Return a ratio as if it had been measured, or a curve that depends on the configuration alone."""
        if isinstance(job, SpeedJob):
            return SpeedMeasured(0.9, 0.88, 0.92)
        assert isinstance(job, TrainJob)  # no study here asks for more
        final = 0.8 + 0.1 * np.random.default_rng(zlib.crc32(f"{job.level} {job.config}".encode())).random()
        curve: list[tuple[int, float]] = []
        for step in range(1, job.steps + 1):
            metric = final * (1.0 - math.exp(-6.0 * step / job.steps))
            if monitor.on_step is not None:
                monitor.on_step(RunStep(step, job.steps, metric))
            if step % (job.evaluate_every or job.steps):
                continue
            curve.append((step, metric))
            if monitor.on_evaluation is not None and monitor.on_evaluation(step, metric) and step < job.steps:
                return Trained(math.nan, tuple(curve), 0.0, message="ended early", steps=step)
        return Trained(curve[-1][1], tuple(curve), 0.0, steps=job.steps)


BENCHMARK = Benchmark(
    "study",
    "What does a trial cost beside its training and evaluation?",
    measure,
    rounds=1,
    place=18,
    shown=("12 ranges, trial 200: whole", "12 ranges, trial 200: ours", "40 ranges, trial 200: whole"),
)
