"""The epochs of a Model's training: how many batches, and which, as the dataset has them or the configuration asks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from torch import distributed

from workbench.config import BoostConfig
from workbench.core import distributed as ranks
from workbench.core.batch import n_batches_of, tell_epoch
from workbench.mindspore.resuming import Progress, ResumedTraining
from workbench.training.boosted import Boosted
from workbench.training.checkpoint_folder import CheckpointFolder


def resumed_training(
    folder: CheckpointFolder, boosted: Boosted, config: BoostConfig, dataset: Any, epochs: Iterable[int]
) -> ResumedTraining:
    """Return what keeps the progress of a training in a folder, and goes on from what is kept there."""
    n_batches = n_batches_of(dataset)
    this: dict[str, Any] = {"config": config.to_dict(), "batches": n_batches, "ranks": ranks.world_size()}
    if _has_course(boosted) and isinstance(epochs, range) and n_batches is not None:
        this["epochs"] = [epochs.start, epochs.stop - 1]
        boosted.course.begin(n_batches * len(epochs))  # the schedule is there before its position is restored
    return ResumedTraining(folder, boosted, this)


def epochs_of(
    boosted: Boosted, dataset: Iterable[Any], epochs: Iterable[int], resumed: ResumedTraining | None
) -> Iterator[tuple[int, Iterable[Any]]]:
    """Yield the number and the batches of each epoch: the dataset's, or those that the configuration makes of them.

    A run that the configuration shortens has fewer epochs, of as many samples as before; the last may be shorter.
    """
    progress = Progress() if resumed is None else resumed.progress
    if not _has_course(boosted):
        for number in itertools.dropwhile(lambda number: number < progress.epoch, epochs):
            tell_epoch(dataset, number - 1)
            yield number, dataset if resumed is None else resumed.batches_of(dataset, number)
        return
    n_batches, numbers = n_batches_of(dataset), epochs if isinstance(epochs, range) else None
    if n_batches is None or numbers is None:
        raise ValueError(
            "the configuration changes the length or the batches of the run, so that both must be known beforehand: "
            "give `train_dataset` a length and train for a number of epochs"
        )
    stream = boosted.batches(dataset, len(numbers), start=progress.steps)
    if progress.epoch > numbers[-1]:
        return
    if resumed is not None:
        resumed.put_back()
    passes = boosted.course.passes or 1
    per_epoch = max(1, round(n_batches * passes / boosted.methods.length(n_batches * len(numbers))))
    for number, begin in zip(numbers, range(0, passes, per_epoch), strict=False):
        if number >= progress.epoch:
            n_done = progress.step if number == progress.epoch else 0
            yield number, itertools.islice(stream, min(per_epoch, passes - begin) - n_done)


def check_equal_lengths(dataset: Any) -> None:
    """Refuse, on every rank, datasets of which one ends before the others: their ranks would wait for it."""
    if ranks.world_size() == 1:
        return
    lengths: list[int | None] = [None] * ranks.world_size()
    distributed.all_gather_object(lengths, n_batches_of(dataset))
    if len(set(lengths) - {None}) > 1:
        raise ValueError(
            f"`train_dataset` must have equally many batches on every rank, got {', '.join(map(str, lengths))}; give "
            "each rank a share of the same size"
        )


def _has_course(boosted: Boosted) -> bool:
    """Return whether the configuration decides about the batches of the whole training."""
    return boosted.course.needs_length or boosted.methods.changes_batches
