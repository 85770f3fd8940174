"""What the principal components of the benchmark's snapshots spend their time on, and what float32 would save.

40 snapshots of a million weights, one thread of numpy: median milliseconds. Inner products in float32, block by block
and added up in float64, are good enough for a flat spectrum only.

    pip install threadpoolctl
    python studies/bench/pca_parts.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from workbench.methods.dim_reduce.pca import principal_components

SNAPSHOTS, WEIGHTS, COMPONENTS, BLOCK, ROUNDS = 40, 1_000_000, 32, 3906, 9


def main() -> None:
    """Print the time of every part."""
    generator = np.random.default_rng(0)
    snapshots = generator.standard_normal((SNAPSHOTS, WEIGHTS), dtype=np.float32)
    carry = generator.standard_normal((COMPONENTS, SNAPSHOTS), dtype=np.float32)
    blocks = [slice(begin, begin + BLOCK) for begin in range(0, WEIGHTS, BLOCK)]

    def differences(dtype: type[np.floating[Any]]) -> None:
        for columns in blocks:
            part: NDArray[Any] = snapshots[:, columns].astype(dtype)
            part -= part[0].copy()

    def inner_products(dtype: type[np.floating[Any]]) -> None:
        total = np.zeros((SNAPSHOTS, SNAPSHOTS))
        for columns in blocks:
            part: NDArray[Any] = snapshots[:, columns].astype(dtype)
            part -= part[0].copy()
            total += part @ part.T

    def components() -> None:
        result = np.empty((COMPONENTS, WEIGHTS), np.float32)
        for columns in blocks:
            rows = carry @ (snapshots[:, columns] - snapshots[0, columns])
            rows.max(axis=1)
            rows.min(axis=1)
            result[:, columns] = rows

    parts: dict[str, Callable[[], object]] = {
        "all of it": lambda: principal_components(snapshots, COMPONENTS),
        "differences in float64": lambda: differences(np.float64),
        "inner products in float64, with differences": lambda: inner_products(np.float64),
        "inner products in float32, with differences": lambda: inner_products(np.float32),
        "components and their signs": components,
    }
    taken: dict[str, list[float]] = {name: [] for name in parts}
    with threadpool_limits(1):
        for _ in range(ROUNDS):
            for name, part in parts.items():
                began = time.perf_counter()
                part()
                taken[name].append(time.perf_counter() - began)
    for name, seconds in taken.items():
        print(f"  {name:<46} {1e3 * statistics.median(seconds):7.1f} ms")


if __name__ == "__main__":
    main()
