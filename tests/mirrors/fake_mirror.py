"""A mirror that keeps what it is given, and fails, hangs or refuses where a test asks for it; and a run to mirror."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.config import BoostConfig
from workbench.core.records import Event, EventKind, StepRecord
from workbench.runs import RunRecorder
from workbench.runs.mirrors import Mirror, MirroredRun
from workbench.runs.mirrors.selection import Point

STEPS = 40
SUMMARY = {
    "state": "finished",
    "in_effect": "freezing (frozen steps: 30 %)",
    "metric_name": "accuracy",
    "metric": 0.875,
    "steps": STEPS,
    "seconds": 4.0,
    "overflows": 4,
    "final_loss": 0.5,
    "final_loss_scale": 256.0,
    "message": "",
}
CONFIG = BoostConfig.from_dict({"boost": {"mode": "manual", "grad_freeze": True}, "grad_freeze": {"freeze_p": 0.7}})
ENVIRONMENT = {"task": "wine", "level": "O1", "seed": 3, "steps": STEPS, "device": {"type": "cpu", "name": "a chip"}}


def steps_of_a_run(n: int = STEPS) -> list[StepRecord]:
    """Return steps that take 100 ms each, of which every tenth overflows."""
    return [
        StepRecord(
            step=i,
            seconds=0.1 * i,
            step_ms=100.0,
            loss=2.0 / (i + 1),
            loss_scale=1024.0,
            loss_scale_after=512.0 if i % 10 == 9 else 1024.0,
            overflow=i % 10 == 9,
            grad_norm=0.25,
            learning_rate=0.1,
            memory_bytes=1000,
            columns={"time.forward": 60.0, "dim_reduce.rho": 0.5},
        )
        for i in range(n)
    ]


def events_of_a_run() -> list[Event]:
    """Return an overflow with its sentence, and two evaluations."""
    return [
        Event(9, EventKind.OVERFLOW, "head", 1024.0, "step 9: head overflowed at 1024"),
        Event(19, EventKind.EVALUATION, "accuracy", 0.75, "accuracy 0.75 after 20 steps"),
        Event(39, EventKind.EVALUATION, "accuracy", 0.875, "accuracy 0.875 after 40 steps"),
    ]


def record_run(root: Path, run_id: str = "run", *, finished: bool = True) -> Path:
    """Write a run directory."""
    recorder = RunRecorder.create(root, CONFIG.to_dict(), ENVIRONMENT, run_id)
    recorder.write(steps_of_a_run(), events_of_a_run())
    if finished:
        recorder.finish(SUMMARY)
    else:
        recorder.close()
    return recorder.path


def values_of(points: Iterable[Point], name: str) -> list[tuple[int, float]]:
    """Return each value of a number that was sent, with its step."""
    return [(point.step, point.values[name]) for point in points if name in point.values]


class FakeMirror(Mirror):
    """Keeps everything in memory; one block may raise, and each may wait for a gate."""

    def __init__(self, *, fails_at: int | None = None, gate: threading.Event | None = None) -> None:
        self.fails_at = fails_at
        self.gate = gate
        self.blocks = 0
        self.points: list[Point] = []
        self.events: list[Event] = []
        self.runs: list[MirroredRun] = []
        self.summaries: list[dict[str, Any]] = []
        self.complete: set[str] = set()

    def __str__(self) -> str:
        return "a fake"

    def check(self) -> None:
        """Nothing is needed."""

    def has(self, run: MirroredRun) -> bool:
        return run.name in self.complete

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.summaries.append(dict(summary))
        if summary:
            self.complete.add(self.runs[-1].name)

    def _begin(self, run: MirroredRun) -> None:
        self.runs.append(run)

    def _write(self, points: Sequence[Point], events: Sequence[Event]) -> None:
        if self.gate is not None:
            self.gate.wait()
        self.blocks += 1
        if self.blocks == self.fails_at:
            raise ConnectionError("https://me:secret@mirror.example went away")
        self.points += points
        self.events += events
