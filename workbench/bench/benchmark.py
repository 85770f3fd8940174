"""What a benchmark is, and its answer together with everything needed to judge it: machine, versions, load."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import torch

from workbench.bench.rounds import Estimate
from workbench.core import devices
from workbench.runs import collect_environment

__all__ = ["Answer", "Benchmark", "Finding", "Request", "Verdict", "load_warning", "run_benchmark"]

Verdict = Literal["met", "missed", "unclear", "absent", "differs", ""]

_LOADED = 0.5  # load per core, before anything is measured, from which the machine is called busy
_BUSY = 0.1  # share of all cores that other processes took meanwhile, from which an answer is called noisy


@dataclass(frozen=True, slots=True)
class Request:
    """What one call of a benchmark shall do.

    Args:
        rounds: Rounds in which sides take turns.
        peers: Whether other packages that do the same are measured, too, where they are installed.
        device: Where to measure; None takes an accelerator where there is one.
        threads: Threads of torch, one measurement for each number; empty takes one thread, then all cores.
    """

    rounds: int
    peers: bool = False
    device: torch.device | None = None
    threads: tuple[int, ...] = ()

    def chosen_device(self) -> torch.device:
        """Return the device to measure on."""
        return devices.select_device("auto") if self.device is None else self.device

    def each_thread_count(self) -> Iterator[str]:
        """Set torch's number of threads, one after the other, and yield it in words; at the end it is as before."""
        before = torch.get_num_threads()
        accelerated = self.chosen_device().type != "cpu"
        counts = (before,) if accelerated else self.threads or tuple(dict.fromkeys((1, _cores())))
        try:
            for count in counts:
                torch.set_num_threads(count)
                yield devices.device_name(self.chosen_device()) if accelerated else f"{count} thread{'s' * (count > 1)}"
        finally:
            torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class Finding:
    """One measured number.

    Args:
        what: What was measured, in a few words.
        unit: ``"x"`` for a ratio, ``"s"`` for seconds, ``"count"`` for a number of times; smaller is better.
        estimate: The number with its interval; None where nothing could be measured, and ``why_not`` says why.
        goal: Largest number that is good enough; None where none is set.
        note: What else should be known, in a few words.
        why_not: ``"absent"`` where what should be measured is not installed or not at hand, ``"differs"`` where its
            results are not those of the base, so that its time would mean nothing.
    """

    what: str
    unit: Literal["x", "s", "count"]
    estimate: Estimate | None
    goal: float | None = None
    note: str = ""
    why_not: Literal["absent", "differs", ""] = ""

    @property
    def verdict(self) -> Verdict:
        """``"met"`` when the whole interval is within the goal, ``"missed"`` when none of it is, else ``"unclear"``."""
        if self.estimate is None:
            return self.why_not
        if self.goal is None:
            return ""
        if self.estimate.high <= self.goal:
            return "met"
        return "missed" if self.estimate.low > self.goal else "unclear"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A question and how it is answered.

    Args:
        name: Name on the command line.
        question: The question, one sentence.
        measure: Called with what is asked for; returns what was found.
        rounds: Rounds where nobody asks for another number.
        quick: Whether it is run when none is named; about a minute or less on two cores.
        group: Name that means this and others together; empty where there is none.
        place: Place in lists and tables.
    """

    name: str
    question: str
    measure: Callable[[Request], Sequence[Finding]]
    rounds: int
    quick: bool = True
    group: str = ""
    place: int = 1000


@dataclass(frozen=True, slots=True)
class Answer:
    """What a benchmark found, and where.

    Args:
        name: Name of the benchmark.
        question: Its question.
        findings: The numbers.
        command: The command that asks it again.
        seconds: How long it took.
        load_before: Load average of the last minute when it began, whoever caused it; None where the system has none.
        load_after: The same when it ended.
        cores: Cores this process may use.
        others: Cores that other processes kept busy meanwhile, on average, those of other machines on the same host
            included where it tells (steal time).
        environment: Machine and versions.
    """

    name: str
    question: str
    findings: tuple[Finding, ...]
    command: str
    seconds: float
    load_before: float | None
    load_after: float | None
    cores: int
    others: float
    environment: dict[str, Any]

    @property
    def warning(self) -> str:
        """A sentence when other processes had their share of the machine meanwhile; else empty."""
        if self.others <= _BUSY * self.cores:
            return ""
        return (
            f"The machine was busy: others took {self.others:.1f} of {self.cores} cores while {self.name} ran. Sides "
            "that take turns suffer alike, so ratios hold within their intervals; seconds are too large."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values for a JSON file."""
        findings = [
            {
                "what": finding.what,
                "unit": finding.unit,
                **_numbers(finding.estimate),
                "goal": finding.goal,
                "verdict": finding.verdict,
                "note": finding.note,
            }
            for finding in self.findings
        ]
        return {
            "name": self.name,
            "question": self.question,
            "findings": findings,
            "command": self.command,
            "seconds": round(self.seconds, 1),
            "load_average": {"before": self.load_before, "after": self.load_after, "cores": self.cores},
            "cores_of_others": round(self.others, 2),
            "warning": self.warning,
            "environment": self.environment,
        }


