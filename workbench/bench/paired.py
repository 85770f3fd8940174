"""Steps of networks timed side by side, on a machine that others use, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from workbench import devices
from workbench.bench.benchmark import Finding
from workbench.bench.contest import Side
from workbench.bench.rounds import interleaved, ratio_of, timed

__all__ = ["fair_clock", "first_difference", "paired"]


def fair_clock(device: torch.device) -> Callable[[], float]:
    """Return a clock of seconds that only grow.

    One thread on a CPU that never waits: its processor time is its time on a machine that does nothing else, so that is
    counted. Otherwise, time as it passes.

    Args:
        device: Where the work happens.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def first_difference(
    ours: Iterable[tuple[str, Tensor]], theirs: Iterable[tuple[str, Tensor]], *, rtol: float, atol: float
) -> str:
    """Say which of our tensors is not what theirs is; empty when all are.

    Args:
        ours: Names and tensors.
        theirs: Those that count, by the same names.
        rtol: Tolerance relative to theirs.
        atol: Absolute tolerance.
    """
    own, other = dict(ours), dict(theirs)
    if own.keys() != other.keys():
        return f"ours has {len(own)} tensors, theirs {len(other)}, or their names differ"
    for name, value in other.items():
        one, two = own[name].detach().double(), value.detach().double()
        if one.shape != two.shape or not torch.allclose(one, two, rtol=rtol, atol=atol):
            return f"{name} differs"
    return ""


def paired(
    what: str,
    base: Side,
    sides: Mapping[str, Side],
    *,
    named: str,
    rounds: int,
    repeats: int,
    device: torch.device,
    goal: float | None,
    note: str,
) -> list[Finding]:
    """Return each side's time as a multiple of the base's, the first with the goal; every side has its turn in a round.

    Args:
        what: The line of the table, in a few words.
        base: The side that counts as 1.
        sides: The others by name, ours first.
        named: What the base is.
        rounds: Rounds.
        repeats: How often a side does its work in a turn, so that a turn takes 50 ms or more.
        device: Where the work happens.
        goal: Largest ratio of ours that is good enough.
        note: What else should be known of ours.
    """
    turns = [timed(_turn(side, repeats, device), fair_clock(device)) for side in (base, *sides.values())]
    times: Sequence[tuple[float, ...]] = list(zip(*interleaved(turns, rounds), strict=True))
    return [
        Finding(
            f"{what}: {name} / {named}",
            "x",
            ratio_of(times[number], times[0]),
            goal if number == 1 else None,
            note if number == 1 else "",
        )
        for number, name in enumerate(sides, start=1)
    ]


def _turn(side: Side, repeats: int, device: torch.device) -> Side:
    def turn() -> None:
        for _ in range(repeats):
            side()
        devices.synchronize(device)

    return turn
