"""Why AdaSum's plain formula has two times, and what groups of tensors that stay in the cache would save.

Sixty tensors, one thread. At 20 million numbers the formula makes new tensors; a call that gets their pages from the
system takes more than twice as long as one whose allocator has kept them, as it is told to here (Linux, glibc). Below
that, ours from 60 numbers (what the calls alone take) to 2 million, past the size at which two buckets leave the cache.

    python studies/bench/adasum_memory.py
"""

from __future__ import annotations

import ctypes
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from workbench.methods.adasum.method import adasum_sets_

NUMBERS, TENSORS, ROUNDS = 20_000_000, 60, 31
SIZES = (60, 250_000, 500_000, 1_000_000, 2_000_000)
KEEP_TOP, KEEP_MAPPED = (-1, 2**31 - 1), (-3, 2**25)  # mallopt: give nothing back, map nothing below 32 MiB


def formula(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> list[Tensor]:
    """Return the combination, in new tensors."""
    combined = []
    for a, b in zip(ours, theirs, strict=True):
        across, own, other = (a * b).sum(), (a * a).sum(), (b * b).sum()
        combined.append((1 - across / (2 * own)) * a + (1 - across / (2 * other)) * b)
    return combined


def in_groups(ours: Sequence[Tensor], theirs: Sequence[Tensor], size: int) -> None:
    """Combine so many tensors at a time, in place of the first."""
    for begin in range(0, len(ours), size):
        adasum_sets_(ours[begin : begin + size], theirs[begin : begin + size])


def told(what: str, work: Callable[[], object]) -> None:
    """Print median milliseconds and page faults of a call."""
    work()
    seconds, faults = [], resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    print(f"  {what:<40} {1e3 * statistics.median(seconds):8.2f} ms {faults // ROUNDS:7} page faults")


def two_buckets(numbers: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return two buckets of so many random numbers, in equal tensors."""
    first, second = ([torch.randn(numbers // TENSORS) for _ in range(TENSORS)] for _ in range(2))
    return first, second


def main() -> None:
    """Print the times."""
    torch.set_num_threads(1)
    ours, theirs = two_buckets(NUMBERS)
    for size in (TENSORS, 3, 1):
        told(f"ours, {size} tensors at a time", partial(in_groups, ours, theirs, size))
    told("formula, new memory as it comes", lambda: formula(ours, theirs))
    libc = ctypes.CDLL(None)
    for option in (KEEP_TOP, KEEP_MAPPED):
        libc.mallopt(*option)
    told("formula, memory kept by the allocator", lambda: formula(ours, theirs))
    for numbers in SIZES:
        ours, theirs = two_buckets(numbers)
        for size in (TENSORS, 12):
            told(f"ours, {numbers:,} numbers, {size} at a time", partial(in_groups, ours, theirs, size))


if __name__ == "__main__":
    main()
