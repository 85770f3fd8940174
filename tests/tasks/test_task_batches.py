"""Streams of batches: endless, the same for the same seed, resumable anywhere, and silent towards other randomness."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from workbench.tasks import ShuffledBatches, TaskError
from workbench.tasks.batches import (
    EvaluationBatches,
    _tell_of_many,
    check_source,
    digest_of_batches,
    endless_batches,
    mixed_seed,
)

N, SIZE = 10, 3


class NoisyPoints(Dataset[Tensor]):
    """Points that draw from all three global generators, as augmenting transforms do."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Tensor:
        noise = torch.rand(()).item() + np.random.rand() + random.random()  # noqa: NPY002  # the global one is meant
        return torch.tensor([float(index), noise], dtype=torch.float64)


class CountingStream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(N))


def points_with_global_shuffle(seed: int) -> Iterator[Tensor]:
    order = torch.randperm(N)  # from the global generator, like many a script
    for start in range(0, N, SIZE):
        yield order[start : start + SIZE] + 100 * seed


class Counted:
    """A source that can start anywhere by itself."""

    def stream(self, start: int) -> Iterator[Tensor]:
        while True:
            yield torch.tensor([start])
            start += 1


def no_seed() -> list[Tensor]:
    return []


def points_by_epoch(seed: int, epoch: int) -> list[Tensor]:
    return [torch.tensor([seed, epoch, position]) for position in range(4)]


SOURCES = {
    "in memory": lambda: lambda seed: ShuffledBatches(N, SIZE, seed, lambda indices: indices),
    "list": lambda: [torch.tensor([position]) for position in range(4)],
    "data loader": lambda: DataLoader(TensorDataset(torch.arange(N)), batch_size=SIZE, shuffle=True),
    "data loader with generator": lambda: DataLoader(
        TensorDataset(torch.arange(N)), batch_size=SIZE, shuffle=True, generator=torch.Generator()
    ),
    "augmenting data loader": lambda: DataLoader(NoisyPoints(), batch_size=SIZE, shuffle=True, drop_last=True),
    "iterable data set": lambda: DataLoader(CountingStream(), batch_size=SIZE),
    "generator function of a seed": lambda: points_with_global_shuffle,
    "function of seed and epoch": lambda: points_by_epoch,
    "seekable": Counted,
    "function that returns a loader": lambda: (
        lambda seed: DataLoader(TensorDataset(torch.arange(N) + seed), batch_size=SIZE, shuffle=True)
    ),
}


def taken(stream: Iterator[Any], n: int) -> list[list[Any]]:
    return [(batch[0] if isinstance(batch, list | tuple) else batch).tolist() for batch in islice(stream, n)]


@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), start=st.integers(0, 13))
def test_a_stream_begun_at_any_position_is_the_stream_without_what_came_before(
    kind: str, seed: int, start: int
) -> None:
    whole = taken(endless_batches(SOURCES[kind](), seed), start + 5)
    torch.rand(seed % 7)  # whatever else was drawn in between must not matter
    assert taken(endless_batches(SOURCES[kind](), seed, start), 5) == whole[start:]


@pytest.mark.parametrize("kind", SOURCES)
def test_the_same_object_gives_the_same_stream_twice(kind: str) -> None:
    source = SOURCES[kind]()
    assert taken(endless_batches(source, 3), 9) == taken(endless_batches(source, 3), 9)


@pytest.mark.parametrize("kind", [kind for kind in SOURCES if kind not in ("list", "iterable data set", "seekable")])
def test_epochs_and_seeds_differ(kind: str) -> None:
    source = SOURCES[kind]()
    first, second = taken(endless_batches(source, 0), 9), taken(endless_batches(source, 1), 9)
    assert first != second
    n_batches = {"in memory": 3, "augmenting data loader": 3}.get(kind, 4)
    assert first[:n_batches] != first[n_batches : 2 * n_batches]


