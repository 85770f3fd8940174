"""Ours against a base that does the same, with whatever else does it, and the limit of the machine.

Results first: sides whose results differ are not timed. Then each side repeats its work until a turn takes 50 ms, and
the sides take turns round by round; every number is a median of ratios taken within rounds. Every four rounds all
sides are made anew: where the arrays of one come to lie moves it by some percent against the others.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from workbench.bench.benchmark import Finding
from workbench.bench.operations import operations_of
from workbench.bench.rounds import Estimate, interleaved, median_of_copies
from workbench.core import devices

__all__ = ["Side", "Sides", "contest", "is_installed", "require_equal", "require_same"]

Side = Callable[[], object]
"""Does the work once; it may be called any number of times."""

_LEAST_SECONDS = 0.05
_ROUNDS_PER_COPY = 4  # as many in one order as in the other


@dataclass(frozen=True, slots=True)
class Sides:
    """Who takes turns.

    Args:
        ours: Our side.
        base: The side that counts as 1.
        limit: What the work cannot be done without, say reading and writing the same bytes; None where it is not known.
        peers: Other ways to do it by name; None stands for one that is not installed.
    """

    ours: Side
    base: Side
    limit: Side | None = None
    peers: Mapping[str, Side | None] = field(default_factory=dict)


class _DifferentResultsError(Exception):
    """Two sides do not compute the same."""


def require_equal(ours: torch.Tensor, theirs: torch.Tensor, what: str, *, rtol: float, atol: float) -> None:
    """See that two results are the same, within a tolerance; to be called by the guard of a contest.

    Args:
        ours: A result, any shape.
        theirs: The base's, same shape.
        what: What they are, for the sentence.
        rtol: Tolerance relative to ``theirs``.
        atol: Absolute tolerance.
    """
    one, other = ours.detach().double(), theirs.detach().double()
    if one.shape != other.shape:
        raise _DifferentResultsError(f"{what}: shape {tuple(one.shape)} against {tuple(other.shape)}")
    excess = (one - other).abs() - rtol * other.abs()
    if not bool((excess <= atol).all()):  # also when there are NaNs
        raise _DifferentResultsError(f"{what} differs by up to {float((one - other).abs().max()):.3g}")


def require_same(
    ours: Iterable[tuple[str, torch.Tensor]], theirs: Iterable[tuple[str, torch.Tensor]], *, rtol: float, atol: float
) -> None:
    """See that tensors of the same names are the same, within a tolerance; to be called by the guard of a contest.

    Args:
        ours: Names and tensors.
        theirs: The base's.
        rtol: Tolerance relative to ``theirs``.
        atol: Absolute tolerance.
    """
    own, other = dict(ours), dict(theirs)
    if own.keys() != other.keys():
        raise _DifferentResultsError(f"ours has {len(own)} tensors, theirs {len(other)}, or their names differ")
    for name, value in other.items():
        require_equal(own[name], value, name, rtol=rtol, atol=atol)


def is_installed(package: str) -> bool:
    """Return whether a peer can be imported."""
    return importlib.util.find_spec(package) is not None


def contest(
    what: str,
    make: Callable[[], Sides],
    *,
    rounds: int,
    named: str = "base",
    goal: float | None = None,
    guard: Callable[[], None] | None = None,
    note: str = "",
    device: torch.device | None = None,
    repeats: int | None = None,
    least_seconds: float = _LEAST_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
    counted: bool = False,
) -> list[Finding]:
    """Measure how long ours takes as a multiple of the base.

    Args:
        what: The line of the table, in a few words.
        make: Makes all sides, which share nothing that one of them writes; called every few rounds.
        rounds: Rounds in which all sides take turns, every other round in reverse order.
        named: What the base is, for ``ours / base``.
        goal: Largest ratio that is good enough; None where none is set.
        guard: Sees that the results are the same, with ``require_equal``; None where sides compute different things.
        note: What else should be known.
        device: Where the work happens; its queue is emptied before and after every turn.
        repeats: How often a side does its work in a turn; None finds it out.
        least_seconds: Least time of a turn, where it is found out.
        clock: Seconds that only grow.
        counted: Whether torch's operations are counted, too, whatever their sizes: of sides that should do the same
            this tells who does more of them.

    Returns:
        Ours, the limit and the peers, each as a multiple of the base. Where results differ, that alone.
    """
    if guard is not None:
        try:
            guard()
        except _DifferentResultsError as error:
            return [Finding(f"{what}: ours / {named}", "x", None, goal, str(error), "differs")]
    timing = _Timing(device or torch.device("cpu"), clock, least_seconds, repeats)
    ratios: dict[str, list[list[float]]] = {}
    sides = make()
    for first in range(0, rounds, _ROUNDS_PER_COPY):
        if first:
            sides = make()  # while the ones before are there, or the new arrays would come to lie in their places
        times = timing.of(_present(sides), min(_ROUNDS_PER_COPY, rounds - first))
        for name, seconds in times.items():
            ratios.setdefault(name, []).append([one / base for one, base in zip(seconds, times["base"], strict=True)])

    def finding(name: str) -> Finding:
        estimate = median_of_copies(ratios[name]) if name in ratios else None
        if name == "ours":
            return Finding(f"{what}: ours / {named}", "x", estimate, goal, note)
        if estimate is None:
            return Finding(f"{what}: {name} / {named}", "x", None, None, "not installed", "absent")
        return Finding(f"{what}: {name} / {named}", "x", estimate)

    found = [finding(name) for name in ("ours", *(["limit"] if sides.limit is not None else []), *sides.peers)]
    return [*found, _operations(what, named, make())] if counted else found


def _operations(what: str, named: str, sides: Sides) -> Finding:
    ours, base = (operations_of(side).total() for side in (sides.ours, sides.base))
    ratio = Estimate(ours / base, ours / base, ours / base, 1)
    return Finding(f"{what}, operations of torch: ours / {named}", "x", ratio, note=f"{ours} against {base}, counted")


def _present(sides: Sides) -> dict[str, Side]:
    every = {"base": sides.base, "ours": sides.ours, "limit": sides.limit, **sides.peers}
    return {name: side for name, side in every.items() if side is not None}


class _Timing:
    """Times sides, and remembers how often each does its work in a turn."""

    def __init__(
        self, device: torch.device, clock: Callable[[], float], least_seconds: float, repeats: int | None
    ) -> None:
        self._device, self._clock, self._least_seconds = device, clock, least_seconds
        self._given = repeats
        self._repeats: dict[str, int] = {}

    def of(self, sides: Mapping[str, Side], rounds: int) -> dict[str, list[float]]:
        """Return seconds per call, for each side one number per round."""
        turns = []
        for name, side in sides.items():
            if name not in self._repeats:
                self._repeats[name] = self._given or _repeats(side, self._device, self._least_seconds)

            def turn(side: Side = side, repeats: int = self._repeats[name]) -> float:
                devices.synchronize(self._device)
                began = self._clock()
                for _ in range(repeats):
                    side()
                devices.synchronize(self._device)
                return (self._clock() - began) / repeats

            turns.append(turn)
        columns = zip(*interleaved(turns, rounds), strict=True)
        return dict(zip(sides, map(list, columns), strict=True))


def _repeats(side: Side, device: torch.device, least_seconds: float) -> int:
    """Return how often a side does its work in a turn."""
    side()  # what the first time alone costs
    repeats = 1
    while True:
        devices.synchronize(device)
        began = time.perf_counter()
        for _ in range(repeats):
            side()
        devices.synchronize(device)
        took = time.perf_counter() - began
        if took >= least_seconds:
            return repeats
        repeats = max(repeats + 1, int(repeats * min(1.3 * least_seconds / max(took, 1e-9), 100.0)))
