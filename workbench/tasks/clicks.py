"""``clicks``: an endless stream of clicks with drift, and a recommender that learns from it.

The records are those of `workbench.tasks.click_law`. A batch is ``((ids, numbers), clicks)``: int64
``[batch, fields]``, float32 ``[batch, numbers]``, float32 ``[batch]``. To train without end open the stream where you
are: ``workbench.rec.RecModel(...).online_train(lambda n: click_stream(seed=0, start=n))``. As a task the stream is cut:
an epoch is its first 2000 batches, and what comes right after them, before the first abrupt drift, is for evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.optim.embeddings import EvictingEmbedding
from workbench.optim.row_wise import RowWiseAdam
from workbench.tasks.batches import digest_of_batches
from workbench.tasks.click_law import ClickLaw
from workbench.tasks.task import Task

ClickBatch = tuple[tuple[Tensor, Tensor], Tensor]

BATCH_SIZE = 64
N_TRAINING_BATCHES = 2000
N_EVALUATION_RECORDS = 16_384
EVALUATION_BATCH_SIZE = 1024
_BLOCK_RECORDS = 4096  # drawn at once: numpy's cost per call is spread over so many records


def clicks() -> Task:
    """Return the task of the click stream: embeddings with eviction, row-wise Adam, area under the ROC curve."""
    return Task(
        name="clicks",
        model=ClickModel,
        loss=nn.BCEWithLogitsLoss(),
        optimizer=row_wise_adam,
        train=_training_batches,
        evaluate=_evaluation_batches,
        metric="auroc",
        data_hash=f"workbench.tasks.click_law sha256:{digest_of_batches(_TrainingClicks(0), 8)}",
    )


def click_stream(
    seed: int,
    start: int = 0,
    batch_size: int = BATCH_SIZE,
    *,
    law: ClickLaw | None = None,
    poison: float = 0.0,
    misshapen: float = 0.0,
) -> Iterator[ClickBatch]:
    """Yield batches without end; ``click_stream(seed, start=n)`` is ``click_stream(seed)`` without its first n.

    Args:
        seed: Seed of the law, >= 0.
        start: Batches that lie before the first one yielded, >= 0.
        batch_size: Records per batch, >= 1.
        law: Other rules than the defaults; its own seed counts then.
        poison: Share of the records that are spoiled, in [0, 1]: a third each have a NaN among the numbers, an infinite
            number, or a label that is neither 0 nor 1.
        misshapen: Share of the batches that lack their last column of numbers, in [0, 1].
    """
    if start < 0 or batch_size < 1:
        raise ValueError(f"`start` must be at least 0 and `batch_size` at least 1, got {start} and {batch_size}")
    for name, share in (("poison", poison), ("misshapen", misshapen)):
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"`{name}` must lie in [0, 1], got {share}")
    return _endless(ClickLaw(seed) if law is None else law, start, batch_size, poison, misshapen)


def _endless(law: ClickLaw, start: int, batch_size: int, poison: float, misshapen: float) -> Iterator[ClickBatch]:
    batches_per_block = max(_BLOCK_RECORDS // batch_size, 1)
    while True:
        places = np.arange(start * batch_size, (start + batches_per_block) * batch_size)
        ids, numbers, labels = law.records(places)
        lacking = np.zeros(batches_per_block, dtype=bool)
        if poison > 0.0 or misshapen > 0.0:
            drawn = law.draws(places, "poison", 3)
            spoiled = (drawn[:, 0] < poison).nonzero()[0]
            kind = (drawn[spoiled, 1] * 3).astype(np.int64)
            numbers[spoiled[kind == 0], 0] = np.nan
            numbers[spoiled[kind == 1], -1] = np.inf
            labels[spoiled[kind == 2]] = -1.0
            lacking = drawn[::batch_size, 2] < misshapen
        blocks = (torch.split(torch.from_numpy(array), batch_size) for array in (ids, numbers, labels))
        for bad, of_ids, of_numbers, of_labels in zip(lacking, *blocks, strict=True):
            yield (of_ids, of_numbers[:, :-1] if bad else of_numbers), of_labels
        start += batches_per_block


class ClickModel(nn.Module):
    """Factorization machine and perceptron over the same embeddings, for ids of any number and kind.

    Reference:
        Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", IJCAI 2017,
        arXiv:1703.04247, with one hidden layer and without first-order weights of the ids, which the perceptron sees.
    """

    def __init__(
        self, n_fields: int = 8, n_numbers: int = 4, n_rows: int = 1 << 13, dim: int = 16, width: int = 64
    ) -> None:
        super().__init__()
        self.table = EvictingEmbedding(n_rows, dim)
        self.hidden = nn.Linear(n_fields * dim + n_numbers, width)
        self.relu = nn.ReLU()
        self.out = nn.Linear(width, 1)

    def forward(self, features: tuple[Tensor, Tensor]) -> Tensor:
        """Return the logits, shape ``[batch]``, for ids ``[batch, n_fields]`` and numbers ``[batch, n_numbers]``."""
        ids, numbers = features
        vectors = self.table(ids)
        # All pairs of fields at once (Rendle, "Factorization Machines", ICDM 2010, lemma 3.1).
        pairs = 0.5 * (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1)
        hidden = self.relu(self.hidden(torch.cat([vectors.flatten(1), numbers], dim=1)))
        return self.out(hidden).squeeze(1) + pairs  # type: ignore[no-any-return]  # nn.Module calls are Any


@dataclass(frozen=True)
class _TrainingClicks:
    """The first batches of a stream, over and over; any position at once."""

    seed: int

    def __len__(self) -> int:
        return N_TRAINING_BATCHES

    def __iter__(self) -> Iterator[ClickBatch]:
        return islice(self.stream(0), N_TRAINING_BATCHES)

    def stream(self, start: int) -> Iterator[ClickBatch]:
        position = start % N_TRAINING_BATCHES
        while True:
            yield from islice(click_stream(self.seed, position), N_TRAINING_BATCHES - position)
            position = 0


def _training_batches(seed: int) -> _TrainingClicks:
    return _TrainingClicks(seed)


def _evaluation_batches(seed: int) -> Iterator[ClickBatch]:
    """Return the records right after the training records, in order."""
    first = N_TRAINING_BATCHES * BATCH_SIZE
    starts = range(first, first + N_EVALUATION_RECORDS, EVALUATION_BATCH_SIZE)
    law = ClickLaw(seed)
    blocks = (law.records(np.arange(start, start + EVALUATION_BATCH_SIZE)) for start in starts)
    return (((ids, numbers), labels) for ids, numbers, labels in (map(torch.from_numpy, block) for block in blocks))


def row_wise_adam(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    """Return the optimizer of both click tasks."""
    return RowWiseAdam(named_parameters, lr=5e-3)
