"""Compare configurations on a task: the metric paired over seeds, the speed interleaved in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from workbench.config import BoostConfig
from workbench.core import devices
from workbench.core.paired_bounds import (
    DropBounds,
    paired_drop_bounds,
    paired_drops,
    smallest_gap,
)
from workbench.tasks import Task
from workbench.training.run import RunProgress, run_task
from workbench.training.speed import SpeedRatio, measure_speed_ratio

__all__ = ["ComparedSide", "Comparison", "Side", "compare_configs"]


@dataclass(frozen=True, slots=True)
class Side:
    """One configuration in a comparison.

    Args:
        label: Name for a person.
        config: Configuration.
        level: Boost level.
    """

    label: str
    config: BoostConfig
    level: str = "O1"


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """What one configuration gave.

    Args:
        label: Name for a person.
        summary: What is in effect.
        metrics: Final metric per seed; NaN for a run that diverged.
        drop: Paired drop against the first side with its bounds; None for the first side itself.
        speed: Step time relative to the first side; None for the first side itself.
        paths: Run directories, one per seed.
    """

    label: str
    summary: str
    metrics: tuple[float, ...]
    drop: DropBounds | None
    speed: SpeedRatio | None
    paths: tuple[Path | None, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two or more configurations side by side; the first is the base.

    Args:
        task: Name of the task.
        metric: Name of the metric.
        higher_is_better: Its direction.
        steps: Micro-batches per run.
        seeds: Seeds, the same for each side.
        sides: The results.
    """

    task: str
    metric: str
    higher_is_better: bool
    steps: int
    seeds: tuple[int, ...]
    sides: tuple[ComparedSide, ...]

    def sentences(self) -> list[str]:
        """Say for each further side how it compares with the first."""
        base = self.sides[0].label
        told = []
        for side in self.sides[1:]:
            if side.drop is None or side.speed is None:
                continue
            speed, low, high = 1 / side.speed.ratio, 1 / side.speed.high, 1 / side.speed.low
            faster = f"{speed:.2f} x the speed of {base} (95 % interval {low:.2f} to {high:.2f})"
            pairs = side.drop.n_pairs
            # Left-out pairs are said: an average over the seeds that went well would flatter a side that diverges.
            diverged = _diverged(base, self.sides[0].metrics) + _diverged(side.label, side.metrics)
            if not pairs:
                told.append(f"{side.label}: {faster}; no seed gave a metric on both sides{diverged}.")
                continue
            if side.drop.mean == 0:
                change = f"{self.metric} equal on average"
            else:
                direction = "lower" if self.higher_is_better == (side.drop.mean > 0) else "higher"
                change = f"{self.metric} {abs(side.drop.mean):.4g} {direction} on average"
            if pairs == 1:
                seeds = "1 seed (one seed bounds nothing)"
            else:
                seeds = f"{pairs} seeds (one-sided 95 % bound of the drop {side.drop.upper:.4g})"
            told.append(f"{side.label}: {faster}, {change} over {seeds}{diverged}.")
        return told


def compare_configs(
    task: Task,
    sides: Sequence[Side],
    *,
    seeds: Sequence[int],
    steps: int,
    device: torch.device | None = None,
    out: Path | None = None,
    on_progress: Callable[[str, RunProgress], None] | None = None,
) -> Comparison:
    """Train every side with every seed and measure every side's speed against the first.

    Args:
        task: What is trained.
        sides: At least two; the first is the base.
        seeds: Seeds of weights, data order and split; the pairs.
        steps: Micro-batches per run.
        device: Where to train; None takes the accelerator if there is one.
        out: Folder for run directories; None records nothing.
        on_progress: Called with the side's label and the run's progress.

    Returns:
        The comparison.

    Raises:
        ValueError: With fewer than two sides or no seed.
    """
    if len(sides) < 2:
        raise ValueError(f"a comparison needs at least 2 configurations, got {len(sides)}")
    if not seeds:
        raise ValueError("a comparison needs at least 1 seed")
    device = device or devices.select_device("auto")
    metrics: list[list[float]] = [[] for _ in sides]
    paths: list[list[Path | None]] = [[] for _ in sides]
    summaries = [""] * len(sides)
    for seed in seeds:  # seed by seed, so that an interruption leaves whole pairs behind
        for i, side in enumerate(sides):
            result = run_task(
                task,
                side.config,
                level=side.level,
                steps=steps,
                seed=seed,
                device=device,
                out=out,
                on_progress=None if on_progress is None else partial(on_progress, f"{side.label}, seed {seed}"),
            )
            metrics[i].append(result.metric)
            paths[i].append(result.path)
            summaries[i] = "; ".join((result.plan.summary(), *result.notes))
    compared = [ComparedSide(sides[0].label, summaries[0], tuple(metrics[0]), None, None, tuple(paths[0]))]
    for i, side in enumerate(sides[1:], start=1):
        pairs = [(a, b) for a, b in zip(metrics[0], metrics[i], strict=True) if math.isfinite(a) and math.isfinite(b)]
        step = smallest_gap(metric for side_metrics in metrics for metric in side_metrics)
        drops = paired_drop_bounds(paired_drops(pairs, higher_is_better=task.higher_is_better), resolution=step)
        base = (sides[0].config, sides[0].level)
        speed = measure_speed_ratio(task, base, (side.config, side.level), device=device, seed=seeds[0])
        compared.append(ComparedSide(side.label, summaries[i], tuple(metrics[i]), drops, speed, tuple(paths[i])))
    return Comparison(task.name, task.metric_name, task.higher_is_better, steps, tuple(seeds), tuple(compared))


def _diverged(label: str, metrics: Sequence[float]) -> str:
    count = sum(not math.isfinite(metric) for metric in metrics)
    return f"; {label} diverged on {count} of {len(metrics)} seeds" if count else ""
