"""What a loader yields: a batch is a tensor, or tuples, lists, named tuples and mappings of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.core import devices

__all__ = ["batch_size_of", "mapped", "move_batch", "tensors_of"]


def move_batch(batch: Any, device: str | torch.device) -> Any:
    """Return the batch with every tensor on the device; containers keep their kind.

    Tuples, lists, named tuples and mappings are walked; other objects with a ``to`` method are asked to move
    themselves; anything else (text, numbers) stays as it is. Tensors already there are not copied.
    """
    if isinstance(batch, Tensor):
        return devices.moved(batch, device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_batch(part, device) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move_batch(part, device) for part in batch)
    if callable(getattr(batch, "to", None)):  # before mappings: such a batch knows best how to copy itself
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: move_batch(part, device) for key, part in batch.items()}
    return batch


def mapped(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return the batch with every tensor replaced by what a function makes of it; containers keep their kind."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(part, function) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(mapped(part, function) for part in batch)
    if isinstance(batch, Mapping):
        return {key: mapped(part, function) for key, part in batch.items()}
    return batch


def batch_size_of(batch: Any) -> int:
    """Return the number of samples: the first dimension of the first tensor found (1 when it has none).

    Raises:
        ValueError: When the batch holds no tensor.
    """
    tensor = next(tensors_of(batch), None)
    if tensor is None:
        raise ValueError(f"a batch must hold at least one tensor, got {type(batch).__name__}")
    return int(tensor.shape[0]) if tensor.ndim else 1


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch in the order in which its containers hold them."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from tensors_of(part)
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from tensors_of(part)
