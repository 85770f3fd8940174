"""Ours against a base that does the same, with whatever else does it, and the limit of the machine.

Results first: sides whose results differ are not timed. Then each side repeats its work until a turn takes 50 ms, and
the sides take turns round by round; every number is a median of ratios taken within rounds.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping

import torch

from workbench import devices
from workbench.bench.benchmark import Finding
from workbench.bench.rounds import Estimate, interleaved, ratio_of

__all__ = ["Side", "contest", "is_installed", "require_equal"]

Side = Callable[[], object]
"""Does the work once; it may be called any number of times."""

_LEAST_SECONDS = 0.05


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


def is_installed(package: str) -> bool:
    """Return whether a peer can be imported."""
    return importlib.util.find_spec(package) is not None


def contest(
    what: str,
    ours: Side,
    base: Side,
    *,
    rounds: int,
    named: str = "base",
    goal: float | None = None,
    limit: Side | None = None,
    peers: Mapping[str, Side | None] | None = None,
    guard: Callable[[], None] | None = None,
    note: str = "",
    device: torch.device | None = None,
    least_seconds: float = _LEAST_SECONDS,
) -> list[Finding]:
    """Measure how long ours takes as a multiple of the base.

    Args:
        what: The line of the table, in a few words.
        ours: Our side.
        base: The side that counts as 1.
        rounds: Rounds in which all sides take turns, every other round in reverse order.
        named: What the base is, for ``ours / base``.
        goal: Largest ratio that is good enough; None where none is set.
        limit: What the work cannot be done without, say reading and writing the same bytes; None where it is not known.
        peers: Other ways to do it by name; None stands for one that is not installed.
        guard: Sees that the results are the same, with ``require_equal``; None where sides compute different things.
        note: What else should be known.
        device: Where the work happens; its queue is emptied before and after every turn.
        least_seconds: Least time of a turn.

    Returns:
        Ours, the limit and the peers, each as a multiple of the base. Where results differ, that alone.
    """
    if guard is not None:
        try:
            guard()
        except _DifferentResultsError as error:
            return [Finding(f"{what}: ours / {named}", "x", None, goal, str(error), "differs")]
    sides = {"ours": ours, "limit": limit, **(peers or {})}
    present = {name: side for name, side in sides.items() if side is not None}
    times = _times([base, *present.values()], rounds, device or torch.device("cpu"), least_seconds)
    ratios = {name: ratio_of(times[number], times[0]) for number, name in enumerate(present, start=1)}

    def finding(name: str, estimate: Estimate | None) -> Finding:
        if name == "ours":
            return Finding(f"{what}: ours / {named}", "x", estimate, goal, note)
        if estimate is None:
            return Finding(f"{what}: {name} / {named}", "x", None, None, "not installed", "absent")
        return Finding(f"{what}: {name} / {named}", "x", estimate)

    return [finding(name, ratios.get(name)) for name in sides if name != "limit" or limit is not None]


def _times(sides: list[Side], rounds: int, device: torch.device, least_seconds: float) -> list[list[float]]:
    """Return seconds per call, for each side one number per round."""
    turns = []
    for side in sides:
        repeats = _repeats(side, device, least_seconds)

        def turn(side: Side = side, repeats: int = repeats) -> float:
            devices.synchronize(device)
            began = time.perf_counter()
            for _ in range(repeats):
                side()
            devices.synchronize(device)
            return (time.perf_counter() - began) / repeats

        turns.append(turn)
    return [list(column) for column in zip(*interleaved(turns, rounds), strict=True)]


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
