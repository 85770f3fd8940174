"""Batches of another size than the loader's: concatenated, or cut into parts.

A batch is what :mod:`workbench.core.batch` says. Its tensors and arrays share their first dimension, the samples, and
so do lists inside of it that hold them one by one; a list of another length holds several inputs, of all samples each.
Whatever belongs to no sample (numbers, texts, tensors of length 1 or none) is kept where all batches agree on it, and
anything else is refused. A batch with a method ``joined(batches)`` is concatenated by that, PyTorch Geometric's graphs
by theirs, and what a DataLoader's own ``collate_fn`` makes is made by that, of the samples of several batches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader

from workbench.config import BoostConfig
from workbench.core.batch import (
    batch_size_of,
    entries_of,
    held_by_object,
    is_array,
    is_list,
    length_of,
    with_entries,
)
from workbench.core.step_optimizer import scale_rates
from workbench.methods.batch.own_collate import Uncollated, uncollated
from workbench.methods.batch.section import BatchSection
from workbench.methods.protocol import FirstBatch, Method, Preparation

_WHOLE = "batch"  # the place of a whole batch; its parts have places such as batch[1]


def resized(batches: Iterable[Any], factor: float) -> Iterator[Any]:
    """Yield batches of ``factor`` times as many samples: concatenated, or cut into 1 / factor parts."""
    if factor < 1:
        n_parts, smallest = round(1 / factor), 0
        for batch in batches:
            # A short last batch is not cut into single samples, of which BatchNorm has no statistics.
            smallest = smallest or min(max(batch_size_of(batch) // n_parts, 1), 2)
            yield from parts_of(batch, n_parts, smallest)
        return
    stream = iter(batches)
    while group := list(islice(stream, round(factor))):
        yield concatenated(group)


def concatenated(group: Sequence[Any]) -> Any:
    """Return at least one batch as one, of the form of the first; a ValueError says why they cannot be."""
    first = group[0]
    if len(group) == 1 and not isinstance(first, Uncollated):
        return first
    if callable(joined := getattr(first, "joined", None)):  # it knows better, as where texts are padded together
        return joined(group)
    if callable(getattr(first, "to_data_list", None)):  # PyTorch Geometric's
        kind: Any = next(one for one in type(first).__mro__ if "from_data_list" in vars(one))
        return kind.from_data_list([graph for batch in group for graph in batch.to_data_list()])
    return _regrouped(group, [batch_size_of(batch) for batch in group], _joined)


def parts_of(batch: Any, n_parts: int, smallest: int = 1) -> Iterator[Any]:
    """Yield a batch in parts of nearly equal size; fewer than asked for where they would be smaller than allowed."""
    samples = batch_size_of(batch)
    borders = torch.linspace(0, samples, max(min(n_parts, samples // smallest), 1) + 1).round().int().tolist()
    for begin, end in pairwise(borders):
        yield _regrouped([batch], [samples], functools.partial(_rows, begin=begin, end=end))


def why_not_merged(batches: Sequence[Any]) -> str:
    """Return why batches cannot be concatenated, to stand after "because"; empty where they can."""
    try:
        concatenated(batches)
    except Exception as error:  # a batch may be of a class of the user's
        return str(error).partition(";")[0]
    return ""


def _regrouped(
    group: Sequence[Any], sizes: list[int], change: Callable[[Sequence[Any], str], Any], place: str = _WHOLE
) -> Any:
    """Return batches of so many samples, or the same part of each, as one, with a change of what holds the samples.

    ``place`` is where in a batch the group stands, for the sentences.
    """
    first = group[0]
    if isinstance(first, PackedSequence):
        raise ValueError(
            "packed sequences cannot be concatenated or cut; give them padded to one length, with their lengths, and "
            "let the model pack them, or leave `batch.factor` at 1"
        )
    if held_by_object(first) is not None:
        raise ValueError(
            f"batches of class {type(first).__name__} cannot be concatenated without a method joined(batches), nor be "
            "cut; give them one, or leave `batch.factor` at 1"
        )
    if any(type(part) is not type(first) for part in group):
        raise _differing(f"{type(first).__name__} values", place)
    if [length_of(part) for part in group] == sizes and not (place == _WHOLE and is_list(first)):
        if is_list(first) and max(sizes) > 1 and all(map(_may_be_inputs, group)):
            raise ValueError(
                f"{place}: a list of {len(first)} tensors of that length may hold {len(first)} samples or several "
                "inputs; name inputs in a mapping, or leave `batch.factor` at 1"
            )
        return change(group, place)
    if (entries := entries_of(first)) is not None:
        others = [entries_of(part) or {} for part in group]
        if any(other.keys() != entries.keys() for other in others):
            raise _differing(f"{type(first).__name__} entries", place)
        parts = (_regrouped([one[key] for one in others], sizes, change, f"{place}[{key!r}]") for key in entries)
        return with_entries(first, parts)
    for part, size in zip(group, sizes, strict=True):
        if length_of(part) not in (None, 1):
            raise ValueError(
                f"a batch of {size} rows holds a {type(part).__name__} of shape {tuple(part.shape)} at {place}, "
                "which cannot be divided among them; give it a first dimension of 1 if it is the same for all samples "
                "of all batches, or leave `batch.factor` at 1"
            )
        if not _are_equal(part, first):
            raise _differing(f"{type(first).__name__} values", place)
    return first


def _differing(what: str, place: str) -> ValueError:
    where = "a batch" if place == _WHOLE else place
    return ValueError(
        f"{where} holds {what} that differ from batch to batch and cannot be concatenated; leave `batch.factor` at 1"
    )


def _joined(parts: Sequence[Any], place: str) -> Any:
    first = parts[0]
    if is_list(first):
        return with_entries(first, [sample for part in parts for sample in part])
    if any(part.shape[1:] != first.shape[1:] for part in parts):
        shapes = ", ".join(str(tuple(part.shape)) for part in parts[:3])
        where = "" if place == _WHOLE else f" at {place}"
        raise ValueError(
            f"batches of shapes {shapes}{where} cannot be concatenated without a method joined(batches) that pads "
            "them; give them one, or leave `batch.factor` at 1"
        )
    return torch.cat(list(parts)) if isinstance(first, Tensor) else np.concatenate(parts)


def _rows(parts: Sequence[Any], _place: str, *, begin: int, end: int) -> Any:
    return parts[0][begin:end]


def _may_be_inputs(part: Any) -> bool:
    return all(is_array(entry) and length_of(entry) == len(part) for entry in part)


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


class BatchMethod(Method):
    """Changes what one pass sees, and lets the rates follow."""

    needs_shapes = False

    @staticmethod
    def reasons(
        network: nn.Module, criterion: Any, example_inputs: Any, config: BoostConfig | None
    ) -> Mapping[str, str]:
        """Return why batches cannot be concatenated, as far as one shows; what is asked for is refused in training."""
        if config is not None or not isinstance(example_inputs, FirstBatch):
            return {}
        return {"no_merging": why_not_merged([example_inputs.to_join()] * 2)}

    def reshape(self, preparation: Preparation) -> None:
        """Multiply the rates, before anything wraps the optimizer."""
        factor = self.config.part(BatchSection).rate_factor()
        if factor != 1.0:
            scale_rates(preparation.optimizer.param_groups, factor)

    def passes(self, n_batches: float) -> float:
        """Return the passes over as many samples."""
        return n_batches / self.config.part(BatchSection).factor

    def loader(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Leave samples for larger batches to the loader's own ``collate_fn``."""
        return uncollated(loader) if self.config.part(BatchSection).factor > 1.0 else loader

    def batches(self, batches: Iterable[Any], passes: int) -> Iterable[Any]:
        """Concatenate or cut the loader's batches."""
        return resized(batches, self.config.part(BatchSection).factor)
