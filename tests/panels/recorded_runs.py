"""Recorded runs whose numbers tests know, without training: a gradient that overflows above a known scale."""

from __future__ import annotations

from pathlib import Path

from workbench.config import BoostConfig
from workbench.core.records import ExponentCounts, StepRecord
from workbench.loss_scale import ScalePolicy, simulate
from workbench.runs import SCHEMA_VERSION, RunRecorder

__all__ = ["POLICY", "recorded_run"]

POLICY = ScalePolicy(init=2.0**20, factor=2.0, window=10)
LIMIT = 2.0**16  # the largest scale that does not overflow


def recorded_run(
    folder: Path,
    n_steps: int = 60,
    *,
    run_id: str = "run",
    finish: bool = True,
    exponents: bool = True,
    sizes: bool = True,
    watched: bool = True,
    groups: bool = False,
    schema_version: int = SCHEMA_VERSION,
) -> Path:
    """Record a run in a folder and return its directory.

    One that does not ``finish`` looks killed, and in one that is not ``watched`` by a loss scale nothing overflows;
    ``exponents`` and ``sizes`` are those of gradients, the former of every fifth step.
    """
    rule = {"kind": "dynamic", "init": POLICY.init, "factor": POLICY.factor, "window": POLICY.window}
    values = {"boost": {"mode": "manual"}, "amp": {"level": "O2"}, "loss_scale": rule}
    if groups:
        values["boost"]["loss_scale_group"] = True  # type: ignore[assignment]
    config = BoostConfig.from_dict(values if watched else {})
    trace = simulate([LIMIT] * n_steps, [POLICY]).trace(0)
    scales, hits = trace.per_step().tolist(), set(trace.overflow_steps.tolist())
    steps = [
        StepRecord(
            step=i,
            seconds=0.01 * i,
            step_ms=10.0,
            loss=1.0,
            loss_scale=scales[i] if watched else 1.0,
            loss_scale_after=(scales[i + 1] if i + 1 < n_steps else scales[i]) if watched else 1.0,
            overflow=watched and i in hits,
            skipped=watched and i in hits,
            grad_amax=65504.0 / LIMIT if sizes else float("nan"),
            group_scales=(scales[i], 2 * scales[i]) if groups else (),
            grad_exponents=(ExponentCounts("all", -30, (10, 0, 90)),) if exponents and i % 5 == 0 else (),
        )
        for i in range(n_steps)
    ]
    environment = {"task": "toy", "level": "O1", "steps": n_steps, "schema_version": schema_version}
    recorder = RunRecorder.create(folder, config.to_dict(), environment, run_id)
    recorder.write(steps, [])
    if finish:
        recorder.finish({"state": "finished"})
    else:
        recorder.close()
    return recorder.path
