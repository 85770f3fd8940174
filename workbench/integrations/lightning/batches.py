"""The batches of a set-up in Lightning's epochs: merged, cut, resized, and as many as its length says."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Trainer

from workbench.training import Boosted

if TYPE_CHECKING:
    from lightning.pytorch.utilities.combined_loader import CombinedLoader


class RunBatches:
    """One stream through all epochs, which begins where the run stands; Lightning asks for an epoch after the other.

    An epoch has as many samples as today, within a batch.
    """

    def __init__(self, trainer: Trainer, boosted: Boosted, loader: Any, ends: list[int]) -> None:
        self._trainer, self._boosted, self._loader, self._ends = trainer, boosted, loader, [0, *ends]
        self._stream: Generator[Any, None, None] | None = None

    def __len__(self) -> int:
        """Return the forward passes of the present epoch."""
        epoch = min(self._trainer.current_epoch, len(self._ends) - 2)
        return self._ends[epoch + 1] - self._ends[epoch]

    def __iter__(self) -> Iterator[Any]:
        """Go on with the stream; Lightning counts."""
        if self._stream is None:
            self._stream = self._boosted.batches(self._loader, start=self._boosted.step_index)
        for batch in self._stream:  # noqa: UP028  # `yield from` would close the stream with the epoch
            yield batch

    def close(self) -> None:
        """End the stream, and with it the settings of the process that hold while it lasts."""
        if self._stream is not None:
            self._stream.close()


def changes_batches(boosted: Boosted) -> bool:
    """Return whether a set-up makes others of the loader's batches, or takes another number of them."""
    course = boosted.course
    return (
        boosted.methods.changes_batches
        or boosted.methods.reading() != "as_given"
        or course.passes != course.total_steps
    )


def feed_(trainer: Trainer, boosted: Boosted) -> RunBatches:
    """Put the batches of the run in the place of the loader's, in a training that is about to begin.

    Lightning has no public place for another loader once it knows the number of steps, so its loader and what
    fetches from it are named by their private names (2.5 and 2.6 have the same).

    Raises:
        ValueError: When several loaders feed the module, or a part of one.
    """
    loop, combined = trainer.fit_loop, combined_loader(trainer)
    ways = "or train at full length and with the loader's batches"
    if len(combined.flattened) != 1:
        raise ValueError(f"another number of batches needs one train_dataloader, got {len(combined.flattened)}; {ways}")
    part = trainer.limit_train_batches
    if part != 1.0 or trainer.overfit_batches:  # type: ignore[attr-defined]  # set by a function of Lightning's
        raise ValueError(
            "another number of batches is a share of all data; leave out limit_train_batches and overfit_batches, "
            f"got limit_train_batches={part}, {ways}"
        )
    ends = boosted.course.epoch_ends((boosted.course.total_steps or 1) / loop.max_batches if loop.max_batches else 1.0)
    batches = RunBatches(trainer, boosted, combined.flattened[0], ends)
    combined.flattened, combined.limits = [batches], None
    loop.max_epochs, loop.epoch_loop.max_steps = len(ends), -1
    assert loop._data_fetcher is not None
    iter(loop._data_fetcher)
    return batches


def combined_loader(trainer: Trainer) -> CombinedLoader:
    """Return what the trainer takes its batches from."""
    combined = trainer.fit_loop._combined_loader
    assert combined is not None
    return combined


def count_(trainer: Trainer, batches: RunBatches) -> None:
    """Tell the trainer the length of the present epoch, and when to validate in it."""
    trainer.fit_loop.max_batches = len(batches)
    if isinstance(trainer.val_check_interval, float):
        trainer.val_check_batch = max(1, math.floor(len(batches) * trainer.val_check_interval))
