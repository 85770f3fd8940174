"""Principal components of few snapshots of many weights.

A snapshot matrix is ``[n_snapshots, n_weights]``, one flattened network per row; components are ``[k, n_weights]``,
unit rows, those of the largest variance first. With 32 snapshots of a million weights the inner products between
centred snapshots (32 x 32) say everything: their eigenvectors, carried back to the weights, are the components.
Sirovich, "Turbulence and the dynamics of coherent structures, part I", Quarterly of Applied Mathematics 45, 1987,
doi:10.1090/qam/910462 (the method of snapshots).

The reference (MindSpore 2.7.0, ``mindspore.boost``) finds them by random projection, up to sampling the same, and
centres the caller's array in place; here it changes only where ``overwrite`` asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.arguments import checked_count

# Temporaries hold a few float64 blocks of columns; 1/256 of the weights each keeps them below 5 % of the snapshots.
BLOCKS = 256
WIDEST_BLOCK = 65536  # 16 MiB of float64 for 32 snapshots: wider gains nothing
NARROWEST_BLOCK = 256
ROUNDING = 10 * float(np.finfo(np.float64).eps)
# In float32 a component is off by about 1e-7 s_1 / s_i, less than by the rounding of the snapshots themselves.
STEEP = 100.0


@dataclass(frozen=True)
class PrincipalComponents:
    """Components with what they explain."""

    #: ``[k, n_weights]``, orthonormal rows, largest variance first; zeros where the snapshots span fewer directions.
    components: NDArray[Any]
    singular_values: NDArray[np.float64]  # [k] of the centred snapshots, descending; 0 where there is no direction
    explained_variance_ratio: NDArray[np.float64]  # [k], share of the snapshots' total variance along each component


def principal_components(
    snapshots: NDArray[Any], n_components: int, *, overwrite: bool = False, block: int | None = None
) -> PrincipalComponents:
    """Return the exact principal components, by the eigenvectors of the snapshots' inner products.

    Inner products are accumulated in float64, in blocks of columns, and square the condition: component i is accurate
    to about 1e-16 (s_1 / s_i)^2, s being the singular values; directions below about 1e-7 s_1 count as absent. The
    entry of largest magnitude of every component is positive. With ``overwrite``, which puts the components into the
    first rows of ``snapshots``, the whole takes at most 1.05 times the memory of the snapshots.
    """
    n_snapshots, n_weights = _checked_shape(snapshots, n_components)
    floating = np.issubdtype(snapshots.dtype, np.floating)
    if overwrite and not floating:
        raise TypeError(f"`overwrite` needs floating point snapshots to write into, got {snapshots.dtype}")
    width = block or min(max(n_weights // BLOCKS, NARROWEST_BLOCK), WIDEST_BLOCK)
    blocks = [slice(start, start + width) for start in range(0, n_weights, width)]
    # What snapshots have in common is taken away before anything is multiplied: the first one, exactly, and the mean of
    # the differences from their products. Subtracting the mean itself would need another pass over each block.
    products = np.zeros((n_snapshots, n_snapshots))
    size = 0.0  # of the first snapshot, squared: what the rounding of differences is relative to
    for columns in blocks:
        with np.errstate(invalid="ignore", over="ignore"):  # refused below, in a sentence
            part = _differences(snapshots[:, columns], np.float64)
            products += part @ part.T
        first = snapshots[0, columns].astype(np.float64)
        size += float(first @ first)
    size = n_snapshots * size + float(np.trace(products))
    if not (np.isfinite(size) and np.isfinite(products).all()):
        raise ValueError(
            "`snapshots` must be finite, got inf or NaN; leave out what was recorded after training failed"
        )
    gram = products - products.mean(axis=0) - products.mean(axis=1)[:, None] + products.mean()
    values, vectors = np.linalg.eigh(gram)  # ascending
    values, vectors = values[::-1][:n_components], vectors[:, ::-1][:, :n_components]
    # Below this an eigenvalue is rounding: of the eigenvalue problem, or of the subtracted mean.
    present = values > max(ROUNDING * n_snapshots * values[0], n_snapshots * size * ROUNDING**2)
    if not present.any():
        raise ValueError(f"the {n_snapshots} snapshots must differ, got equal ones; record them further apart")
    singular = np.sqrt(np.where(present, values, 0.0))
    carry = np.where(present, vectors / np.where(present, singular, 1.0), 0.0).T  # [k, n_snapshots]
    if snapshots.dtype == np.float32 and singular[0] < STEEP * singular[present][-1]:
        carry = carry.astype(np.float32)
    dtype = snapshots.dtype if floating else np.dtype(np.float64)
    result = snapshots[:n_components] if overwrite else np.empty((n_components, n_weights), dtype)
    largest, sign = np.zeros(n_components), np.ones(n_components)
    for columns in blocks:
        # The rows of `carry` add up to 0, so no mean is needed.
        rows = carry @ _differences(snapshots[:, columns], carry.dtype)
        highest, lowest = rows.max(axis=1), rows.min(axis=1)
        extreme = np.where(highest >= -lowest, highest, lowest)
        grows = np.abs(extreme) > largest
        largest = np.where(grows, np.abs(extreme), largest)
        sign = np.where(grows, np.sign(extreme), sign)
        result[:, columns] = rows
    for index in np.flatnonzero(sign < 0):  # row by row: fancy indexing would copy
        np.negative(result[index], out=result[index])
    return PrincipalComponents(result, singular, singular**2 / np.trace(gram))


def _checked_shape(snapshots: NDArray[Any], n_components: int) -> tuple[int, int]:
    checked_count("n_components", n_components, kind="an integer")
    if snapshots.ndim != 2:
        raise ValueError(f"`snapshots` must be a matrix, one flattened network per row, got shape {snapshots.shape}")
    n_snapshots, n_weights = snapshots.shape
    if n_components > n_snapshots:
        raise ValueError(
            f"`n_components` must not exceed the number of snapshots ({n_snapshots}), got {n_components}; "
            "record more snapshots or lower it"
        )
    if n_components > n_weights:
        raise ValueError(f"`n_components` must not exceed the number of weights ({n_weights}), got {n_components}")
    return n_snapshots, n_weights


def _differences(part: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return some columns of all snapshots less those of the first."""
    if part.dtype == dtype:
        return part - part[0]  # type: ignore[no-any-return]  # numpy's stubs do not keep the kind
    wide = part.astype(dtype)
    wide[1:] -= wide[0]
    wide[0] = 0.0
    return wide