@pytest.mark.parametrize("kind", SOURCES)
def test_drawing_batches_leaves_the_global_generators_alone(kind: str) -> None:
    stream = endless_batches(SOURCES[kind](), 0)
    evaluation = EvaluationBatches(SOURCES["list" if kind == "seekable" else kind](), 0)

    def states() -> tuple[list[int], Any, Any]:
        return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()  # noqa: NPY002

    for batches, n in ((stream, 6), (evaluation, 2), (stream, 1)):
        torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002  # as a user's program in between
        before = states()
        list(islice(batches, n))
        assert states() == before


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 40), size=st.integers(1, 12), seed=st.integers(0, 2**40))
def test_an_epoch_in_memory_shows_every_sample_at_most_once_in_full_batches(n: int, size: int, seed: int) -> None:
    source = ShuffledBatches(n, size, seed, lambda indices: indices)
    epoch = list(source)
    shown = torch.cat(epoch).tolist()
    assert {len(batch) for batch in epoch} == {min(size, n)}
    assert len(epoch) == len(source) == n // min(size, n)
    assert len(set(shown)) == len(shown)
    assert set(shown) <= set(range(n))


@pytest.mark.parametrize(
    "options", [{"batch_size": SIZE}, {"batch_sampler": [[0, 1], [2, 3]]}], ids=lambda one: next(iter(one))
)
def test_workers_that_stay_carry_no_random_numbers_from_one_stream_to_the_next(options: Any) -> None:
    loader = DataLoader(NoisyPoints(), num_workers=1, persistent_workers=True, **options)
    first, second, later = (list(islice(endless_batches(loader, 0, start), 6 - start)) for start in (0, 0, 5))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert torch.equal(first[5], later[0])


def test_evaluation_is_the_same_each_time_it_is_iterated() -> None:
    batches = EvaluationBatches(SOURCES["augmenting data loader"](), 0)
    assert taken(iter(batches), 3) == taken(iter(batches), 3)


