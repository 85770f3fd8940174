"""A stand-in for training: fast, deterministic, and as opinionated as a real network.

Freezing makes steps faster and learning a little worse; LessBN is free; a freeze_p below 0.35 diverges; DimReduce takes
slow steps, but a tenth of them, and refuses to start without snapshots enough. Every call is written to ``calls.log``
beside the study, so that a test can see what ran even in a process that was killed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.config import BoostConfig
from workbench.methods.dim_reduce.pca_files import list_snapshots, save_pca_matrix
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.experimenter import (
    PolicyOutcome,
    RunStep,
    SpeedMeasured,
    Trained,
)

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


class FakeExperimenter:
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

    def train(
        self,
        config: BoostConfig,
        level: str,
        *,
        seed: int,
        steps: int,
        evaluate_every: int,
        run_id: str = "",
        exponents_every: int = 0,
        on_evaluation: Callable[[int, float], bool] | None = None,
        on_step: Callable[[RunStep], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Trained:
        key = config.resolve(level).key()
        self.log(f"train {key} {seed} {run_id}")
        speed = 6.0
        if config.resolve(level).dim_reduce:
            compute_subspace(config)
            speed = 60.0
        final = final_metric(config, level, seed)
        if math.isnan(final):
            return Trained(math.nan, ((evaluate_every, 0.2),), 0.01, diverged=True, message="the loss became NaN")
        curve: list[tuple[int, float]] = []
        for step in range(evaluate_every, steps + 1, evaluate_every):
            time.sleep(self.seconds)
            metric = final * (1.0 - math.exp(-speed * step / steps)) / (1.0 - math.exp(-speed))
            curve.append((step, metric))
            if on_step is not None:
                on_step(RunStep(step, steps, metric))
            if stop is not None and stop():
                return Trained(math.nan, tuple(curve), 0.01, message="stopped", steps=step)
            if on_evaluation is not None and on_evaluation(step, metric) and step < steps:
                return Trained(math.nan, tuple(curve), 0.01, message="ended early")
        path = f"runs/{run_id}" if run_id else ""
        if config.snapshots.count:
            path = self.keep_snapshots(config, run_id)
        self.log(f"trained {key} {seed} {run_id}")
        return Trained(final, tuple(curve), 0.01, path=path, overflows=3, steps=steps)

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

    def speed(
        self,
        baseline: tuple[BoostConfig, str],
        candidate: tuple[BoostConfig, str],
        *,
        seed: int,
        rounds: int,
        steps_per_block: int,
        stop: Callable[[], bool] | None = None,
    ) -> SpeedMeasured:
        ratio = cost_of(*candidate) / cost_of(*baseline)
        if candidate[0].resolve(candidate[1]).dim_reduce:
            compute_subspace(candidate[0])
        self.log(f"speed {candidate[0].resolve(candidate[1]).key()}")
        return SpeedMeasured(ratio, ratio * 0.98, ratio * 1.02)

    def replay(self, run_path: str, policies: Sequence[Mapping[str, float]]) -> list[PolicyOutcome]:
        return [
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
            for policy in policies
        ]

    def log(self, line: str) -> None:
        with (self.directory / "calls.log").open("a", encoding="utf-8") as handle:
            handle.write(line + "\n")


def make_fake(file: StudyFile, directory: Path) -> FakeExperimenter:
    return FakeExperimenter(directory)


def make_slow_fake(file: StudyFile, directory: Path) -> FakeExperimenter:
    return FakeExperimenter(directory, seconds=0.005)


def calls(directory: Path) -> list[str]:
    log = directory / "calls.log"
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []
