"""What a loader yields: a batch is a tensor, or tuples, lists, named tuples, mappings and dataclasses of tensors.

It has one number of samples. A list or tuple inside of a batch may hold them one by one, as images of different sizes.
An object of another class, such as a batch of graphs, is a batch, too: its attributes are read, and only its own
methods change it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.core import devices

TARGET_KEYS = ("labels", "label", "targets", "target", "y")
"""Names under which a mapping, a dataclass, a named tuple or an object holds the target."""

EPOCH_HOLDERS = ("dataset", "sampler", "batch_sampler")
"""Attributes of a loader that may have a ``set_epoch`` of their own."""

_NO_OBJECTS = (Tensor, np.ndarray, tuple, list, Mapping, str, bytes, int, float, type, nn.Module)


def move_batch(batch: Any, device: str | torch.device) -> Any:
    """Return the batch with every tensor on the device; other objects with a ``to`` method move themselves."""
    return mapped(batch, lambda tensor: devices.moved(tensor, device), others_to=device)


def mapped(batch: Any, function: Callable[[Tensor], Tensor], *, others_to: str | torch.device | None = None) -> Any:
    """Return the batch with every tensor replaced by what a function makes of it; containers keep their kind.

    Where nothing is replaced, the very same container is returned.
    """
    if isinstance(batch, Tensor):
        return function(batch)
    if others_to is not None and callable(getattr(batch, "to", None)):
        return batch.to(others_to)  # a container, too: it knows best how to copy itself
    entries = entries_of(batch)
    if entries is None:
        return batch
    made = [mapped(entry, function, others_to=others_to) for entry in entries.values()]
    is_same = all(new is old for new, old in zip(made, entries.values(), strict=True))
    return batch if is_same else with_entries(batch, made)


def tensor_of(outputs: Any) -> Tensor | None:
    """Return what a model returns if it is a tensor, or the logits that outputs of Hugging Face's hold; else None."""
    values = outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)
    return values if isinstance(values, Tensor) else None


def widened(outputs: Any) -> Any:
    """Return outputs of a model, or what holds them, with half precision as float32."""
    return mapped(outputs, lambda one: one.float() if one.dtype in (torch.float16, torch.bfloat16) else one)


def entries_of(batch: Any) -> dict[Any, Any] | None:
    """Return what a container holds, by key, name or position; None for anything that is none."""
    if isinstance(batch, list | tuple):
        return dict(enumerate(batch))
    return dict(batch) if isinstance(batch, Mapping) else fields_of(batch)


def with_entries(batch: Any, entries: Iterable[Any]) -> Any:
    """Return a container of the same kind as another with these entries, in the order of `entries_of`."""
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*entries)
    if isinstance(batch, list | tuple):
        return type(batch)(entries)
    names = batch if isinstance(batch, Mapping) else fields_of(batch) or {}
    named = dict(zip(names, entries, strict=True))
    if isinstance(batch, MutableMapping) and type(batch) is not dict:
        is_dict = isinstance(batch, dict | UserDict)
        # A copy keeps the attributes of a subclass. A shallow one of any other mapping would share its storage.
        twin = copy.copy(batch) if is_dict else copy.deepcopy(batch, {id(entry): entry for entry in batch.values()})
        for key, entry in named.items():
            twin[key] = entry
        return twin
    return named if isinstance(batch, Mapping) else dataclasses.replace(batch, **named)


