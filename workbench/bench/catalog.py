"""The benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from workbench.bench.accumulation import measure_accumulation
from workbench.bench.adasum import measure_adasum
from workbench.bench.benchmark import Benchmark, Finding, Request
from workbench.bench.captured_step import measure_captured_step
from workbench.bench.dim_reduce import measure_dim_reduce
from workbench.bench.freezing import measure_freezing
from workbench.bench.gradient_reduction import measure_reduction
from workbench.bench.host_adam import measure_host_adam
from workbench.bench.host_waits import measure_host_waits
from workbench.bench.large_levels import measure_large_levels
from workbench.bench.less_bn import measure_less_bn
from workbench.bench.levels import measure_levels
from workbench.bench.live_panel import measure_live_panel
from workbench.bench.loss_scale import measure_loss_scale
from workbench.bench.offload import measure_offload
from workbench.bench.online import measure_online
from workbench.bench.opened_run import measure_open_run
from workbench.bench.panel_handlers import measure_handlers
from workbench.bench.principal_components import measure_pca
from workbench.bench.second_order import measure_thor
from workbench.bench.study_overhead import measure_study_overhead
from workbench.bench.trace_cost import measure_trace

__all__ = ["BENCHMARKS", "BenchError", "chosen"]

ALL: Final = "all"

GROUPS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "accelerator": ("large_levels", "host_waits", "captured_step", "offload"),
        "panels": ("live_panel", "panel_handlers", "open_run"),
    }
)
"""Names that mean several benchmarks."""


def _in_rounds(measure: Callable[[int], Sequence[Finding]]) -> Callable[[Request], Sequence[Finding]]:
    """Return a measurement that needs to know nothing but its rounds."""
    return lambda request: measure(request.rounds)


_IN_ORDER: Final = (
    Benchmark(
        "levels",
        "How much faster than O0 is a step of O1, and of what the studies have exported?",
        measure_levels,
        rounds=9,
        quick=False,
    ),
    Benchmark(
        "freeze",
        "Does gradient freezing cost what its schedule promises, and no more?",
        measure_freezing,
        rounds=7,
        quick=False,
    ),
    Benchmark(
        "less_bn",
        "Does LessBN cost what a network without those BatchNorms costs?",
        measure_less_bn,
        rounds=15,
        quick=False,
    ),
    Benchmark(
        "accumulation",
        "Does accumulation over micro-batches cost more than letting gradients add up in `.grad`?",
        measure_accumulation,
        rounds=25,
    ),
    Benchmark(
        "trace",
        "What does recording add to a training step?",
        measure_trace,
        rounds=20,
    ),
    Benchmark(
        "reduction",
        "Do our own gradient buckets keep up with DDP's?",
        _in_rounds(measure_reduction),
        rounds=20,
    ),
    Benchmark(
        "loss_scale",
        "What does a loss scale cost beside torch's GradScaler, and beside none?",
        measure_loss_scale,
        rounds=15,
        quick=False,
    ),
    Benchmark("adam", "How fast is Adam on the host?", measure_host_adam, rounds=15, quick=False),
    Benchmark(
        "offload",
        "Does Adam on the host slow a training on an accelerator?",
        measure_offload,
        rounds=7,
        quick=False,
    ),
    Benchmark(
        "large_levels",
        "How much faster than O0 are O1 and what the studies have exported, on networks of an accelerator's size?",
        measure_large_levels,
        rounds=7,
        quick=False,
    ),
    Benchmark(
        "host_waits",
        "Does the host wait for an accelerator in a training step?",
        measure_host_waits,
        rounds=1,
        quick=False,
    ),
    Benchmark(
        "captured_step",
        "Does a whole step fit into a CUDA graph, and what does a replay save?",
        measure_captured_step,
        rounds=15,
        quick=False,
    ),
    Benchmark(
        "adasum",
        "What does AdaSum cost beside its formula and beside an all-reduce?",
        measure_adasum,
        rounds=15,
        quick=False,
    ),
    Benchmark(
        "pca",
        "How fast are principal components of few snapshots, and in how much memory?",
        measure_pca,
        rounds=3,
        quick=False,
    ),
    Benchmark(
        "dim_reduce",
        "What does a step of DimReduce cost beside one of SGD?",
        measure_dim_reduce,
        rounds=15,
        quick=False,
    ),
    Benchmark("thor", "What do a step and a refresh of THOR cost?", measure_thor, rounds=7, quick=False),
    Benchmark(
        "online",
        "What does an online step cost beside a row-wise loop by hand?",
        measure_online,
        rounds=15,
        quick=False,
    ),
    Benchmark(
        "study",
        "What does a trial cost beside its training and evaluation?",
        _in_rounds(measure_study_overhead),
        rounds=1,
        quick=False,
    ),
    Benchmark(
        "live_panel",
        "Does a live Train panel slow the training it shows?",
        _in_rounds(measure_live_panel),
        rounds=10,
    ),
    Benchmark(
        "panel_handlers",
        "How long does a click or an edit keep the kernel?",
        _in_rounds(measure_handlers),
        rounds=10,
    ),
    Benchmark(
        "open_run",
        "How soon is a recorded run of a million steps on show, and 50 policies replayed on it?",
        _in_rounds(measure_open_run),
        rounds=7,
        quick=False,
    ),
)

BENCHMARKS: Final[Mapping[str, Benchmark]] = MappingProxyType({benchmark.name: benchmark for benchmark in _IN_ORDER})
"""Every benchmark there is, by name."""


class BenchError(ValueError):
    """A benchmark that does not exist was asked for."""


def chosen(names: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks that are meant.

    Args:
        names: Names; ``"panels"`` means those of the panels, ``"accelerator"`` those that need one, ``"all"`` every
            one, no name the quick ones.

    Raises:
        BenchError: When a name is unknown.
    """
    if not names:
        return [benchmark for benchmark in BENCHMARKS.values() if benchmark.quick]
    meant = [one for name in names for one in GROUPS.get(name, (name,))]
    unknown = [name for name in meant if name != ALL and name not in BENCHMARKS]
    if unknown:
        there = ", ".join((*BENCHMARKS, *GROUPS))
        raise BenchError(f"no benchmark is called {unknown[0]!r}; there are {there}, or {ALL!r}")
    return list(BENCHMARKS.values()) if ALL in meant else [BENCHMARKS[name] for name in dict.fromkeys(meant)]
