"""Do our own gradient buckets keep up with DistributedDataParallel's?

Two ranks on this machine, joined by gloo, train equal copies of a task in turns: one averages its gradients in buckets
of our own at the end of a window, one is wrapped in DDP, which sends while the backward pass still runs. A third trains
without any exchange: what remains above it is what ranks cost. Rank 0's clock counts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from workbench.bench import Benchmark, Finding, Request, interleaved, ratio_of
from workbench.config import BoostConfig
from workbench.core import devices
from workbench.core import distributed as ranks
from workbench.tasks import load_task
from workbench.training import apply
from workbench.training.setup import seed_everything

from .ranks import answer_of_ranks

_RANKS = 2


def measure(request: Request, *, task: str = "digits-resnet", steps: int = 20) -> list[Finding]:
    """Measure a step of two ranks with our buckets, with DDP, and without exchange, in blocks of so many batches."""
    rows = answer_of_ranks(__name__, _RANKS, task, request.rounds, steps)
    buckets, ddp, alone = zip(*rows, strict=True)
    note = f"{task}, {_RANKS} gloo ranks with one thread each on {devices.usable_cores()} cores"
    return [
        Finding("step, own buckets / DDP", "x", ratio_of(buckets, ddp), None, note),
        Finding("step, own buckets / no exchange", "x", ratio_of(buckets, alone), None, note),
        Finding("step, DDP / no exchange", "x", ratio_of(ddp, alone), None, note),
    ]


def run_rank() -> None:
    """Measure on this rank, with task, rounds and steps from the command line; rank 0 prints a row per round."""
    task, rounds, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    with ranks.joined("cpu"):
        sides = [_block_of(task, steps, exchange) for exchange in ("buckets", "ddp", "none")]
        rows = interleaved(sides, rounds)
        if ranks.rank() == 0:
            print(json.dumps(rows))


def _block_of(name: str, steps: int, exchange: str) -> Callable[[], float]:
    """Return a function that trains one block and returns its time, seconds."""
    task = load_task(name)
    seed_everything(0)
    model = task.new_model()
    boosted = apply(BoostConfig(), model, task.new_optimizer(model), level="O0", seed=0)
    network: Any = boosted.model if exchange == "none" else boosted.distribute(ddp=exchange == "ddp")
    batches = task.batches(0)

    def block() -> float:
        given = [next(batches) for _ in range(steps)]
        ranks.barrier()
        began = time.perf_counter()
        for batch in given:
            with boosted.autocast():
                loss = task.compute_loss(network, batch)
            boosted.backward(loss)
            boosted.step()
        ranks.barrier()
        return time.perf_counter() - began

    return block


BENCHMARK = Benchmark(
    "reduction",
    "Do our own gradient buckets keep up with DDP's?",
    measure,
    rounds=20,
    place=6,
    quick=True,
    shown=("step, own buckets / DDP",),
)
