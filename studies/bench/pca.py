"""How fast are principal components of few snapshots of many weights, and how much memory do they take?

The base is scikit-learn's PCA, which decomposes the matrix itself; ours decomposes the inner products of the snapshots.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import threadpool_limits

from workbench.bench import Benchmark, Estimate, Finding, Request, Sides, contest, require_equal
from workbench.methods.dim_reduce.pca import principal_components

_GOAL, _GOAL_OF_MEMORY, _WIDEST_ANGLE = 0.04, 1.05, 1e-4


def measure(request: Request, *, snapshots: int = 40, weights: int = 1_000_000, components: int = 32) -> list[Finding]:
    """Measure time against scikit-learn's PCA, and the peak of memory with ``overwrite``."""
    matrix = _snapshots(snapshots, weights)
    what = f"PCA of {snapshots} x {weights:,}, {components} components"
    found: list[Finding] = []
    # In float32 scikit-learn's own components are 1e-4 off.
    exact = PCA(components).fit(matrix.astype(np.float64)).components_
    for threads in request.each_thread_count():
        with threadpool_limits(torch.get_num_threads()):
            found += _against_scikit_learn(f"{what}, {threads}", matrix, exact, components, request)
    peak = Estimate.exact(_peak_of_memory(matrix, components))
    note = "snapshots and all arrays of numpy; components written over the snapshots"
    return [*found, Finding(f"{what}: memory / snapshots", "x", peak, _GOAL_OF_MEMORY, note)]


def _against_scikit_learn(
    what: str, matrix: NDArray[Any], exact: NDArray[Any], components: int, request: Request
) -> list[Finding]:
    tensor = torch.from_numpy(matrix)

    def sides() -> Sides:
        peers = {
            "randomized_svd": lambda: randomized_svd(matrix - matrix.mean(0), components, random_state=0),
            "torch.pca_lowrank": lambda: torch.pca_lowrank(tensor, components),
        }
        return Sides(
            lambda: principal_components(matrix, components),
            lambda: PCA(components).fit(matrix),
            limit=_two_passes(tensor, components),
            peers=peers if request.peers else {},
        )

    def guard() -> None:
        angle = subspace_angle(principal_components(matrix, components).components, exact)
        require_equal(torch.tensor(angle), torch.tensor(0.0), "subspace angle", rtol=0.0, atol=_WIDEST_ANGLE)

    return contest(
        what,
        sides,
        request,
        named="scikit-learn",
        goal=_GOAL,
        guard=guard,
        note="float32; limit: two float32 products, snapshots with each other and with the components",
    )


def _two_passes(tensor: torch.Tensor, components: int) -> Callable[[], object]:
    carry, out = torch.ones(components, len(tensor)), torch.empty(components, tensor.shape[1])

    def work() -> None:
        torch.mm(tensor, tensor.T)
        torch.mm(carry, tensor, out=out)

    return work


def subspace_angle(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the largest angle between what two matrices ``[k, n_weights]`` of orthonormal rows span, radians."""
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


BENCHMARK = Benchmark(
    "pca", "How fast are principal components of few snapshots, and in how much memory?", measure, rounds=3, place=14
)
