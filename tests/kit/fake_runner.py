"""A stand-in for training: fast, deterministic, and as opinionated as a real network.

Freezing makes steps faster and learning a little worse; LessBN is free; a freeze_p below 0.35 diverges; DimReduce takes
slow steps, but a tenth of them, and refuses to start without snapshots enough. Every job is written to ``calls.log``
beside the study, so that a test can see what ran even in a process that was killed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna

from workbench.config import BoostConfig
from workbench.methods.dim_reduce.pca_files import list_snapshots, save_pca_matrix
from workbench.study import StudyResult, tune
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import (
    UNMONITORED,
    FreezingLimitMeasured,
    Job,
    Monitor,
    PolicyOutcome,
    Replayed,
    ReplayJob,
    RunStep,
    SpeedJob,
    SpeedMeasured,
    Trained,
    TrainJob,
)
from workbench.study.store.storage import default_storage

if TYPE_CHECKING:
    from workbench.config import NetworkFacts

STUDY = """
[study]
task = "fake"
budget_steps = 100
evaluate_every = 10
n_trials = 10
objective = "time_to_target"

[allowed_drop]
o1 = 0.02
o2 = 0.05

[space]
level = ["O0", "O1", "O2"]
"boost.less_bn" = [false, true]
"boost.grad_freeze" = [false, true]
"grad_freeze.freeze_p" = { low = 0.3, high = 0.9 }
"grad_freeze.freeze_type" = [0, 1]

