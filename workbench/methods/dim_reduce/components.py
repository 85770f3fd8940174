"""The components of a subspace that one rank holds: which rows of them, and whether they fit the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Arithmetic = Literal["corrected", "reference"]


def component_rows(n_components: int, rank: int, rank_size: int, arithmetic: Arithmetic = "corrected") -> slice:
    """Return which of the k components a rank holds; ``"reference"`` loses what the number of ranks does not divide."""
    if not 0 <= rank < rank_size:
        raise ValueError(f"`rank` must lie in [0, rank_size), got rank {rank} of {rank_size}")
    each, rest = divmod(n_components, rank_size)
    if arithmetic == "reference":
        return slice(rank * each, (rank + 1) * each)
    start = rank * each + min(rank, rest)
    return slice(start, start + each + (rank < rest))


def fitting_components(
    matrix: NDArray[Any] | Tensor, rows: slice, weights: Sequence[Tensor], n_components: int, rank: int, rank_size: int
) -> Tensor:
    """Return a rank's rows of all components as a tensor on the weights' device; a ValueError where they do not fit."""
    if not weights:
        raise ValueError("`weight` must hold the parameters to train, got none")
    # torch needs memory it may write to; a read-only memory map is copied, anything else is not.
    tensor = matrix if isinstance(matrix, Tensor) else torch.from_numpy(np.require(matrix, requirements="W"))
    n_weights = sum(parameter.numel() for parameter in weights)
    if tensor.ndim != 2 or tensor.shape[1] != n_weights:
        raise ValueError(
            f"`pca_mat_local` must have one column per weight ({n_weights}), got shape {tuple(tensor.shape)}; "
            "it was made for another network"
        )
    n_rows = rows.stop - rows.start
    if len(tensor) != n_rows:
        raise ValueError(
            f"`pca_mat_local` must hold the {n_rows} of {n_components} components that belong to rank "
            f"{rank} of {rank_size} (see component_rows), got {len(tensor)}"
        )
    if not torch.isfinite(tensor).all():
        raise ValueError("`pca_mat_local` must be finite, got inf or NaN")
    first = weights[0]
    # Half precision would lose the small differences of gradients that curvature is learned from.
    dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
    return tensor.to(first.device, dtype)
