"""What does recording add to a training step?

Equal copies of a task train in turns: one records nothing, one records every step as every run does, one takes gradient
exponents every tenth update besides. Blocks drain when a drain is due, so the copy to the host is in the time. Two
whole steps differ by more than a record costs, so its own calls are timed, too: what looks at gradients, keeps a row,
drains and writes lines, with exponents every tenth update, on a net whose step takes some 5 ms.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from workbench.bench import Benchmark, Finding, Request, interleaved, median_of, ratio_of, timed
from workbench.config import BoostConfig
from workbench.core import devices
from workbench.core.batch import move_batch
from workbench.core.records import Event, StepRecord
from workbench.runs import RunRecorder
from workbench.tasks import Task, load_task
from workbench.training import Boosted, TraceBuffer, training_loop
from workbench.training.setup import prepare

_GOAL = 1.003
_GOAL_SECONDS = 20e-6  # 0.4 % of a step of 5 ms
_OF_5_MS = "digits-lenet"


def measure(request: Request, *, task: str = "digits-resnet", steps: int = 30) -> list[Finding]:
    """Measure the time of a step with and without its record, in blocks of so many micro-batches."""
    device, rounds = request.chosen_device(), request.rounds
    trained = load_task(task)

    def side(exponents_every: int | None) -> Callable[[], float]:
        boosted = _boosted(trained, device)
        trace = None if exponents_every is None else TraceBuffer(boosted, exponents_every=exponents_every)
        return timed(_block(boosted, trained, device, steps, trace))

    bare, recorded, with_exponents = zip(*interleaved([side(None), side(0), side(10)], rounds), strict=True)
    step_ms = 1e3 * sorted(bare)[len(bare) // 2] / steps
    note = f"{task} on {devices.device_name(device)}, {step_ms:.1f} ms per step without a record"
    own = "found within its own runs: the ratio above is of two runs, which differ by more"
    share = median_of([of_record / of_step for of_record, of_step in _own(trained, device, steps, rounds, 0)])
    seconds = median_of([of_record for of_record, _ in _own(load_task(_OF_5_MS), device, steps, rounds, 10)])
    often = "what `workbench train` does"
    return [
        Finding("step, recorded / not recorded", "x", ratio_of(recorded, bare), _GOAL, note),
        Finding("time in the record's own calls / time of a step", "x", share, _GOAL - 1.0, own),
        Finding("what a step's record takes", "s", seconds, _GOAL_SECONDS, f"{_OF_5_MS}; goal: 0.4 % of 5 ms"),
        Finding(
            "step, recorded with exponents every 10 / not recorded", "x", ratio_of(with_exponents, bare), None, often
        ),
    ]


class _TimedTrace(TraceBuffer):
    """A record that adds up the ``seconds`` in its calls, and in writing what was drained."""

    recorder: RunRecorder

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seconds = 0.0
        super().__init__(*args, **kwargs)
        look = self.boosted.observer
        assert look is not None  # the record looks at gradients

        def timed_look(parameters: list[nn.Parameter]) -> None:
            began = time.perf_counter()
            look(parameters)
            self.seconds += time.perf_counter() - began

        self.boosted.observer = timed_look

    def record(self, *args: Any, **kwargs: Any) -> None:
        began = time.perf_counter()
        super().record(*args, **kwargs)
        self.seconds += time.perf_counter() - began

    def drain(self, mean: object = None) -> tuple[list[StepRecord], list[Event]]:
        began = time.perf_counter()
        drained = super().drain()
        self.recorder.write(*drained)
        self.seconds += time.perf_counter() - began
        return drained


def _own(task: Task, device: torch.device, steps: int, rounds: int, exponents_every: int) -> list[tuple[float, float]]:
    """Return seconds of the record's calls and of all, per step and round; one block, the first, is not counted."""
    boosted = _boosted(task, device)
    trace = _TimedTrace(boosted, exponents_every=exponents_every)
    block = timed(_block(boosted, task, device, steps, trace))
    taken = []
    with tempfile.TemporaryDirectory() as folder, RunRecorder.create(folder, {}, {}) as trace.recorder:
        for _ in range(rounds + 1):
            trace.seconds = 0.0
            of_step = block() / steps
            trace.drain()
            taken.append((trace.seconds / steps, of_step))
    return taken[1:]


def _boosted(task: Task, device: torch.device) -> Boosted:
    return prepare(task, BoostConfig(), level="O0", seed=0, device=device, steps=1_000_000_000).boosted


def _block(
    boosted: Boosted, task: Task, device: torch.device, steps: int, trace: TraceBuffer | None
) -> Callable[[], None]:
    """Return a function that trains one block; without a trace nothing is recorded."""
    batches = (move_batch(batch, device) for batch in task.batches(0))
    loop = training_loop(boosted, task.compute_loss, batches, trace=trace)

    def block() -> None:
        if trace is not None:
            trace.restart_clock()
        for _ in range(steps):
            next(loop)
            if trace is not None and trace.due():
                trace.drain()
        devices.synchronize(device)

    return block


BENCHMARK = Benchmark(
    "trace",
    "What does recording add to a training step?",
    measure,
    rounds=20,
    place=5,
    quick=True,
    shown=("what a step's record",),
)
