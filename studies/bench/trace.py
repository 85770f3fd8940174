"""What does recording add to a training step?

Equal copies of a task train in turns: one records nothing, one records every step as every run does, one takes gradient
exponents every tenth update besides. Blocks drain when a drain is due, so the copy to the host is in the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from workbench.bench.benchmark import Benchmark, Finding, Request
from workbench.bench.rounds import (
    Estimate,
    interleaved,
    median_of,
    ratio_of,
    timed,
)
from workbench.config import BoostConfig
from workbench.core import devices
from workbench.core.batch import move_batch
from workbench.core.records import Event, StepRecord
from workbench.tasks import Task, load_task
from workbench.training import Boosted, TraceBuffer, training_loop
from workbench.training.setup import prepare

__all__ = ["measure_trace"]

GOAL = 1.003
_FOREVER = 1_000_000_000


def measure_trace(request: Request, *, task: str = "digits-resnet", steps: int = 30) -> list[Finding]:
    """Measure the time of a step with and without its record.

    Args:
        request: Blocks of each side, and the device.
        task: Name of a task.
        steps: Micro-batches of a block.
    """
    device, rounds = request.chosen_device(), request.rounds
    trained = load_task(task)
    sides = [_block_of(trained, device, steps, exponents_every) for exponents_every in (None, 0, 10)]
    rows = interleaved([timed(side) for side in sides], rounds)
    bare, recorded, with_exponents = zip(*rows, strict=True)
    step_ms = 1e3 * sorted(bare)[len(bare) // 2] / steps
    note = f"{task} on {devices.device_name(device)}, {step_ms:.1f} ms per step without a record"
    return [
        Finding("step, recorded / not recorded", "x", ratio_of(recorded, bare), GOAL, note),
        Finding(
            "time in the record's own calls / time of a step",
            "x",
            _own_share(trained, device, steps, rounds),
            GOAL - 1.0,
            "found within its own runs: the ratio above is of two runs, which differ by more",
        ),
        Finding(
            "step, recorded with exponents every 10 / not recorded",
            "x",
            ratio_of(with_exponents, bare),
            None,
            "what `workbench train` does",
        ),
    ]


class _TimedTrace(TraceBuffer):
    """A record that knows how long it has taken.

    Attributes:
        seconds: In all its calls so far.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seconds = 0.0
        super().__init__(*args, **kwargs)

    def record(self, *args: Any, **kwargs: Any) -> None:
        began = time.perf_counter()
        super().record(*args, **kwargs)
        self.seconds += time.perf_counter() - began

    def drain(self) -> tuple[list[StepRecord], list[Event]]:
        began = time.perf_counter()
        drained = super().drain()
        self.seconds += time.perf_counter() - began
        return drained

    def _observe(self, parameters: list[nn.Parameter]) -> None:
        began = time.perf_counter()
        super()._observe(parameters)
        self.seconds += time.perf_counter() - began


def _own_share(task: Task, device: torch.device, steps: int, rounds: int) -> Estimate:
    """Return which share of a step the record's calls take; one block, the first, is not counted."""
    boosted = prepare(task, BoostConfig(), level="O0", seed=0, device=device, steps=_FOREVER).boosted
    trace = _TimedTrace(boosted, exponents_every=0)
    block = _blocks(boosted, task, device, steps, trace)
    block()
    shares = []
    for _ in range(rounds):
        trace.seconds, began = 0.0, time.perf_counter()
        block()
        shares.append(trace.seconds / (time.perf_counter() - began))
    return median_of(shares)


def _block_of(task: Task, device: torch.device, steps: int, exponents_every: int | None) -> Callable[[], None]:
    """Return a function that trains one block; None for ``exponents_every`` records nothing."""
    boosted = prepare(task, BoostConfig(), level="O0", seed=0, device=device, steps=_FOREVER).boosted
    trace = None if exponents_every is None else TraceBuffer(boosted, exponents_every=exponents_every)
    return _blocks(boosted, task, device, steps, trace)


def _blocks(
    boosted: Boosted, task: Task, device: torch.device, steps: int, trace: TraceBuffer | None
) -> Callable[[], None]:
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
    measure_trace,
    rounds=20,
    place=5,
)