def load_warning() -> str:
    """Return a sentence when the machine has much else to do already; else, or where it does not tell, empty.

    Asked once, before the first benchmark: later on the load is that of the benchmarks.
    """
    load, cores = _load(), _cores()
    if load is None or load <= _LOADED * cores:
        return ""
    return (
        f"The machine is busy: load {load:.1f} on {cores} core{'s' * (cores > 1)} in the last minute. Intervals will "
        "be wider than they need be."
    )


def run_benchmark(
    benchmark: Benchmark, rounds: int | None = None, *, peers: bool = False, device: torch.device | None = None
) -> Answer:
    """Ask a benchmark's question here and now.

    Args:
        benchmark: The benchmark.
        rounds: Rounds; None takes the benchmark's own.
        peers: Whether other packages are measured, too, where they are installed.
        device: Where to measure; None takes an accelerator where there is one.

    Raises:
        ValueError: If ``rounds`` is not at least 1.
    """
    rounds = benchmark.rounds if rounds is None else rounds
    if not rounds >= 1:
        raise ValueError(f"`rounds` must be at least 1, got {rounds!r}")
    load_before, busy_before, began = _load(), _others_seconds(), time.perf_counter()
    findings = tuple(benchmark.measure(Request(rounds, peers, device)))
    seconds, busy_after = time.perf_counter() - began, _others_seconds()
    others = max(busy_after - busy_before, 0.0) / max(seconds, 1e-9)
    command = ["workbench bench", benchmark.name, "--rounds", str(rounds)]
    command += ["--peers"] * peers + ([] if device is None else ["--device", str(device)])
    hardware = devices.hardware_summary()
    environment = collect_environment(device=hardware)
    # What describes a run, not a machine, is empty here.
    for name in ("schema_version", "task", "level", "seed", "data_hash"):
        environment.pop(name, None)
    return Answer(
        benchmark.name,
        benchmark.question,
        findings,
        " ".join(command),
        seconds,
        load_before,
        _load(),
        int(hardware["cpu_cores_usable"]),
        others,
        environment,
    )


def _numbers(estimate: Estimate | None) -> dict[str, float | None]:
    if estimate is None:
        return {"value": None, "low": None, "high": None, "rounds": 0}
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "rounds": estimate.rounds}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _others_seconds() -> float:
    """Return the seconds of processor time since the machine's start that were not this process's or its children's."""
    machine = psutil.cpu_times()
    kinds = ("user", "nice", "system", "irq", "softirq", "steal")
    busy: float = sum(getattr(machine, kind, 0.0) for kind in kinds)
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        try:
            own = process.cpu_times()
        except psutil.NoSuchProcess:  # ended and waited for meanwhile: its parent has its time
            continue
        busy -= own.user + own.system + getattr(own, "children_user", 0.0) + getattr(own, "children_system", 0.0)
    return busy
