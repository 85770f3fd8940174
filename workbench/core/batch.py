"""What a loader yields: a batch is a tensor, or tuples, lists, named tuples and mappings of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.core import devices


def move_batch(batch: Any, device: str | torch.device) -> Any:
    """Return the batch with every tensor on the device; other objects with a ``to`` method move themselves."""
    return mapped(batch, lambda tensor: devices.moved(tensor, device), others_to=device)


def mapped(batch: Any, function: Callable[[Tensor], Tensor], *, others_to: str | torch.device | None = None) -> Any:
    """Return the batch with every tensor replaced by what a function makes of it; containers keep their kind."""

    def parts(batch: Iterable[Any]) -> Iterator[Any]:
        return (mapped(part, function, others_to=others_to) for part in batch)

    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*parts(batch))
    if isinstance(batch, list | tuple):
        return type(batch)(parts(batch))
    if others_to is not None and callable(
        getattr(batch, "to", None)
    ):  # a mapping, too: it knows best how to copy itself
        return batch.to(others_to)
    if isinstance(batch, Mapping):
        return dict(zip(batch, parts(batch.values()), strict=True))
    return batch


def batch_size_of(batch: Any) -> int:
    """Return the number of samples: the first dimension of the first tensor found (1 when it has none)."""
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