@pytest.mark.parametrize(
    ("source", "n_told"),
    [
        (lambda seed: count(), 1),
        (DataLoader(CountingStream(), batch_size=1), 0),
        (lambda seed: range(30), 0),
        ([0] * 30, 0),
    ],
    ids=["endless", "short stream", "known length", "list"],
)
def test_an_evaluation_that_may_never_end_is_told_once(
    source: Any, n_told: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.tasks.batches._MANY", 20)
    _tell_of_many.cache_clear()
    for _ in range(2):
        assert list(islice(EvaluationBatches(source, 0), 30))
    assert caplog.text.count("`evaluate` has yielded 20 batches and does not say how many there are") == n_told


@pytest.mark.parametrize("is_opened", [False, True], ids=["a loader", "a function that returns it"])
def test_workers_that_stay_evaluate_with_the_same_random_numbers_each_time(is_opened: bool) -> None:
    loader = DataLoader(NoisyPoints(), batch_size=SIZE, num_workers=1, persistent_workers=True)
    batches = EvaluationBatches((lambda seed: loader) if is_opened else loader, 0)
    others = set(multiprocessing.active_children())
    first, second = (torch.cat(list(batches)) for _ in range(2))
    assert torch.equal(first, second)
    assert set(multiprocessing.active_children()) <= others


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (iter([1]), "one-shot list_iterator"),
        (torch.ones(3), "single Tensor"),
        ({"x": 1}, "single dict"),
        (DataLoader, "the class DataLoader"),
        (3, "re-iterable of batches or a function of a seed, got int"),
        (NoisyPoints(), "got NoisyPoints; a data set goes into a DataLoader"),
        (no_seed, "without parameters; write `def train"),
    ],
    ids=["iterator", "tensor", "mapping", "class", "number", "data set", "no seed"],
)
def test_a_source_that_cannot_work_is_refused(source: object, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        check_source(source, "train")


@pytest.mark.parametrize("source", [[], lambda _seed: [], lambda _seed: iter(())], ids=["list", "function", "iterator"])
def test_an_empty_epoch_is_an_error_and_no_endless_loop(source: object) -> None:
    with pytest.raises(TaskError, match=r"`train` must yield at least one batch per epoch"):
        next(endless_batches(source, 0))
    with pytest.raises(TaskError, match=r"`evaluate` must yield at least one batch"):
        list(EvaluationBatches(source, 0))


def test_a_function_that_returns_no_batches_is_refused() -> None:
    with pytest.raises(TaskError, match=r"`train\(7\)` must return an iterable of batches, got NoneType"):
        next(endless_batches(lambda _seed: None, 7))


def test_a_digest_sees_values_dtype_and_shape() -> None:
    ones = torch.ones(4)
    others = [ones + 1e-7, ones.double(), ones.reshape(2, 2), ones.bfloat16()]
    assert len({digest_of_batches([tensor]) for tensor in [ones, *others]}) == 5
    assert digest_of_batches([ones]) == digest_of_batches([ones.clone()])
    assert digest_of_batches([(ones, {"y": ones})], 1) == digest_of_batches([(ones, {"y": ones}), (ones,)], 1)


def test_neighbouring_seeds_and_epochs_mix_to_different_seeds() -> None:
    mixed = {mixed_seed(seed, epoch) for seed in range(30) for epoch in range(30)}
    assert len(mixed) == 900
    assert all(0 <= value < 2**63 for value in mixed)


# What each of several ranks gets of one stream.


@pytest.mark.long
@pytest.mark.parametrize("kind", SOURCES)
@settings(max_examples=20)
@given(n_ranks=st.integers(1, 7), start=st.integers(0, 9))
def test_the_shares_of_all_ranks_are_the_stream_dealt_out(kind: str, n_ranks: int, start: int) -> None:
    source, per_rank = SOURCES[kind](), 4
    whole = taken(endless_batches(source, 7), (start + per_rank) * n_ranks)
    for rank in range(n_ranks):
        got = taken(endless_batches(source, 7, start, rank, n_ranks), per_rank)
        assert got == whole[start * n_ranks + rank :: n_ranks][:per_rank]


def distributed_loader(rank: int, n_ranks: int) -> DataLoader[Any]:
    data = TensorDataset(torch.arange(12.0))
    return DataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=n_ranks, rank=rank))


@pytest.mark.parametrize("as_function", [False, True], ids=["a loader", "a function of a seed"])
def test_a_distributed_sampler_is_not_shared_out_again(as_function: bool) -> None:
    shares = []
    for rank in range(2):
        own = distributed_loader(rank, 2)
        source = (lambda seed, own=own: own) if as_function else own
        shares.append([x for batch in taken(endless_batches(source, 7, 0, rank, 2), 3) for x in batch])
    assert sorted(shares[0] + shares[1]) == list(range(12)), "together one epoch, nothing twice"


def test_a_distributed_sampler_resumes_in_its_own_batches() -> None:
    source = distributed_loader(1, 2)
    assert taken(endless_batches(source, 7, 2, 1, 2), 4) == taken(endless_batches(source, 7, 0, 1, 2), 6)[2:]


def test_a_sampler_for_other_ranks_is_refused_and_for_one_leaves_sharing_to_us() -> None:
    with pytest.raises(TaskError, match="the sampler of `train` shares the data between 3 ranks, but 2 train"):
        next(endless_batches(distributed_loader(0, 3), 7, 0, 0, 2))
    source = distributed_loader(0, 1)
    whole = taken(endless_batches(source, 7), 6)
    assert [taken(endless_batches(source, 7, 0, rank, 2), 3) for rank in range(2)] == [whole[0::2], whole[1::2]]
    with pytest.raises(TaskError, match=r"`evaluate` must yield all samples, since rank 0 evaluates alone"):
        list(EvaluationBatches(lambda seed: distributed_loader(0, 2), 0))
