"""The benchmarks by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from workbench.bench.benchmark import Benchmark
from workbench.bench.gradient_reduction import measure_reduction
from workbench.bench.live_panel import measure_live_panel
from workbench.bench.opened_run import measure_open_run
from workbench.bench.panel_handlers import measure_handlers
from workbench.bench.study_overhead import measure_study_overhead
from workbench.bench.trace_cost import measure_trace

__all__ = ["BENCHMARKS", "BenchError", "chosen"]

ALL: Final = "all"

BENCHMARKS: Final[Mapping[str, Benchmark]] = MappingProxyType(
    {
        benchmark.name: benchmark
        for benchmark in (
            Benchmark("live_panel", "Does a live Train panel slow the training it shows?", measure_live_panel, 10),
            Benchmark("panel_handlers", "How long does a click or an edit keep the kernel?", measure_handlers, 10),
            Benchmark("trace", "What does recording add to a training step?", measure_trace, 20),
            Benchmark("reduction", "Do our own gradient buckets keep up with DDP's?", measure_reduction, 20),
            Benchmark(
                "open_run",
                "How soon is a recorded run of a million steps on show, and 50 policies replayed on it?",
                measure_open_run,
                7,
                quick=False,
            ),
            Benchmark(
                "study_overhead",
                "What does a trial cost beside its training and evaluation?",
                measure_study_overhead,
                1,
                quick=False,
            ),
        )
    }
)
"""Every benchmark there is, by name."""


class BenchError(ValueError):
    """A benchmark that does not exist was asked for."""


def chosen(names: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks that are meant.

    Args:
        names: Names; ``"all"`` means every one, no name the quick ones.

    Raises:
        BenchError: When a name is unknown.
    """
    if not names:
        return [benchmark for benchmark in BENCHMARKS.values() if benchmark.quick]
    unknown = [name for name in names if name != ALL and name not in BENCHMARKS]
    if unknown:
        raise BenchError(f"no benchmark is called {unknown[0]!r}; there are {', '.join(BENCHMARKS)}, or {ALL!r}")
    return list(BENCHMARKS.values()) if ALL in names else [BENCHMARKS[name] for name in dict.fromkeys(names)]
