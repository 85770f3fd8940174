"""What does AdaSum cost: the combination alone, and over ranks beside an ordinary all-reduce?

In one process two sets of gradients are combined tensor by tensor; the base writes the formula down with plain torch.
Where its results go decides what it takes: into memory that it keeps, or into new memory, whose every page the system
hands over anew. An allocator does now this, now that, and they differ twofold; so each is a contest of its own.
Over four gloo ranks one flat bucket is combined; the base adds it up with ``all_reduce``. Rank 0's clock counts. A ring
sends ``2 (p - 1) / p`` of the bucket from each of p ranks, and so does recursive halving and doubling, but for three
inner products per tensor.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, distributed

from workbench.bench import Benchmark, Estimate, Finding, Request, Sides, contest, interleaved, ratio_of, require_equal
from workbench.core import distributed as ranks
from workbench.methods.adasum.method import ServerLinks, adasum_reduce_, adasum_sets_, adasum_tree

from .ranks import answer_of_ranks

_GOALS = {20_000_000: 0.165, 1_000_000: 0.20}
_GOAL_OVER_RANKS, _GOAL_OF_BYTES = 1.25, 1.01
_RANKS = 4


def measure(
    request: Request, *, sizes: Sequence[int] = (20_000_000, 1_000_000), tensors: int = 60, bucket: int = 25_000_000
) -> list[Finding]:
    """Measure the combination of two sets of gradients, and that of a bucket over four ranks (0 leaves them out).

    A size is the elements of a set or of the bucket, which consist of so many tensors.
    """
    found: list[Finding] = []
    places = tuple(_PLACES) if request.chosen_device().type == "cpu" else ("kept memory",)
    for threads in request.each_thread_count():
        for size in sizes:
            for place in places:
                found += _in_one_process(f"{size:,} in {tensors}, {threads}", size, tensors, place, request)
    return found + (_over_ranks(bucket, tensors, request.rounds) if bucket else [])


_Place: TypeAlias = Callable[[Sequence[Tensor]], Callable[[], Sequence[Tensor]]]
"""Given tensors, a way to have so much memory for results."""


def _kept_memory(tensors: Sequence[Tensor]) -> Callable[[], Sequence[Tensor]]:
    """The same memory at every call."""
    results = [torch.zeros_like(tensor) for tensor in tensors]
    return lambda: results


def _new_memory(tensors: Sequence[Tensor]) -> Callable[[], Sequence[Tensor]]:
    """Pages from the system at every call, as an allocator gets them; it has them back when results are dropped."""
    lengths = [tensor.numel() for tensor in tensors]

    def results() -> Sequence[Tensor]:
        pages = mmap.mmap(-1, 4 * sum(lengths), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(pages, dtype=torch.float32).split_with_sizes(lengths)

    return results


_PLACES: Final[Mapping[str, _Place]] = {"kept memory": _kept_memory, "new memory": _new_memory}


def _in_one_process(what: str, size: int, tensors: int, place: str, request: Request) -> list[Finding]:
    device = request.chosen_device()
    ours, theirs = (_gradients(size, tensors, seed, device) for seed in (0, 1))

    def guard() -> None:
        mine = [tensor.clone() for tensor in ours]
        adasum_sets_(mine, theirs)
        for one, other in zip(mine, _Formula(ours, theirs, _PLACES[place])(), strict=True):
            require_equal(one, other, "combination", rtol=1e-4, atol=1e-5)

    def sides() -> Sides:
        mine, other, same = (_gradients(size, tensors, seed, device) for seed in (0, 1, 0))
        added, addend = torch.zeros(size, device=device), torch.ones(size, device=device)
        return Sides(
            lambda: adasum_sets_(mine, other),
            _Formula(same, other, _PLACES[place]),
            limit=lambda: added.add_(addend),
        )

    return contest(
        f"AdaSum of {what}",
        sides,
        request,
        named=f"formula in {place}",
        goal=_GOALS.get(size),
        guard=guard,
        note="ours in place; the limit reads both and writes one",
    )


class _Formula:
    """The combination as the paper has it, with plain torch; what lies between is kept."""

    def __init__(self, ours: Sequence[Tensor], theirs: Sequence[Tensor], place: _Place) -> None:
        self._ours, self._theirs, self._results = ours, theirs, place(ours)
        self._between = [torch.zeros_like(tensor) for tensor in ours]

    def __call__(self) -> Sequence[Tensor]:
        results = self._results()
        for a, b, between, result in zip(self._ours, self._theirs, self._between, results, strict=True):
            across, own, other = (torch.mul(x, y, out=between).sum() for x, y in ((a, b), (a, a), (b, b)))
            torch.mul(a, 1 - across / (2 * own), out=result)
            result.add_(torch.mul(b, 1 - across / (2 * other), out=between))
        return results


def _gradients(size: int, tensors: int, seed: int, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, generator=generator).to(device) for length in _lengths(size, tensors)]


def _lengths(size: int, tensors: int) -> list[int]:
    """Return lengths of so many tensors that together have so many elements; neighbours differ."""
    each = size // tensors
    lengths = [each + (each // 4) * (1 - 2 * (index % 2)) for index in range(tensors)]
    lengths[-1] += size - sum(lengths)
    return lengths


def _over_ranks(bucket: int, tensors: int, rounds: int) -> list[Finding]:
    answer = answer_of_ranks(__name__, _RANKS, bucket, tensors, rounds)
    what = f"AdaSum of {bucket:,} in {tensors} over {_RANKS} gloo ranks"
    if answer["excess"] > 1e-4:
        note = f"the combination differs by up to {answer['excess']:.3g}"
        return [Finding(f"{what}: ours / all_reduce", "x", None, _GOAL_OVER_RANKS, note, "differs")]
    ours, base = zip(*answer["rows"], strict=True)
    sent = answer["bytes"] / (2 * (_RANKS - 1) / _RANKS * bucket * 4)
    return [
        Finding(f"{what}: ours / all_reduce", "x", ratio_of(ours, base), _GOAL_OVER_RANKS, "one thread per rank"),
        Finding(f"{what}: bytes sent / ring", "x", Estimate.exact(sent), _GOAL_OF_BYTES, "counted, rank 0"),
    ]


class _CountingLinks(ServerLinks):
    """Counts the bytes that this rank sends."""

    sent = 0

    def exchange(self, mine: Tensor, server: int, into: Tensor | None = None) -> Tensor:
        _CountingLinks.sent += mine.nbytes
        return super().exchange(mine, server, into)


def run_rank() -> None:
    """Measure on this rank, with elements, tensors and rounds from the command line; rank 0 prints what was found."""
    bucket, tensors, rounds = (int(argument) for argument in sys.argv[1:4])
    torch.set_num_threads(1)
    with ranks.joined("cpu"):
        lengths = _lengths(bucket, tensors)
        start = _bucket_of(ranks.rank(), lengths)
        links = _CountingLinks(ranks.rank(), 0, _RANKS, 1)
        flat = start.clone()
        adasum_reduce_(flat, lengths, links)
        answer: dict[str, Any] = {"bytes": _CountingLinks.sent, "excess": 0.0}
        if ranks.rank() == 0:
            answer["excess"] = _excess(flat, lengths)
        sides = [
            _timed(flat, start, lambda: adasum_reduce_(flat, lengths, links)),
            _timed(flat, start, lambda: distributed.all_reduce(flat)),
        ]
        answer["rows"] = interleaved(sides, rounds)
        if ranks.rank() == 0:
            print(json.dumps(answer))


def _bucket_of(rank: int, lengths: Sequence[int]) -> Tensor:
    size = sum(lengths)
    flat = torch.randn(size + -size % _RANKS, generator=torch.Generator().manual_seed(rank))
    flat[size:] = 0.0
    return flat


def _excess(flat: Tensor, lengths: Sequence[int]) -> float:
    """Return by how much the result differs from AdaSum's definition, at most."""
    size = sum(lengths)
    per_rank = [_bucket_of(rank, lengths)[:size].split_with_sizes(list(lengths)) for rank in range(_RANKS)]
    found = flat[:size].split_with_sizes(list(lengths))
    return max(
        float((one - adasum_tree(values)).abs().max()) if len(one) else 0.0
        for one, *values in zip(found, *per_rank, strict=True)
    )


def _timed(flat: Tensor, start: Tensor, work: Callable[[], object]) -> Callable[[], float]:
    def measure() -> float:
        flat.copy_(start)  # sums of sums would leave float32's range
        ranks.barrier()
        began = time.perf_counter()
        work()
        ranks.barrier()
        return time.perf_counter() - began

    return measure


BENCHMARK = Benchmark(
    "adasum", "What does AdaSum cost beside its formula and beside an all-reduce?", measure, rounds=15, place=13
)
