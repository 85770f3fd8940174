"""Both halves of training in a subspace: a run that records weight snapshots, and a run in what they span.

Both start from the same weights (same seed), as in arXiv:2103.11154, and are compared by their steps to the same loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from workbench.config import BoostConfig, ConfigError
from workbench.methods.registry import METHODS
from workbench.tasks import Task
from workbench.training.run import RunMonitor, RunProgress, RunRequest, RunResult, run_task
from workbench.training.snapshots import FOLDER

_METHOD = next(method for method in METHODS if method.snapshot_folder)  # that trains in a subspace


@dataclass(frozen=True)
class SubspaceRuns:
    """Both runs of one seed."""

    seed: int  # of initial weights, data order and split
    warm_up: RunResult  # which recorded the snapshots
    reduced: RunResult  # in their subspace

    @property
    def target(self) -> float:
        """Return the metric at the end of the first run."""
        return self.warm_up.metric

    @property
    def reached(self) -> float:
        """Return the steps after which the second run was first evaluated as good as that; NaN if it never was."""
        sign = -1.0 if self.warm_up.higher_is_better else 1.0
        return next((float(s) for s, value in self.reduced.curve if sign * value <= sign * self.target), math.nan)


def train_in_subspace(
    task: Task,
    warm_up: BoostConfig,
    reduced: BoostConfig,
    *,
    seeds: Sequence[int],
    steps: int,
    out: Path,
    reduced_steps: int | None = None,
    evaluate_every: int = 10,
    device: torch.device | None = None,
    on_progress: Callable[[str, RunProgress], None] | None = None,
) -> list[SubspaceRuns]:
    """Record and train, seed by seed, into run directories ``warm-up-<seed>`` and ``<method>-<seed>`` below ``out``.

    The section ``snapshots`` of ``warm_up`` must keep snapshots, and ``reduced`` must have the method in effect that
    trains in a subspace, from those of the same seed; otherwise this is a ConfigError. ``steps`` are the micro-batches
    of the first run and, unless ``reduced_steps`` is given, of the second.
    """
    if warm_up.snapshots.count == 0:
        raise ConfigError("`snapshots.count` must be above 0 in the configuration that records the snapshots, got 0")
    plan = reduced.with_values({_METHOD.snapshot_folder: FOLDER}).resolve("O0")
    if not plan.matters(_METHOD.snapshot_folder):
        raise ConfigError(f"`{_METHOD.switch}` must be true, with mode manual, in the configuration of the second run")

    def run(name: str, config: BoostConfig, seed: int, steps: int) -> RunResult:
        request = RunRequest(config, "O0", seed, steps, evaluate_every, name)
        monitor = RunMonitor(None if on_progress is None else partial(on_progress, name))
        return run_task(task, request, device=device, out=out, monitor=monitor)

    runs = []
    for seed in seeds:
        first = run(f"warm-up-{seed}", warm_up, seed, steps)
        config = reduced.with_values({_METHOD.snapshot_folder: str(out / f"warm-up-{seed}" / FOLDER)})
        name = f"{_METHOD.name.replace('_', '-')}-{seed}"
        second = run(name, config, seed, reduced_steps or steps)
        runs.append(SubspaceRuns(seed, first, second))
    return runs


def subspace_table(runs: Sequence[SubspaceRuns]) -> pd.DataFrame:
    """Return one row per seed.

    ``target`` is the metric at the end of the warm-up, ``reached_after`` the steps to it (NaN if never), ``end`` the
    metric at the end of the second run, and ``end_share`` is ``end`` as a share of the target.
    """
    return pd.DataFrame(
        {
            "seed": [one.seed for one in runs],
            "warm_up_steps": [one.warm_up.steps for one in runs],
            "target": [one.target for one in runs],
            "reached_after": [one.reached for one in runs],
            f"{_METHOD.name}_steps": [one.reduced.steps for one in runs],
            "end": [one.reduced.metric for one in runs],
            "end_share": [one.reduced.metric / one.target for one in runs],
        }
    )
