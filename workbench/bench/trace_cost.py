"""What does recording add to a training step?

Equal copies of a task train in turns: one records nothing, one records every step as every run does, one takes gradient
exponents every tenth update besides. Blocks drain when a drain is due, so the copy to the host is in the time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from workbench import devices
from workbench.bench.benchmark import Finding
from workbench.bench.rounds import interleaved, ratio_of, timed
from workbench.config import BoostConfig
from workbench.experiments.setup import prepare
from workbench.tasks import Task, load_task, move_batch
from workbench.training import TraceBuffer, training_loop

__all__ = ["measure_trace"]

GOAL = 1.003
_FOREVER = 1_000_000_000


def measure_trace(rounds: int, *, task: str = "digits-resnet", steps: int = 30) -> list[Finding]:
    """Measure the time of a step with and without its record.

    Args:
        rounds: Blocks of each side.
        task: Name of a task.
        steps: Micro-batches of a block.
    """
    device = devices.select_device("auto")
    trained = load_task(task)
    sides = [_block_of(trained, device, steps, exponents_every) for exponents_every in (None, 0, 10)]
    rows = interleaved([timed(side) for side in sides], rounds)
    bare, recorded, with_exponents = zip(*rows, strict=True)
    step_ms = 1e3 * sorted(bare)[len(bare) // 2] / steps
    note = f"{task} on {devices.device_name(device)}, {step_ms:.1f} ms per step without a record"
    return [
        Finding("step, recorded / not recorded", "x", ratio_of(recorded, bare), GOAL, note),
        Finding(
            "step, recorded with exponents every 10 / not recorded",
            "x",
            ratio_of(with_exponents, bare),
            None,
            "what `workbench train` does",
        ),
    ]


def _block_of(task: Task, device: torch.device, steps: int, exponents_every: int | None) -> Callable[[], None]:
    """Return a function that trains one block; None for ``exponents_every`` records nothing."""
    boosted = prepare(task, BoostConfig(), level="O0", seed=0, device=device, steps=_FOREVER).boosted
    trace = None if exponents_every is None else TraceBuffer(boosted, exponents_every=exponents_every)
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
