"""PCA: the exact method against scikit-learn and numpy's SVD, its laws, its memory; the reference's variant."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from tests.golden_files import golden_paths, load_npz
from workbench.methods.dim_reduce.pca import principal_components

Matrix = NDArray[Any]
shapes = st.tuples(st.integers(3, 9), st.integers(3, 40), st.integers(0, 2**31))


def drawn(n_snapshots: int, n_weights: int, seed: int) -> Matrix:
    """Return snapshots with singular values 1, 1/2, 1/3 ...: distinct, so the components are."""
    rng = np.random.default_rng(seed)
    rank = min(n_snapshots - 1, n_weights)
    basis = np.linalg.qr(np.concatenate([np.ones((n_snapshots, 1)), rng.normal(size=(n_snapshots, rank))], axis=1))[0]
    rows = np.linalg.qr(rng.normal(size=(n_weights, rank)))[0].T
    return (basis[:, 1 : rank + 1] / np.arange(1, rank + 1)) @ rows + rng.normal(size=n_weights)


def randomized_components(snapshots: Matrix, n_components: int, rng: Any) -> Matrix:
    """Return the components as the reference finds them: a random projection, one power iteration, a small SVD.

    Halko, Martinsson, Tropp, "Finding Structure with Randomness", SIAM Review 53, 2011, arXiv:0909.4061, algorithms 4.4
    and 5.1. Upstream normalises the power iteration by LU; only the span matters, so this uses QR throughout. The
    snapshot of largest magnitude along each component lies on its positive side.
    """
    centred = snapshots - snapshots.mean(axis=0, dtype=np.float64)
    is_wide = centred.shape[0] < centred.shape[1]
    tall = centred.T if is_wide else centred  # upstream samples the side with fewer columns
    span = np.linalg.qr(tall @ rng.normal(size=(tall.shape[1], n_components + 10)))[0]
    span = np.linalg.qr(tall @ np.linalg.qr(tall.T @ span)[0])[0]
    left, _, right = np.linalg.svd(span.T @ tall, full_matrices=False)
    left = span @ left
    rows, scores = (left.T, right) if is_wide else (right, left.T)
    rows, scores = rows[:n_components], scores[:n_components]
    extreme = scores[np.arange(n_components), np.abs(scores).argmax(axis=1)]
    return rows * np.where(extreme < 0, -1.0, 1.0)[:, None]


@pytest.mark.parametrize("path", golden_paths("pca_mat*.npz"), ids=lambda path: path.stem)
def test_golden_components_and_signs(path: Path) -> None:
    meta, arrays = load_npz(path)
    assert meta["cases"]
    for case in meta["cases"]:
        index, k = case["index"], case["n_component"]
        snapshots = arrays[f"in/{index}"]
        exact = principal_components(snapshots, k)
        present = exact.singular_values > 0  # the component of a vanishing singular value is arbitrary
        assert present.sum() == min(k, len(snapshots) - 1)
        np.testing.assert_allclose(exact.components[present], arrays[f"full/{index}"][present], rtol=1e-8, atol=1e-10)
        found = randomized_components(snapshots, k, np.random.RandomState(case["np_seed"]))
        np.testing.assert_allclose(found[present], arrays[f"randomized/{index}"][present], rtol=1e-8, atol=1e-10)


def test_components_and_shares_are_those_of_scikit_learn() -> None:
    snapshots = drawn(12, 300, 0)
    found, wanted = principal_components(snapshots, 7), PCA(7, svd_solver="full").fit(snapshots)
    np.testing.assert_allclose(np.abs(found.components @ wanted.components_.T), np.eye(7), atol=1e-10)
    np.testing.assert_allclose(found.singular_values, wanted.singular_values_, rtol=1e-10)
    np.testing.assert_allclose(found.explained_variance_ratio, wanted.explained_variance_ratio_, rtol=1e-10)


def test_float32_snapshots_are_accumulated_in_float64() -> None:
    # Weights around 100 that move by 1e-3: in float32 the inner products would be rounding only.
    snapshots = (drawn(8, 5000, 1) * 1e-3 + 100).astype(np.float32)
    found, wanted = principal_components(snapshots, 4), principal_components(snapshots.astype(np.float64), 4)
    assert found.components.dtype == np.float32
    np.testing.assert_allclose(found.components, wanted.components, atol=1e-7)
    np.testing.assert_array_equal(found.singular_values, wanted.singular_values)


@given(shapes)
@settings(max_examples=25)
def test_rows_are_orthonormal_and_their_largest_entry_is_positive(shape: tuple[int, int, int]) -> None:
    k = min(shape[0] - 1, shape[1])
    rows = principal_components(drawn(*shape), k).components
    np.testing.assert_allclose(rows @ rows.T, np.eye(k), atol=1e-9)
    assert (rows.max(axis=1) >= -rows.min(axis=1)).all()


@given(shapes, st.integers(1, 50))
@settings(max_examples=25)
def test_blocks_order_and_a_common_shift_change_nothing(shape: tuple[int, int, int], block: int) -> None:
    snapshots = drawn(*shape)
    k = min(shape[0] - 1, shape[1]) - 1
    wanted = principal_components(snapshots, k)
    # A largest entry that is not the largest by far may change sign by rounding.
    entries = np.sort(np.abs(wanted.components), axis=1)
    clear = entries[:, -1] - entries[:, -2] > 1e-6
    for other in (snapshots[::-1], snapshots + np.arange(shape[1])):
        found = principal_components(other, k, block=block)
        np.testing.assert_allclose(found.components[clear], wanted.components[clear], atol=1e-9)
        np.testing.assert_allclose(found.explained_variance_ratio, wanted.explained_variance_ratio, atol=1e-9)


@given(shapes)
@settings(max_examples=25)
def test_all_components_together_give_the_snapshots_back(shape: tuple[int, int, int]) -> None:
    snapshots = drawn(*shape)
    found = principal_components(snapshots, min(shape[0] - 1, shape[1]))
    centred = snapshots - snapshots.mean(axis=0)
    np.testing.assert_allclose(centred @ found.components.T @ found.components, centred, atol=1e-9)
    assert abs(found.explained_variance_ratio.sum() - 1) < 1e-9


def test_a_direction_the_snapshots_do_not_span_is_a_row_of_zeros() -> None:
    found = principal_components(drawn(5, 20, 2), 5)
    assert found.singular_values[-1] == 0 == found.explained_variance_ratio[-1]
    assert not found.components[-1].any()
    assert found.components[:-1].any(axis=1).all()


def test_snapshots_are_left_alone_unless_overwritten() -> None:
    snapshots = drawn(6, 700, 3)
    before = snapshots.copy()
    wanted = principal_components(snapshots, 3)
    np.testing.assert_array_equal(snapshots, before)
    found = principal_components(snapshots, 3, overwrite=True)
    assert np.shares_memory(found.components, snapshots)
    np.testing.assert_array_equal(found.components, wanted.components)
    np.testing.assert_array_equal(snapshots[3:], before[3:])


@pytest.mark.parametrize("n_snapshots", [4, 32])
def test_memory_stays_below_1_05_times_the_snapshots(n_snapshots: int) -> None:
    snapshots = np.random.default_rng(0).standard_normal((n_snapshots, 200_000), np.float32)
    tracemalloc.start()
    try:
        principal_components(snapshots, n_snapshots - 1, overwrite=True)
        peak = tracemalloc.get_traced_memory()[1]  # numpy reports its arrays; the snapshots were there before
    finally:
        tracemalloc.stop()
    assert 0 < peak < 0.05 * snapshots.nbytes


@pytest.mark.parametrize(
    ("snapshots", "k", "words"),
    [
        (np.eye(3, 5), 4, r"`n_components` must not exceed the number of snapshots \(3\), got 4; record more"),
        (np.eye(5, 3), 4, r"must not exceed the number of weights \(3\), got 4"),
        (np.eye(3), 0, "must be at least 1, got 0"),
        (np.ones(3), 1, r"must be a matrix, .* got shape \(3,\)"),
        (np.array([[1.0, np.inf], [0, 1]]), 1, "must be finite, got inf or NaN"),
        (np.full((7, 50), 0.1), 2, "the 7 snapshots must differ"),  # their mean is rounded
    ],
)
def test_bad_snapshots_are_told_in_one_sentence(snapshots: Matrix, k: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        principal_components(snapshots, k)


def test_integers_cannot_be_overwritten() -> None:
    with pytest.raises(TypeError, match="`overwrite` needs floating point snapshots"):
        principal_components(np.eye(3, dtype=int), 2, overwrite=True)
