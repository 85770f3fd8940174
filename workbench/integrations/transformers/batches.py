"""What Hugging Face's Trainer reads: the batches of a set-up as a data loader, and batches that can be joined.

Collators pad every batch to its own longest sample, so that batches of texts differ in shape and cannot be concatenated
as they are. A batch made by `joinable` keeps its samples, and is collated again together with others.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from workbench.core.batch import mapped, move_batch, n_batches_of, tensors_of
from workbench.methods.in_effect import MethodsInEffect
from workbench.tasks.batches import endless_batches
from workbench.tasks.reading import resident
from workbench.training.boosted import Boosted

if TYPE_CHECKING:
    from transformers import Trainer

_MANY = 10**6


class JoinableBatch(dict[str, Any]):
    """A collated batch that remembers its samples and its collator; a copy made of its values alone does not."""

    samples: list[Any]
    collate: Callable[[list[Any]], Any] | None = None

    def to(self, device: str | torch.device, **options: Any) -> JoinableBatch:
        """Return the batch with every tensor on a device."""
        moved = JoinableBatch(mapped(dict(self), lambda one: one.to(device, **options)))
        if self.collate is not None:
            moved.samples, moved.collate = self.samples, self.collate
        return moved

    def __copy__(self) -> JoinableBatch:
        return JoinableBatch(self)  # whoever copies it changes the values, which the samples know nothing of

    @staticmethod
    def joined(batches: Sequence[JoinableBatch]) -> Mapping[str, Any]:
        """Return batches as one, padded together."""
        first = batches[0]
        if first.collate is None:
            raise ValueError("only batches as their collator made them can be joined")
        device = next((tensor.device for tensor in tensors_of(first)), torch.device("cpu"))
        batch = joinable(first.collate, [sample for batch in batches for sample in batch.samples])
        assert isinstance(batch, JoinableBatch), "its collator made mappings before"
        return batch.to(device)


@contextlib.contextmanager
def joining(trainer: Trainer) -> Iterator[None]:
    """Let a Trainer make loaders whose batches can be joined."""
    collator = trainer.data_collator
    trainer.data_collator = functools.partial(joinable, collator)
    try:
        yield
    finally:
        trainer.data_collator = collator


def joinable(collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    """Return the batch of some samples, which can be joined where it is a mapping."""
    batch = collate(samples)
    if not isinstance(batch, Mapping):
        return batch
    kept = JoinableBatch(batch)
    kept.samples, kept.collate = samples, collate
    return kept


class Passes(IterableDataset[Any]):
    """The forward passes of a run as the Trainer takes them: so many per epoch, one stream over all epochs.

    An epoch of the Trainer holds whole updates, as many as come nearest to one pass over the data; the stream goes on
    where the last epoch left it, so that no batch is cut short or lost between epochs. Random numbers that the data
    draw are the stream's own, from ``seed``: a run that goes on after the ``updates_done`` draws the same ones.
    """

    def __init__(
        self, loader: DataLoader[Any], methods: MethodsInEffect, seed: int, updates_done: Callable[[], int]
    ) -> None:
        self.loader = loader
        #: Loader batches of one forward pass, and forward passes of one update.
        self.batches_per_pass = methods.length(_MANY) / methods.passes(_MANY)
        self.n_micro = methods.n_micro()
        self.boosted: Boosted | None = None
        self._seed, self._updates_done = seed, updates_done
        self._stream: Iterator[Any] | None = None

    @property
    def updates_per_epoch(self) -> int | None:
        """The updates of one of the Trainer's epochs; None where the loader does not know its length."""
        n_batches = n_batches_of(self.loader)
        return None if n_batches is None else max(1, round(n_batches / (self.batches_per_pass * self.n_micro)))

    def __len__(self) -> int:
        """Return the forward passes of one of the Trainer's epochs; a TypeError where that is not known."""
        if self.updates_per_epoch is None:
            raise TypeError("the loader has no length")
        return self.updates_per_epoch * self.n_micro

    def first(self) -> Any:
        """Return the first of the loader's batches."""
        return next(endless_batches(self.loader, self._seed))

    def __iter__(self) -> Iterator[Any]:
        """Return the passes of the next epoch."""
        per_epoch = self.updates_per_epoch
        if self._stream is None:
            done = 0 if per_epoch is None else self._updates_done() // per_epoch * per_epoch
            self._stream = self._passes(done * self.n_micro)
        return iter(self._stream) if per_epoch is None else islice(self._stream, len(self))

    def _passes(self, start: int) -> Iterator[Any]:
        boosted = self.boosted
        assert boosted is not None, "the Trainer asks for batches when the run has begun"
        passes = boosted.course.passes
        assert passes is not None, "apply() was given the length"
        device = boosted.device
        source = resident(self.loader, device) if boosted.methods.reading() == "resident" else self.loader
        with boosted.methods.running():
            moved = (move_batch(batch, device) for batch in endless_batches(source, self._seed))
            yield from islice(boosted.methods.batches(moved, passes), start, passes)

    def close(self) -> None:
        """End the stream, and put settings of the process that held while it ran back."""
        if self._stream is not None:
            self._stream.close()  # type: ignore[attr-defined]  # a generator
            self._stream = None
