"""A recorded run of any length without training: gradients whose size wanders, and a dynamic loss scale that follows.

It goes through the recorder, so it is on the disk as a run is: Parquet, exponents every tenth step, events.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from workbench.config import BoostConfig
from workbench.core.records import Event, EventKind, ExponentCounts, StepRecord
from workbench.loss_scale import ScalePolicy, simulate
from workbench.runs import SCHEMA_VERSION, RunRecorder

_POLICY = ScalePolicy(init=2.0**20, factor=2.0, window=1000)
_FLOAT16_MAX = 65504.0
_BLOCK = 50_000
_EXPONENTS_EVERY = 10
_GROUPS = ("stem", "body", "head")
_SHAPES = 16  # different histograms


def record_run(folder: Path, n_steps: int) -> Path:
    """Record a run of so many steps in a folder of runs and return its directory."""
    rule = {"kind": "dynamic", "init": _POLICY.init, "factor": _POLICY.factor, "window": _POLICY.window}
    config = BoostConfig.from_dict({"boost": {"mode": "manual"}, "amp": {"level": "O2"}, "loss_scale": rule})
    environment = {"task": "generated", "level": "O1", "steps": n_steps, "schema_version": SCHEMA_VERSION}
    with RunRecorder.create(folder, config.to_dict(), environment) as recorder:
        for steps, events in steps_and_events(n_steps):
            recorder.write(steps, events)
        recorder.finish({"state": "finished", "metric": 0.97, "metric_name": "accuracy"})
        return recorder.path


def steps_and_events(n_steps: int) -> Iterator[tuple[list[StepRecord], list[Event]]]:
    """Yield blocks of steps with their events."""
    rng = np.random.default_rng(0)
    wander = np.cumsum(rng.normal(0.0, 0.002, n_steps)) + rng.normal(0.0, 0.15, n_steps)
    thresholds = np.exp2(16.0 + wander)
    trace = simulate(thresholds, [_POLICY]).trace(0)
    scales = trace.per_step()
    after = np.append(scales[1:], scales[-1]).tolist()
    overflows = np.zeros(n_steps, dtype=bool)
    overflows[trace.overflow_steps] = True
    losses = 2.3 * np.exp(-np.arange(n_steps) / (0.3 * n_steps)) + rng.gamma(2.0, 0.02, n_steps)
    times = 10.0 + rng.gamma(2.0, 0.5, n_steps)
    seconds, sizes = np.cumsum(times) / 1e3, _FLOAT16_MAX / thresholds
    histograms = _histograms(rng)
    columns = {"time.data": 0.1, "time.forward": 4.0, "time.backward": 5.5, "time.update": 0.4}
    for begin in range(0, n_steps, _BLOCK):
        rows = range(begin, min(begin + _BLOCK, n_steps))
        steps = [
            StepRecord(
                step=i,
                seconds=float(seconds[i]),
                step_ms=float(times[i]),
                loss=float(losses[i]),
                loss_scale=float(scales[i]),
                loss_scale_after=after[i],
                overflow=bool(overflows[i]),
                skipped=bool(overflows[i]),
                grad_norm=float(3.0 * sizes[i]),
                grad_amax=float(sizes[i]),
                learning_rate=0.05,
                samples=32,
                grad_exponents=histograms[i % _SHAPES] if i % _EXPONENTS_EVERY == 0 else (),
                columns=columns,
            )
            for i in rows
        ]
        yield steps, [event for i in rows for event in _events(i, float(scales[i]), after[i], bool(overflows[i]))]


def _histograms(rng: np.random.Generator) -> list[tuple[ExponentCounts, ...]]:
    """Return bell-shaped histograms of 30 exponents for each group, some of them moved."""
    bell = np.exp(-0.5 * ((np.arange(30) - 18) / 4.0) ** 2)
    return [
        tuple(
            ExponentCounts(name, -34 + int(rng.integers(-3, 4)), tuple(rng.poisson(20_000 * bell).tolist()))
            for name in _GROUPS
        )
        for _ in range(_SHAPES)
    ]


def _events(step: int, scale: float, after: float, overflow: bool) -> list[Event]:
    events = []
    if overflow:
        message = f"step {step}: gradients overflowed at loss scale {scale:g} in body.conv; the update was skipped"
        events.append(Event(step, EventKind.OVERFLOW, "body.conv", scale, message))
    if after > scale:
        events.append(Event(step, EventKind.SCALE_UP, "", after, f"step {step}: loss scale grew to {after:g}"))
    elif after < scale:
        events.append(Event(step, EventKind.SCALE_DOWN, "", after, f"step {step}: loss scale fell to {after:g}"))
    return events
