"""What do runs add to a plain loop, where a step is short and a DataLoader of the user's own reads the batches?

Two layers, 32 rows, one thread: about half a millisecond, of which reading takes a third. A run keeps the random
numbers of its data apart from those of its model, records its losses and watches the time; the loop does nothing of
that. What a run adds, task and set-up bear alike, so that a search's ratios of such a network are too small by it.
"""

from __future__ import annotations

import time
from itertools import islice

import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from workbench import BoostConfig, Task
from workbench.bench import Benchmark, Finding, Request, median_of_copies
from workbench.config.run_request import RunRequest
from workbench.training.run import run_task

_INPUTS, _ROWS, _SAMPLES = 16, 32, 2048
_CPU = torch.device("cpu")


def _task() -> Task:
    x = torch.randn(_SAMPLES, _INPUTS, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] * x[:, 1] > 0).long()
    return Task(
        name="short steps",
        model=lambda: nn.Sequential(nn.Linear(_INPUTS, 64), nn.ReLU(), nn.Linear(64, 2)),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda named: SGD(named, lr=0.05, fused=True),
        train=DataLoader(TensorDataset(x, y), _ROWS, shuffle=True),
        evaluate=[(x, y)],
        metric="accuracy",
    )


def _loop(task: Task, steps: int) -> float:
    """Return the seconds of a plain loop."""
    model = task.new_model()
    optimizer = task.new_optimizer(model)
    began, done = time.perf_counter(), 0
    while done < steps:
        for x, y in islice(task.train, steps - done):
            optimizer.zero_grad()
            task.loss(model(x), y).backward()
            optimizer.step()
            done += 1
    return time.perf_counter() - began


def _run(task: Task, steps: int) -> float:
    """Return the seconds of a run that records nothing on disk, as those of a search."""
    return run_task(task, RunRequest(BoostConfig(), "O0", steps=steps), device=_CPU).seconds


def _reading(task: Task, steps: int) -> float:
    """Return the seconds in which a run's batches are read."""
    began, batches = time.perf_counter(), task.batches(0)
    for _ in range(steps):
        next(batches)
    return time.perf_counter() - began


def _plain_reading(task: Task, steps: int) -> float:
    began, done = time.perf_counter(), 0
    while done < steps:
        for _ in islice(task.train, steps - done):
            done += 1
    return time.perf_counter() - began


def measure(request: Request, *, steps: int = 640) -> list[Finding]:
    """Measure runs beside plain loops, and the reading of their batches, in turn."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        task, found = _task(), list[Finding]()
        for what, ours, theirs in (
            ("a run behind a DataLoader: ours / plain loop", _run, _loop),
            ("reading its batches: ours / the DataLoader", _reading, _plain_reading),
        ):
            ours(task, steps)
            ratios = [[ours(task, steps) / theirs(task, steps)] for _ in range(request.rounds)]
            found.append(Finding(what, "x", median_of_copies(ratios), None, f"2 layers, {_ROWS} rows"))
    finally:
        torch.set_num_threads(threads)
    return found


BENCHMARK = Benchmark(
    "run_cost",
    "What do runs, and the reading of their batches, add to a plain loop of short steps?",
    measure,
    rounds=12,
)