def fields_of(batch: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass by name, in their order; None for anything else."""
    if not dataclasses.is_dataclass(batch) or isinstance(batch, type):
        return None
    return {one.name: getattr(batch, one.name) for one in dataclasses.fields(batch) if one.init}


def is_object(batch: Any) -> bool:
    """Return whether a batch is neither a tensor nor a container: of a class of the user's, or of a library's."""
    return not isinstance(batch, _NO_OBJECTS) and fields_of(batch) is None


def held_by_object(batch: Any) -> dict[Any, Any] | None:
    """Return what an object, such as a batch of PyTorch Geometric's, holds by name.

    What its ``to_dict()`` gives, or its public attributes; None where none is a tensor, and for all other batches.
    """
    if not is_object(batch):
        return None
    try:
        to_dict = getattr(batch, "to_dict", None)
        named = dict(to_dict() if callable(to_dict) else vars(batch))
    except Exception:  # of another meaning, or without attributes
        return None
    held = {key: part for key, part in named.items() if not str(key).startswith("_")}
    return held if next(tensors_of(held), None) is not None else None


def parts_by_name(batch: Any) -> Mapping[Any, Any]:
    """Return the parts of a mapping, a dataclass, a named tuple or an object by name; of anything else none."""
    if isinstance(batch, tuple):
        return dict(zip(getattr(batch, "_fields", ()), batch, strict=False))
    return batch if isinstance(batch, Mapping) else fields_of(batch) or held_by_object(batch) or {}


def target_key(parts: Mapping[Any, Any]) -> str | None:
    """Return the name among :func:`parts_by_name` under which the target is; None if there is none."""
    return next((key for key in TARGET_KEYS if key in parts), None)


def inputs_and_target(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any] | None:
    """Return what a model is called with, by position and by name, and its target; None if there is no target.

    The target is the part under one of ``TARGET_KEYS``; without names it is the last of two or more items.
    """
    named = parts_by_name(batch)
    key = target_key(named)
    others = {name: named[name] for name in named if name != key}
    if isinstance(batch, tuple) and key is not None:
        return tuple(others.values()), {}, named[key]
    if isinstance(batch, list | tuple):
        return (tuple(batch[:-1]), {}, batch[-1]) if len(batch) > 1 else None
    return None if key is None else ((), others, named[key])


def batch_size_of(batch: Any) -> int:
    """Return the number of samples: the length of its tensors and arrays, or else of the lists in it.

    What has length 1 or none belongs to all of them. Where there are lists alone, tensors of one length make these a
    model's several inputs or targets, and each holds all samples. An object says it itself (``num_graphs`` or
    ``batch_size``), or by the length of its target.

    Raises:
        ValueError: When there is no tensor, array or list in it, or a nested tensor.
    """
    if is_object(batch):
        said = next((getattr(batch, name) for name in ("num_graphs", "batch_size") if hasattr(batch, name)), None)
        if isinstance(said, int):
            return said
        if (held := held_by_object(batch)) is not None:
            key = target_key(held)
            return batch_size_of(held if key is None else held[key])
    lists, is_one = [], False
    for part in _outside_lists(batch):
        if isinstance(part, Tensor) and part.is_nested:
            raise ValueError(
                "a batch must hold tensors of one shape, got a nested tensor; pad it: "
                "torch.nested.to_padded_tensor(x, 0)"
            )
        if is_list(part):
            lists.append(part)
        elif is_array(part):
            if (length := length_of(part)) not in (None, 1):
                return length
            is_one = True
    if is_one:
        return 1
    if not lists:
        raise ValueError(
            f"a batch must hold at least one tensor, got {type(batch).__name__}; tensors are found in tuples, "
            "mappings, dataclasses and attributes: let the loader's collate_fn return one of them"
        )
    lengths = {length_of(tensor) for tensor in tensors_of(lists)}
    if len(lengths) != 1 or not all(isinstance(entry, Tensor | list | tuple) for one in lists for entry in one):
        return len(lists[0])
    return lengths.pop() or 1


def _outside_lists(batch: Any, *, outermost: bool = True) -> Iterator[Any]:
    """Yield what a batch holds, but a list inside of it as a whole."""
    entries = None if is_list(batch) and not outermost else entries_of(batch)
    if entries is None:
        yield batch
    else:
        for entry in entries.values():
            yield from _outside_lists(entry, outermost=False)


def is_list(part: Any) -> bool:
    """Return whether a part of a batch is a list, or a tuple without names."""
    return isinstance(part, list | tuple) and not hasattr(part, "_fields")


def is_array(part: Any) -> bool:
    """Return whether a part of a batch is a tensor, or an array of numpy's."""
    return isinstance(part, Tensor | np.ndarray)


def length_of(part: Any) -> int | None:
    """Return the length of a list, or the first dimension of a tensor or an array; None for what has none."""
    return len(part) if is_list(part) or (is_array(part) and part.ndim) else None


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch in the order in which its containers hold them."""
    if isinstance(batch, Tensor):
        yield batch
    else:
        for entry in (entries_of(batch) or {}).values():
            yield from tensors_of(entry)


def told_of_epochs(loader: Any) -> Iterator[Callable[[int], Any]]:
    """Yield ``set_epoch`` of a loader, of its data set and of its samplers, as far as they have it.

    Samplers that share an epoch's order between ranks have to be told which epoch it is.
    """
    for holder in (loader, *(getattr(loader, name, None) for name in EPOCH_HOLDERS)):
        set_epoch = getattr(holder, "set_epoch", None)
        if callable(set_epoch):
            yield set_epoch


def tell_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader about to be iterated which epoch it is."""
    for set_epoch in told_of_epochs(loader):
        set_epoch(epoch)


def n_batches_of(loader: Any) -> int | None:
    """Return how many batches a loader has; None where it does not know, as a DataLoader over a stream."""
    try:
        return len(loader)
    except TypeError:
        return None


def epochs_of(loader: Iterable[Any], epochs: int | None, on_epoch: Callable[[Any, int], None]) -> Iterator[Any]:
    """Yield the batches of one epoch after the other, with ``set_epoch`` called before each; None epochs never end."""
    for epoch in count() if epochs is None else range(epochs):
        tell_epoch(loader, epoch)
        on_epoch(loader, epoch)
        batch = None
        for batch in loader:
            yield batch
        if batch is None:
            raise ValueError(
                f"the loader held no batch in epoch {epoch}; an iterator can be read only once, give something that "
                "can be iterated again, such as a list or a DataLoader"
            )
