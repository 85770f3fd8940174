"""What each of several ranks gets of one stream of batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from workbench.tasks import TaskError
from workbench.tasks.batches import (
    EvaluationBatches,
    ShuffledBatches,
    endless_batches,
)

N_BATCHES = 5


class Counted:
    """A source that can start anywhere by itself."""

    def stream(self, start: int) -> Iterator[torch.Tensor]:
        """Yield numbers."""
        while True:
            yield torch.tensor([start])
            start += 1


def shuffled() -> ShuffledBatches:
    return ShuffledBatches(11, 2, 3, lambda indices: indices)


def of_seed_and_epoch(seed: int, epoch: int) -> list[torch.Tensor]:
    return [torch.tensor([seed, epoch, i]) for i in range(N_BATCHES)]


def drawn(seed: int) -> Iterator[torch.Tensor]:
    for _ in range(N_BATCHES):
        yield torch.rand(2)


def loader(batch_size: int = 2) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(10.0)), batch_size=batch_size, shuffle=True)


SOURCES: dict[str, Any] = {
    "a list": [torch.tensor([i]) for i in range(N_BATCHES)],
    "shuffled batches": shuffled(),
    "a seekable source": Counted(),
    "a function of seed and epoch": of_seed_and_epoch,
    "a function that draws": drawn,
    "a DataLoader": loader(),
}


def taken(source: Any, n: int, start: int = 0, share: tuple[int, int] | None = None) -> list[list[float]]:
    stream = endless_batches(source, 7, start) if share is None else endless_batches(source, 7, start, *share)
    return [(batch[0] if isinstance(batch, list) else batch).tolist() for batch in islice(stream, n)]


@pytest.mark.long
@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=20)
@given(n_ranks=st.integers(1, 7), start=st.integers(0, 9))
def test_the_shares_of_all_ranks_are_the_stream_dealt_out(name: str, n_ranks: int, start: int) -> None:
    source, per_rank = SOURCES[name], 4
    whole = taken(source, (start + per_rank) * n_ranks)
    for rank in range(n_ranks):
        got = taken(source, per_rank, start, (rank, n_ranks))
        assert got == whole[start * n_ranks + rank :: n_ranks][:per_rank]


def test_one_rank_gets_the_whole_stream() -> None:
    for source in SOURCES.values():
        assert taken(source, 12) == taken(source, 12, share=(0, 1))


def distributed_loader(rank: int, n_ranks: int) -> DataLoader[Any]:
    data = TensorDataset(torch.arange(12.0))
    return DataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=n_ranks, rank=rank))


@pytest.mark.parametrize("as_function", [False, True], ids=["a loader", "a function of a seed"])
def test_a_distributed_sampler_is_not_shared_out_again(as_function: bool) -> None:
    shares = []
    for rank in range(2):
        own = distributed_loader(rank, 2)
        source = (lambda seed, own=own: own) if as_function else own
        shares.append([x for batch in taken(source, 3, share=(rank, 2)) for x in batch])
    assert sorted(shares[0] + shares[1]) == list(range(12)), "together one epoch, nothing twice"


def test_a_distributed_sampler_resumes_in_its_own_batches() -> None:
    source = distributed_loader(1, 2)
    assert taken(source, 4, 2, (1, 2)) == taken(source, 6, 0, (1, 2))[2:]


def test_a_sampler_for_another_number_of_ranks_is_refused() -> None:
    with pytest.raises(TaskError, match="the sampler of `train` shares the data between 3 ranks, but 2 train"):
        taken(distributed_loader(0, 3), 1, share=(0, 2))


def test_a_sampler_of_one_replica_leaves_sharing_to_us() -> None:
    data = TensorDataset(torch.arange(12.0))
    source = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=1, rank=0))
    whole = taken(source, 6)
    assert [taken(source, 3, share=(rank, 2)) for rank in range(2)] == [whole[0::2], whole[1::2]]


def test_evaluation_data_in_parts_is_refused() -> None:
    with pytest.raises(TaskError, match=r"`evaluate` must yield all samples, since rank 0 evaluates alone"):
        list(EvaluationBatches(lambda seed: distributed_loader(0, 2), 0))