[confirm]
seeds_min = 6
seeds_max = 8
candidates = 2
"""

SHORT = STUDY.replace("n_trials = 10", "n_trials = 4").replace("= 8", "= 3").replace("= 6", "= 3")
SEARCH = SHORT.replace("[confirm]", "[confirm]\nenabled = false")

DIM_REDUCE = """
[study]
task = "fake"
budget_steps = 100
n_trials = 3
[baseline]
boost.mode = "manual"
[space]
"boost.dim_reduce" = [true]
"dim_reduce.n_components" = [2, 4]
[confirm]
seeds_min = 2
seeds_max = 2
"""

LIMIT = FreezingLimitMeasured(1.1, 1.0, 1.2, 1.2, 1.1, 1.3, 0.5, 0.4, 0.6)


def write_study(directory: Path, text: str = STUDY) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "study.toml").write_text(text, encoding="utf-8")
    return directory


def cost_of(config: BoostConfig, level: str) -> float:
    plan = config.resolve(level)
    cost = 1.0 - (0.1 if plan.less_bn else 0.0)
    cost += 0.5 if plan.dim_reduce else 0.0
    return cost - (0.5 * (1.0 - config.grad_freeze.freeze_p) if plan.grad_freeze else 0.0)


def compute_subspace(config: BoostConfig) -> None:
    """Leave the components beside the snapshots, as training does; their values tell the folder and the count."""
    folder = Path(config.dim_reduce.weight_load_dir or "")
    k, found = config.dim_reduce.n_components, list_snapshots(folder)
    if len(found) <= k:
        raise ValueError(f"{k} components of {len(found)} snapshots")
    number = float(sum(map(ord, str(folder.parent.name))))
    save_pca_matrix(folder / f"pca_mat_{k:04x}.npy", np.full((k, 7), number), np.full(k, 1.0 / k))


def final_metric(config: BoostConfig, level: str, seed: int) -> float:
    plan = config.resolve(level)
    if plan.grad_freeze and config.grad_freeze.freeze_p < 0.35:
        return math.nan
    harm = 0.06 * (1.0 - config.grad_freeze.freeze_p) ** 2 if plan.grad_freeze else 0.0
    noise = np.random.default_rng([seed, int(plan.key(), 16) % 2**32])
    return 0.9 + 0.01 * math.sin(seed) - harm + 0.002 * noise.standard_normal()


class FakeRunner:
    """Runs a study's jobs without training; a test that wants something else replaces a hook, or overrides `run`.

    Args:
        directory: Folder of the study.
        seconds: What an evaluation and a snapshot take.
    """

    def before(self, job: Job[Any]) -> None:
        """Do nothing; a test may raise here."""

    def trained(self, job: TrainJob, run: Trained) -> Trained:
        """Return what a run came to; a test may change it."""
        return run

    def timed(self, job: SpeedJob, speed: SpeedMeasured) -> SpeedMeasured:
        """Return what a measurement came to; a test may change it."""
        return speed

    def __init__(self, directory: Path, seconds: float = 0.0) -> None:
        self.directory = directory
        self.seconds = seconds
        self.metric_name = "accuracy"
        self.higher_is_better = True
        self.data_hash = "abc"

    def environment(self) -> dict[str, Any]:
        return {"versions": {"fake": "1"}, "missing": None}

    def network_facts(self) -> NetworkFacts | None:
        return None

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        self.before(job)
        match job:
            case TrainJob():
                return self.trained(job, self._train(job, monitor))
            case SpeedJob():
                return self.timed(job, self._speed(job))
            case ReplayJob():
                return self._replay(job)
        raise NotImplementedError(job.kind)

    def _train(self, job: TrainJob, monitor: Monitor) -> Trained:
        config, plan = job.config, job.config.resolve(job.level)
        self.log(f"train {plan.key()} {job.seed} {job.run_id}")
        speed = 6.0
        if plan.dim_reduce:
            compute_subspace(config)
            speed = 60.0
        final = final_metric(config, job.level, job.seed)
        if math.isnan(final):
            return Trained(math.nan, ((job.evaluate_every, 0.2),), 0.01, diverged=True, message="the loss became NaN")
        curve: list[tuple[int, float]] = []
        for step in range(job.evaluate_every, job.steps + 1, job.evaluate_every):
            time.sleep(self.seconds)
            metric = final * (1.0 - math.exp(-speed * step / job.steps)) / (1.0 - math.exp(-speed))
            curve.append((step, metric))
            if monitor.on_step is not None:
                monitor.on_step(RunStep(step, job.steps, metric))
            if monitor.stop is not None and monitor.stop():
                return Trained(math.nan, tuple(curve), 0.01, message="stopped", steps=step)
            if monitor.on_evaluation is not None and monitor.on_evaluation(step, metric) and step < job.steps:
                return Trained(math.nan, tuple(curve), 0.01, message="ended early")
        path = f"runs/{job.run_id}" if job.run_id else ""
        if config.snapshots.count:
            path = self.keep_snapshots(config, job.run_id)
        self.log(f"trained {plan.key()} {job.seed} {job.run_id}")
        return Trained(final, tuple(curve), 0.01, path=path, overflows=3, steps=job.steps)

    def keep_snapshots(self, config: BoostConfig, run_id: str) -> str:
        attempt = sum(path.name.startswith(run_id) for path in (self.directory / "runs").glob("warm_up_seed_*"))
        name = f"{run_id}.{attempt + 1}" if attempt else run_id
        folder = self.directory / "runs" / name / "snapshots"
        folder.mkdir(parents=True)
        for number in range(config.snapshots.count):
            time.sleep(self.seconds)
            step = config.snapshots.start_step + number * config.snapshots.every_steps
            (folder / f"snapshot_{step:06d}.safetensors").touch()
        return f"runs/{name}"

    def _speed(self, job: SpeedJob) -> SpeedMeasured:
        config, level = job.candidate
        ratio = cost_of(config, level) / cost_of(*job.baseline)
        if config.resolve(level).dim_reduce:
            compute_subspace(config)
        self.log(f"speed {config.resolve(level).key()}")
        return SpeedMeasured(ratio, ratio * 0.98, ratio * 1.02)

    def _replay(self, job: ReplayJob) -> Replayed:
        return Replayed(
            tuple(
                PolicyOutcome(
                    init=policy["init"],
                    factor=policy["factor"],
                    window=int(policy["window"]),
                    overflows=max(math.log2(policy["init"]) - 16.0, 0.0),
                    overflows_low=0.0,
                    overflows_high=9.0,
                    wasted_share=max(math.log2(policy["init"]) - 16.0, 0.0) / 60.0,
                    underflow_share=2.0 ** -math.log2(policy["init"]),
                    final_scale=65536.0,
                )
                for policy in job.policies
            )
        )

    def log(self, line: str) -> None:
        with (self.directory / "calls.log").open("a", encoding="utf-8") as handle:
            handle.write(line + "\n")


def making(kind: type[FakeRunner] = FakeRunner, **attributes: Any) -> Callable[[StudyFile, Path], FakeRunner]:
    """Return what makes a fake with these attributes, hooks among them, in this process."""

    def make(file: StudyFile, directory: Path) -> FakeRunner:
        runner = kind(directory)
        vars(runner).update(attributes)
        return runner

    return make


def tuned(directory: Path, text: str | None = None, **options: Any) -> StudyResult:
    """Run a study with a fake; with a text, write it first."""
    if text is not None:
        write_study(directory, text)
    return tune(directory, **{"make_experimenter": make_fake} | options)


def make_fake(file: StudyFile, directory: Path) -> FakeRunner:
    return FakeRunner(directory)


def make_slow_fake(file: StudyFile, directory: Path) -> FakeRunner:
    return FakeRunner(directory, seconds=0.005)


def calls(directory: Path) -> list[str]:
    log = directory / "calls.log"
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def stored_trials(directory: Path) -> list[optuna.trial.FrozenTrial]:
    """Return the trials of the study in a folder as its database has them now."""
    storage = optuna.storages.RDBStorage(default_storage(directory))
    (study,) = storage.get_all_studies()
    return storage.get_all_trials(study._study_id, deepcopy=False)
