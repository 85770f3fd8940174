"""Time ours against a base that does the same, against whatever else does it, and against the machine's limit.

Results first: sides whose results differ are not timed. Then each side repeats its work until a turn takes 50 ms, and
the sides take turns round by round; every number is a median of ratios taken within rounds. Every four rounds all
sides are made again: where the arrays of one happen to lie in memory shifts it by a few percent against the others.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from workbench.bench.benchmark import Finding, Request
from workbench.bench.rounds import interleaved, median_of_copies
from workbench.core import devices

Side = Callable[[], object]
"""Does the work once; it may be called any number of times."""

Results = torch.Tensor | Mapping[str, torch.Tensor]

_LEAST_SECONDS = 0.05
_ROUNDS_PER_COPY = 4  # as many in one order as in the other


@dataclass(frozen=True, slots=True)
class Sides:
    """Who takes turns; the base counts as 1."""

    ours: Side
    base: Side
    limit: Side | None = None  # what the work cannot be done without, say reading and writing the same bytes
    peers: Mapping[str, Side | None] = field(default_factory=dict)  # other ways to do it; None where not installed


def require_equal(ours: Results, theirs: Results, what: str, *, rtol: float, atol: float) -> None:
    """Check that results agree, relative to ``theirs`` and absolutely; to be called by the guard of a contest."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and len(ours) != len(theirs):
        raise AssertionError(f"{what}: ours has {len(ours)} tensors, theirs {len(theirs)}")
    torch.testing.assert_close(
        ours, theirs, rtol=rtol, atol=atol, check_device=False, check_dtype=False, msg=lambda said: f"{what}: {said}"
    )


def is_installed(package: str) -> bool:
    """Return whether a peer can be imported."""
    return importlib.util.find_spec(package) is not None


def contest(
    what: str,
    make: Callable[[], Sides],
    request: Request,
    *,
    named: str = "base",
    goal: float | None = None,
    guard: Callable[[], None] | None = None,
    note: str = "",
    repeats: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Finding]:
    """Measure how long ours takes as a multiple of the base, and the limit and the peers likewise.

    Where results differ, only that is reported.

    Args:
        what: The line of the table, in a few words.
        make: Makes all sides, which share nothing that one of them writes; called every few rounds.
        request: Rounds, and the device, whose queue is emptied before and after every turn.
        named: What the base is, for ``ours / base``.
        goal: Largest ratio that is good enough; none counts where the limit measured here lies above it.
        guard: Checks that the results agree, with ``require_equal``; None where sides compute different things.
        note: What else should be known.
        repeats: How often a side does its work in a turn; None finds out what takes 50 ms.
        clock: Seconds that only grow.
    """
    if guard is not None:
        try:
            guard()
        except AssertionError as error:
            return [Finding(f"{what}: ours / {named}", "x", None, goal, " ".join(str(error).split()), "differs")]
    device, calls = request.chosen_device(), dict[str, int]()
    ratios: dict[str, list[list[float]]] = {}
    sides = make()
    for first in range(0, request.rounds, _ROUNDS_PER_COPY):
        if first:
            sides = make()  # while the ones before are there, or the new arrays would come to lie in their places
        every = {"base": sides.base, "ours": sides.ours, "limit": sides.limit, **sides.peers}
        present = {name: side for name, side in every.items() if side is not None}
        for name, side in present.items():
            if name not in calls:
                calls[name] = repeats or _repeats(side, device, clock)
        turns = [_turn(side, calls[name], device, clock) for name, side in present.items()]
        rows = interleaved(turns, min(_ROUNDS_PER_COPY, request.rounds - first))
        for name, *seconds in zip(present, *rows, strict=True):
            ratios.setdefault(name, []).append([one / row[0] for one, row in zip(seconds, rows, strict=True)])

    estimates = {name: median_of_copies(of_side) for name, of_side in ratios.items()}
    if goal is not None and "limit" in estimates and estimates["limit"].low > goal:
        note = "; ".join([*([note] if note else []), f"no goal: {goal:g} lies below the limit"])
        goal = None
    found = [Finding(f"{what}: ours / {named}", "x", estimates["ours"], goal, note)]
    for name in (*(["limit"] if sides.limit is not None else []), *sides.peers):
        absent = ("not installed", "absent") if name not in estimates else ()
        found.append(Finding(f"{what}: {name} / {named}", "x", estimates.get(name), None, *absent))
    return found


def _turn(side: Side, repeats: int, device: torch.device, clock: Callable[[], float]) -> Callable[[], float]:
    """Return a function that does a side's work a number of times and returns the seconds each time took."""

    def turn() -> float:
        devices.synchronize(device)
        began = clock()
        for _ in range(repeats):
            side()
        devices.synchronize(device)
        return (clock() - began) / repeats

    return turn


def _repeats(side: Side, device: torch.device, clock: Callable[[], float]) -> int:
    side()  # what the first time alone costs
    repeats = 1
    while (took := repeats * _turn(side, repeats, device, clock)()) < _LEAST_SECONDS:
        repeats = max(repeats + 1, int(repeats * min(1.3 * _LEAST_SECONDS / max(took, 1e-9), 100.0)))
    return repeats
