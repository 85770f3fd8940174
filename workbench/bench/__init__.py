"""The bench: how fast is it here, and what does it cost? Each benchmark answers one question with an interval.

Two things are never timed one after the other: sides take turns within one process (``bench.rounds``), so that a busy
machine slows them alike. The questions are the files of ``studies/bench`` (``bench.questions``). Nothing here runs with
the tests, other than at sizes too small to mean anything.
"""

from __future__ import annotations

from workbench.bench.benchmark import Answer, Benchmark, Finding, Request, run_benchmark
from workbench.bench.contest import Side, Sides, contest, is_installed, require_equal
from workbench.bench.questions import BenchError, benchmarks, chosen
from workbench.bench.rounds import Estimate, interleaved, median_of, median_of_copies, ratio_of, timed
from workbench.training.speed import fair_clock

__all__ = [
    "Answer",
    "BenchError",
    "Benchmark",
    "Estimate",
    "Finding",
    "Request",
    "Side",
    "Sides",
    "benchmarks",
    "chosen",
    "contest",
    "fair_clock",
    "interleaved",
    "is_installed",
    "median_of",
    "median_of_copies",
    "ratio_of",
    "require_equal",
    "run_benchmark",
    "timed",
]
