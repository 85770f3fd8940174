"""The loss scale's lines of the bench, together: the tail of a step, the whole step, and scales per group."""

from __future__ import annotations

from workbench.bench.benchmark import Benchmark, Finding, Request

from .group_scale_cost import measure_group_scale
from .optimizer_tail import measure_optimizer_tail
from .scaled_step import measure_scaled_step

__all__ = ["measure_loss_scale"]


def measure_loss_scale(request: Request) -> list[Finding]:
    """Measure what a loss scale costs.

    Args:
        request: Rounds, peers, device, threads.
    """
    return [*measure_optimizer_tail(request), *measure_scaled_step(request), *measure_group_scale(request)]


BENCHMARK = Benchmark(
    "loss_scale",
    "What does a loss scale cost beside torch's GradScaler, and beside none?",
    measure_loss_scale,
    rounds=15,
    quick=False,
    place=7,
)
