"""How a batch reaches a network, and how its outputs come back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def called_with(network: nn.Module, batch: Any) -> Any:
    """Return what a network makes of the items of a tuple or list, those of a mapping by name, or the batch itself."""
    if isinstance(batch, Mapping):
        return network(**batch)
    return network(*batch) if isinstance(batch, (tuple, list)) else network(batch)


def data_and_label(batch: Any) -> tuple[Any, Any]:
    """Return the two items of a batch that a criterion is to judge."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    came = f"{len(batch)} items" if isinstance(batch, (tuple, list)) else type(batch).__name__
    raise ValueError(
        f"with `loss_fn` every batch must be a pair (data, label), got {came}; set `loss_fn` to None and let the "
        "network return the loss"
    )


def checked_loss(loss: Any, returned_by: str) -> Tensor:
    """Return a loss that a backward pass can start from; ``returned_by`` is the argument that returned it."""
    if not isinstance(loss, Tensor):
        raise TypeError(f"`{returned_by}` must return the loss as a tensor, got {type(loss).__name__}")
    if loss.numel() != 1:
        raise ValueError(
            f"`{returned_by}` must return one number as the loss, got shape {list(loss.shape)}; average it, for "
            "example with reduction='mean'"
        )
    return loss
