"""Where the time of recording a step goes.

`digits-resnet` as the benchmark `trace` trains it, one thread: microseconds per step of the record's own parts,
indented where one is part of another, and of the optimizer's step, which finds gradients in the cache that were looked
at before.

    python studies/bench/trace_profile.py
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from workbench.config import BoostConfig
from workbench.core import devices
from workbench.core.batch import move_batch
from workbench.tasks import load_task
from workbench.training import TraceBuffer, gradient_watch, training_loop
from workbench.training.setup import prepare

STEPS, LAST = 150, 10**9
PARTS = (
    (gradient_watch.GradientWatch, "observe", "look at the gradients"),
    (gradient_watch, "norm_and_maximum_of_finite", "  their norm and maximum"),
    (TraceBuffer, "record", "the row of the trace"),
    (devices, "memory_bytes", "  reading the memory"),
    (TraceBuffer, "drain", "handing out rows"),
)


def timed(work: Callable[..., Any], name: str, taken: dict[str, float]) -> Callable[..., Any]:
    """Return the same function, which adds up the seconds it takes."""

    def measured(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return work(*args, **kwargs)
        finally:
            taken[name] += time.perf_counter() - began

    return measured


def profile(*, recorded: bool) -> dict[str, float]:
    """Return seconds of every part, of the optimizer and of the whole, for all steps."""
    device, task, taken = torch.device("cpu"), load_task("digits-resnet"), defaultdict[str, float](float)
    boosted = prepare(task, BoostConfig(), level="O0", seed=0, device=device, steps=LAST).boosted
    trace = TraceBuffer(boosted, exponents_every=0) if recorded else None
    batches = (move_batch(batch, device) for batch in task.batches(0))
    loop = training_loop(boosted, task.compute_loss, batches, trace=trace)
    patches = [patch.object(boosted.optimizer, "step", timed(boosted.optimizer.step, "optimizer", taken))]
    patches += [patch.object(where, name, timed(getattr(where, name), words, taken)) for where, name, words in PARTS]
    if boosted.observer is not None:  # it was handed over as a bound method, before the class was patched
        patches.append(patch.object(boosted, "observer", timed(boosted.observer, PARTS[0][2], taken)))
    for one in patches:
        one.start()
    try:
        for step in range(STEPS + 10):
            if step == 10:
                taken.clear()
                began = time.perf_counter()
            next(loop)
            if trace is not None and trace.due():
                trace.drain()
    finally:
        for one in patches:
            one.stop()
    taken["whole step"] = time.perf_counter() - began
    return taken


def main() -> None:
    """Print microseconds per step, with and without a record."""
    torch.set_num_threads(1)
    for recorded in (False, True, False, True):
        print("\nrecorded" if recorded else "\nnot recorded")
        taken = profile(recorded=recorded)
        for name in (*(words for _, _, words in PARTS), "optimizer", "whole step"):
            if name in taken:
                print(f"  {name:<32} {1e6 * taken[name] / STEPS:9.0f}")


if __name__ == "__main__":
    main()
