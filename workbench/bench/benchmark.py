"""What a benchmark is, and its answer together with everything needed to judge it: machine, versions, load."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import psutil
import torch

from workbench.bench.rounds import Estimate
from workbench.core import devices
from workbench.core.other_work import OtherWork
from workbench.runs import collect_environment

_BUSY = 0.1  # share of all cores that other processes took meanwhile, from which an answer is called noisy
_OF_A_RUN = ("schema_version", "task", "level", "seed", "data_hash")  # in an environment: not of a machine


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
        """Set torch's number of threads to each count in turn and yield it in words; restore it at the end."""
        before = torch.get_num_threads()
        accelerated = self.chosen_device().type != "cpu"
        counts = (before,) if accelerated else self.threads or tuple(dict.fromkeys((1, devices.usable_cores())))
        try:
            for count in counts:
                torch.set_num_threads(count)
                yield devices.device_name(self.chosen_device()) if accelerated else f"{count} thread{'s' * (count > 1)}"
        finally:
            torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class Finding:
    """One measured number, the smaller the better: a ratio (``"x"``), seconds (``"s"``) or a number of times.

    Without an estimate ``why_not`` says why: ``"absent"`` where what should be measured is not installed or not at
    hand, ``"differs"`` where its results are not those of the base, so that its time would mean nothing. The goal is
    the largest number that is good enough.
    """

    what: str
    unit: Literal["x", "s", "count"]
    estimate: Estimate | None
    goal: float | None = None
    note: str = ""
    why_not: Literal["absent", "differs", ""] = ""

    @property
    def verdict(self) -> Literal["met", "missed", "unclear", "absent", "differs", ""]:
        """``"met"`` when the whole interval is within the goal, ``"missed"`` when none of it is, else ``"unclear"``."""
        if self.estimate is None:
            return self.why_not
        if self.goal is None:
            return ""
        if self.estimate.high <= self.goal:
            return "met"
        return "missed" if self.estimate.low > self.goal else "unclear"

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain values for a JSON file."""
        numbers = {"value": None, "low": None, "high": None, "rounds": 0}
        if self.estimate is not None:
            numbers = asdict(self.estimate)
        told = {"goal": self.goal, "verdict": self.verdict, "note": self.note}
        return {"what": self.what, "unit": self.unit, **numbers, **told}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A question, in one sentence, and the function that answers it.

    ``rounds`` is the number taken when no other is asked for. A ``quick`` benchmark takes about a minute or less on two
    cores and runs when none is named. ``group`` names this one and others together; ``place`` is its position in lists
    and tables. ``shown`` holds the beginnings of the lines that a user would understand: these are on the page, and in
    the terminal when no benchmark is named; all others are in the JSON file only.
    """

    name: str
    question: str
    measure: Callable[[Request], Sequence[Finding]]
    rounds: int
    place: int = 1000
    group: str = ""
    quick: bool = False
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a benchmark found, with the command that asks it again, the seconds it took, the machine and its versions.

    ``load_average`` has the last minute's before and after, whatever caused it, and the cores we may use;
    ``cores_of_others`` is the number of cores that other processes kept busy meanwhile, on average, other machines on
    the same host included where the system reports them (steal time).
    """

    name: str
    question: str
    findings: tuple[Finding, ...]
    command: str
    seconds: float
    load_average: dict[str, float]
    cores_of_others: float
    environment: dict[str, Any]

    @property
    def warning(self) -> str:
        """A sentence when other processes used the machine during the measurement; otherwise empty."""
        cores = self.load_average["cores"]
        if self.cores_of_others <= _BUSY * cores:
            return ""
        return (
            f"The machine was busy: others took {self.cores_of_others:.1f} of {cores:g} cores while {self.name} ran. "
            "Sides that take turns suffer alike, so ratios hold within their intervals; seconds are too large."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values for a JSON file."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        findings = [finding.to_dict() for finding in self.findings]
        return {**fields, "findings": findings, "warning": self.warning}


def run_benchmark(
    benchmark: Benchmark, rounds: int | None = None, *, peers: bool = False, device: torch.device | None = None
) -> Answer:
    """Ask a benchmark's question here and now, in its own number of rounds if ``rounds`` is None.

    Raises:
        ValueError: If ``rounds`` is not at least 1.
    """
    rounds = benchmark.rounds if rounds is None else rounds
    if not rounds >= 1:
        raise ValueError(f"`rounds` must be at least 1, got {rounds!r}")
    load, other, began = psutil.getloadavg()[0], OtherWork(), time.perf_counter()
    findings = tuple(benchmark.measure(Request(rounds, peers, device)))
    seconds = time.perf_counter() - began
    others = other.cores()
    loads = {"before": load, "after": psutil.getloadavg()[0], "cores": devices.usable_cores()}
    command = f"workbench bench {benchmark.name} --rounds {rounds}{' --peers' * peers}"
    command += "" if device is None else f" --device {device}"
    environment = collect_environment(device=devices.hardware_summary())
    environment = {name: value for name, value in environment.items() if name not in _OF_A_RUN}
    about = benchmark.name, benchmark.question
    return Answer(*about, findings, command, round(seconds, 1), loads, round(others, 2), environment)
