"""Batches of another size than the loader's: concatenated, or cut into parts.

A batch is a tensor, or tuples, lists, named tuples, mappings and dataclasses of them, whose tensors share their first
dimension, the samples. What is no tensor is kept where all batches agree on it. A batch with a method
``joined(batches)`` is concatenated by that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any

import torch
from torch import Tensor

from workbench.core.batch import batch_size_of, entries_of, mapped, with_entries
from workbench.methods.batch.section import BatchSection
from workbench.methods.protocol import Method, Preparation


def resized(batches: Iterable[Any], factor: float) -> Iterator[Any]:
    """Yield batches of ``factor`` times as many samples: concatenated, or cut into 1 / factor parts."""
    if factor < 1:
        for batch in batches:
            yield from parts_of(batch, round(1 / factor))
        return
    stream = iter(batches)
    while group := list(islice(stream, round(factor))):
        yield concatenated(group)


def concatenated(group: Sequence[Any]) -> Any:
    """Return at least one batch as one, of the form of the first; a ValueError says where they differ."""
    first = group[0]
    if len(group) == 1:
        return first
    if callable(joined := getattr(first, "joined", None)):  # it knows better, as where texts are padded together
        return joined(group)
    if isinstance(first, Tensor):
        if first.ndim == 0 or any(part.shape[1:] != first.shape[1:] for part in group):
            shapes = ", ".join(str(tuple(part.shape)) for part in group[:3])
            raise ValueError(f"batches of shapes {shapes} cannot be concatenated; leave `batch.factor` at 1")
        return torch.cat(list(group))
    if (entries := entries_of(first)) is not None:
        others = [entries_of(batch) or {} for batch in group]
        return with_entries(first, (concatenated([one[key] for one in others]) for key in entries))
    if any(part != first for part in group):
        raise ValueError(
            f"a batch holds {type(first).__name__} values that differ from batch to batch and cannot be concatenated; "
            "leave `batch.factor` at 1"
        )
    return first


def parts_of(batch: Any, n_parts: int) -> Iterator[Any]:
    """Yield a batch in parts of nearly equal size; fewer than asked for where it has fewer samples."""
    samples = batch_size_of(batch)
    borders = torch.linspace(0, samples, min(n_parts, samples) + 1).round().int().tolist()
    for begin, end in pairwise(borders):
        yield mapped(batch, functools.partial(_rows, begin=begin, end=end, n_samples=samples))


def _rows(tensor: Tensor, begin: int, end: int, n_samples: int) -> Tensor:
    return tensor[begin:end] if tensor.ndim and len(tensor) == n_samples else tensor


class BatchMethod(Method):
    """Changes what one pass sees, and lets the rates follow."""

    def reshape(self, preparation: Preparation) -> None:
        """Multiply the rates, before anything wraps the optimizer."""
        factor = self.config.part(BatchSection).rate_factor()
        if factor != 1.0:
            for group in preparation.optimizer.param_groups:
                for name in ("lr", "initial_lr"):
                    if name in group:
                        group[name] = group[name] * factor

    def passes(self, n_batches: float) -> float:
        """Return the passes over as many samples."""
        return n_batches / self.config.part(BatchSection).factor

    def batches(self, batches: Iterable[Any], passes: int) -> Iterable[Any]:
        """Concatenate or cut the loader's batches."""
        return resized(batches, self.config.part(BatchSection).factor)
