"""How fast are principal components of few snapshots of many weights, and how much memory do they take?

The base is scikit-learn's PCA, which decomposes the matrix itself; ours decomposes the inner products of the snapshots.
"""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from workbench.bench.benchmark import Benchmark, Finding, Request
from workbench.bench.contest import (
    Sides,
    contest,
    is_installed,
    require_equal,
)
from workbench.bench.rounds import Estimate
from workbench.methods.dim_reduce.pca import principal_components

__all__ = ["measure_pca", "subspace_angle"]

_GOAL, _GOAL_OF_MEMORY, _WIDEST_ANGLE = 0.04, 1.05, 1e-4


def measure_pca(
    request: Request, *, snapshots: int = 40, weights: int = 1_000_000, components: int = 32
) -> list[Finding]:
    """Measure time against scikit-learn's PCA, and the peak of memory with ``overwrite``.

    Args:
        request: What is asked for.
        snapshots: Rows.
        weights: Columns.
        components: Components wanted.
    """
    matrix = _snapshots(snapshots, weights)
    what = f"PCA of {snapshots} x {weights:,}, {components} components"
    found: list[Finding] = []
    exact = _in_double_precision(matrix, components)
    for threads in request.each_thread_count():
        with _numpy_threads(torch.get_num_threads()):
            found += _against_scikit_learn(f"{what}, {threads}", matrix, exact, components, request)
    peak = _peak_of_memory(matrix, components)
    note = "snapshots and all arrays of numpy; components written over the snapshots"
    return [*found, Finding(f"{what}: memory / snapshots", "x", Estimate(peak, peak, peak, 1), _GOAL_OF_MEMORY, note)]


def _in_double_precision(matrix: NDArray[Any], components: int) -> NDArray[Any] | None:
    """Return scikit-learn's components of the same numbers in float64: in float32 its own are 1e-4 off."""
    if not is_installed("sklearn"):
        return None
    from sklearn.decomposition import PCA

    exact: NDArray[Any] = PCA(components).fit(matrix.astype(np.float64)).components_
    return exact


def _against_scikit_learn(
    what: str, matrix: NDArray[Any], exact: NDArray[Any] | None, components: int, request: Request
) -> list[Finding]:
    if exact is None:
        return [Finding(f"{what}: ours / scikit-learn", "x", None, _GOAL, "not installed", "absent")]
    from sklearn.decomposition import PCA
    from sklearn.utils.extmath import randomized_svd

    def guard() -> None:
        angle = subspace_angle(principal_components(matrix, components).components, exact)
        require_equal(torch.tensor(angle), torch.tensor(0.0), "subspace angle", rtol=0.0, atol=_WIDEST_ANGLE)

    return contest(
        what,
        lambda: Sides(
            lambda: principal_components(matrix, components),
            lambda: PCA(components).fit(matrix),
            limit=_two_passes(matrix, components),
            peers=_peers(matrix, components, randomized_svd) if request.peers else {},
        ),
        rounds=request.rounds,
        named="scikit-learn",
        goal=_GOAL,
        guard=guard,
        note="float32; limit: two float32 products, snapshots with each other and with the components",
    )


def _peers(matrix: NDArray[Any], components: int, randomized_svd: Any) -> dict[str, Callable[[], object]]:
    tensor = torch.from_numpy(matrix)
    return {
        "randomized_svd": lambda: randomized_svd(matrix - matrix.mean(0), components, random_state=0),
        "torch.pca_lowrank": lambda: torch.pca_lowrank(tensor, components),
    }


def _two_passes(matrix: NDArray[Any], components: int) -> Callable[[], object]:
    tensor = torch.from_numpy(matrix)
    carry, out = torch.ones(components, len(matrix)), torch.empty(components, matrix.shape[1])

    def work() -> None:
        torch.mm(tensor, tensor.T)
        torch.mm(carry, tensor, out=out)

    return work


def subspace_angle(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the largest angle between what two matrices of orthonormal rows span, radians.

    Args:
        one: ``[k, n_weights]``.
        other: Same shape.
    """
    first, second = one.astype(np.float64), other.astype(np.float64)
    rest = first - (first @ second.T) @ second  # sines, where cosines would lose half of the digits
    largest = float(np.linalg.eigvalsh(rest @ rest.T)[-1])
    return float(np.arcsin(min(max(largest, 0.0) ** 0.5, 1.0)))


def _snapshots(snapshots: int, weights: int) -> NDArray[np.float32]:
    """Return snapshots along directions of which each is a little weaker than the one before."""
    generator = np.random.default_rng(0)
    strengths = np.linspace(1.0, 1.0 / snapshots, snapshots)
    turn = np.linalg.qr(generator.normal(size=(snapshots, snapshots)))[0]
    directions = generator.standard_normal((snapshots, weights), dtype=np.float32)
    return np.asarray(turn * strengths, dtype=np.float32) @ directions


def _peak_of_memory(matrix: NDArray[Any], components: int) -> float:
    own = matrix.copy()
    tracemalloc.start()
    try:
        principal_components(own, components, overwrite=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return (own.nbytes + peak) / own.nbytes


def _numpy_threads(count: int) -> contextlib.AbstractContextManager[object]:
    """Give numpy's and scipy's products so many threads, where that can be said."""
    if not is_installed("threadpoolctl"):
        return contextlib.nullcontext()
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

    limits: contextlib.AbstractContextManager[object] = threadpool_limits(count)
    return limits


BENCHMARK = Benchmark(
    "pca",
    "How fast are principal components of few snapshots, and in how much memory?",
    measure_pca,
    rounds=3,
    quick=False,
    place=14,
)
