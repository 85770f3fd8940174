"""Samples that are read once and kept: the same batches, and nothing that differs from reading to reading."""

from __future__ import annotations

import random
import time
from collections import Counter, namedtuple
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Subset

from workbench.tasks.batches import digest_of_batches, endless_batches
from workbench.tasks.kept_samples import NotKeptError, keeping, reading_seconds, why_not_kept
from workbench.tasks.reading import quicker_reading, resident

CPU = torch.device("cpu")
Pair = namedtuple("Pair", "x y")  # as users write them
IMAGES = torch.arange(11 * 6, dtype=torch.uint8).reshape(11, 1, 2, 3)


class Made(Dataset[Any]):
    """Makes a sample of its number, and counts how often it was asked for each."""

    def __init__(self, make: Callable[[int], Any], n_samples: int = 11) -> None:
        self.make, self.n_samples = make, n_samples
        self.read: Counter[int] = Counter()

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, index: int) -> Any:
        self.read[index] += 1
        return self.make(index)


SAMPLES: dict[str, Callable[[int], Any]] = {
    "a tensor": lambda at: IMAGES[at].float() / 255,
    "a pair": lambda at: (IMAGES[at], at),
    "a named tuple of an array": lambda at: Pair(IMAGES[at].numpy(), 0.5 * at),
    "a dictionary": lambda at: {"x": IMAGES[at], "name": f"image {at}", "deep": {"weight": np.float32(at)}},
}


def by_numbers(samples: list[Any]) -> Any:
    """Make a batch in a way of one's own, which takes the samples apart."""
    return torch.tensor([sample.pop("x") for sample in samples]), [sample["tokens"] for sample in samples]


LOADERS: dict[str, Callable[[Dataset[Any]], DataLoader[Any]]] = {
    "in order": lambda dataset: DataLoader(dataset, batch_size=4),
    "shuffled": lambda dataset: DataLoader(dataset, batch_size=4, shuffle=True, drop_last=True),
    "by batches": lambda dataset: DataLoader(
        dataset, batch_sampler=BatchSampler(RandomSampler(dataset), batch_size=4, drop_last=False)
    ),
    "a part": lambda dataset: DataLoader(Subset(dataset, [9, 2, 7, 4, 0]), batch_size=2, shuffle=True),
}


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)
@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_batches_are_the_loaders_and_samples_are_read_once(
    make: Callable[[int], Any], loader: Callable[[Dataset[Any]], DataLoader[Any]]
) -> None:
    wanted = list(islice(endless_batches(loader(Made(make)), 3), 14))
    kept = keeping(loader(dataset := Made(make)))
    dataset.read.clear()
    found = list(islice(endless_batches(kept, 3), 14))
    assert [type(batch) for batch in found] == [type(batch) for batch in wanted]
    assert digest_of_batches(found) == digest_of_batches(wanted)
    assert set(dataset.read.values()) == {1}


def test_who_makes_the_batches_may_take_samples_apart() -> None:
    def loader() -> DataLoader[Any]:
        dataset = Made(lambda at: {"x": at, "tokens": list(range(at))})
        return DataLoader(dataset, batch_size=3, shuffle=True, collate_fn=by_numbers)

    wanted = list(islice(endless_batches(loader(), 1), 12))
    assert digest_of_batches(islice(endless_batches(keeping(loader()), 1), 12)) == digest_of_batches(wanted)


def test_samples_of_several_shapes_are_kept_one_by_one() -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Made(lambda at: torch.ones(at + 1)), batch_size=1, shuffle=True)

    wanted = list(islice(endless_batches(loader(), 1), 30))
    assert digest_of_batches(islice(endless_batches(keeping(loader()), 1), 30)) == digest_of_batches(wanted)


def test_keys_of_a_sampler_that_knows_the_data_set_are_left_to_it() -> None:
    dataset: Dataset[Any] = Made(torch.tensor)
    loader = DataLoader(dataset, batch_size=2, sampler=[(0, 8), (3, 4), (1, 2)])  # type: ignore[arg-type]
    assert [batch.tolist() for batch in keeping(loader)] == [[[0, 8], [3, 4]], [[1, 2]]]


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield torch.zeros(2)


class ToldTheEpoch(Made):
    def set_epoch(self, epoch: int) -> None:
        """Take another part of the data."""


class WithoutLength(Made):
    __len__ = None  # type: ignore[assignment]


def counting() -> Callable[[int], Any]:
    calls = iter(range(1000))
    return lambda _: next(calls)


def drawing() -> Callable[[int], Any]:
    generator = np.random.default_rng(0)
    return lambda _: generator.normal()


REFUSED: dict[str, tuple[Callable[[], Dataset[Any]], str]] = {
    "torch": (lambda: Made(lambda at: torch.rand(2)), "random numbers are drawn"),
    "numpy": (lambda: Made(lambda at: np.random.normal(size=2)), "random numbers are drawn"),  # noqa: NPY002
    "python": (lambda: Made(lambda at: random.random() < 2.0), "random numbers are drawn"),
    "drawn for nothing": (lambda: Made(lambda at: at if torch.rand(()) < 2.0 else -1), "random numbers are drawn"),
    "a generator of its own": (lambda: Made(drawing()), "twice differs"),
    "a count": (lambda: Made(counting()), "twice differs"),
    "told the epoch": (lambda: ToldTheEpoch(lambda at: at), "has a `set_epoch`"),
    "a stream": (Stream, "reads a stream"),
    "no length": (lambda: WithoutLength(lambda at: at), "does not know its length"),
    "an object": (lambda: Made(lambda at: object()), "hold a object, of which no copy"),
    "by another key": (lambda: Made(lambda at: {}[at]), r"reading one by its number fails \(KeyError: 0\)"),
    "much": (lambda: Made(lambda at: torch.zeros(1_000_000), n_samples=10_000_000), "40000.0 of .* GB of memory"),
}


@pytest.mark.parametrize(("dataset", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_kept_is_left_alone_with_a_sentence(dataset: Callable[[], Dataset[Any]], why: str) -> None:
    source: DataLoader[Any] = DataLoader(dataset(), batch_size=2, sampler=None)
    assert why_not_kept(source, 1e-6)
    with pytest.raises(NotKeptError, match=why):
        keeping(source)
    with pytest.warns(UserWarning, match=f"resident has no effect, because samples cannot be kept: .*{why}"):
        assert resident(source, CPU) is source


def test_a_look_leaves_the_random_numbers_alone() -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]  # noqa: NPY002
    source = DataLoader(Made(lambda at: torch.rand(2)), batch_size=2)
    assert why_not_kept(source, 1e-6)
    assert reading_seconds(source) > 0.0
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # noqa: NPY002


def test_a_look_reads_few_of_samples_that_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def slow(_: int) -> int:
        now[0] += 0.3
        return 0

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    dataset = Made(slow)
    source: DataLoader[Any] = DataLoader(dataset, batch_size=2)
    assert reading_seconds(source) == pytest.approx(0.3)
    assert dataset.read.total() == 2, "that is half a second"
    assert why_not_kept(source, 0.3) == ""
    assert dataset.read.total() == 2 + 2 * 4


def look(
    dataset: Dataset[Any], *, step_seconds: float = 1e-6, epochs: float = 10.0, workers: int = 0
) -> tuple[str, str]:
    source = DataLoader(dataset, batch_size=4, num_workers=workers)
    found = quicker_reading(source, 0, CPU, batch_size=4, step_seconds=step_seconds, epochs=epochs)
    return found.data, found.not_kept


def test_keeping_is_worth_it_where_reading_takes_a_part_of_a_step_in_several_epochs() -> None:
    steady = Made(lambda at: at)
    assert look(steady) == ("resident", "")
    assert look(steady, step_seconds=10.0) == ("as_given", "")


@pytest.mark.parametrize(
    ("cores", "way", "and_so"),
    [
        (2, "prefetch", ", so a process that reads ahead is tried."),
        (1, "as_given", ", which `num_workers` of the loader may hide; that is not tried, because there is one core."),
    ],
)
def test_what_is_not_worth_keeping_is_read_ahead(
    cores: int, way: str, and_so: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.tasks.read_ahead.usable_cores", lambda: cores)
    takes = f". Reading them takes about 100 % of a step{and_so}"
    found = look(Made(lambda at: at), epochs=1.5)
    assert found == (way, f"Samples kept in memory are left out, because most are read once in a training{takes}")
    augmented = look(Made(lambda at: torch.rand(2)))
    assert augmented[0] == way
    assert augmented[1].endswith(f"random numbers are drawn when one is read{takes}")


@pytest.mark.parametrize(
    ("cores", "busy", "told"),
    [
        (4, True, "almost always busy, and 2 cores are left for more: a larger `num_workers` may make steps faster."),
        (4, False, ""),
        (2, True, ""),
    ],
)
def test_workers_that_cannot_keep_up_are_told_of_where_there_are_cores_for_more(
    cores: int, busy: bool, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.tasks.reading.usable_cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    way, sentence = look(Made(lambda at: torch.rand(2)), step_seconds=1e-6 if busy else 10.0, workers=1)
    assert way == "as_given"
    assert sentence.endswith(told)
    assert ("random numbers are drawn" in sentence) == bool(told)


@pytest.mark.parametrize(
    ("options", "step_seconds", "cores"),
    [
        ({}, 1e-6, None),
        ({"num_workers": 2}, 1e-6, 2),
        ({"num_workers": 2}, 0.018, 1),
        ({"num_workers": 2}, 10.0, 0),
        ({"num_workers": 2, "worker_init_fn": print}, 10.0, 2),
    ],
    ids=["no workers", "always busy", "half busy", "idle", "not to be looked at"],
)
def test_a_look_says_how_many_cores_worker_processes_keep_busy(
    options: dict[str, Any], step_seconds: float, cores: int | None
) -> None:
    def read(at: int) -> Tensor:
        time.sleep(0.003)
        return torch.rand(2)

    source = DataLoader(Made(read), batch_size=4, **options)
    found = quicker_reading(source, 0, CPU, batch_size=4, step_seconds=step_seconds, epochs=10.0)
    assert found.cores == cores


def test_a_small_part_of_a_step_is_not_worth_a_core() -> None:
    def read(at: int) -> Tensor:
        time.sleep(0.001)
        return torch.rand(2)

    way, told = look(Made(read), step_seconds=0.05)
    assert way == "as_given"
    assert "random numbers are drawn when one is read" in told
    assert told.endswith("% of a step.")


def test_a_stream_is_read_ahead_where_its_batches_take_a_part_of_a_step() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([torch.zeros(2)] * 40)

    assert "because the loader reads a stream" in look(Stream())[1]
    assert look(Stream(), step_seconds=10.0) == ("as_given", "")


@pytest.mark.slow
def test_what_worker_processes_read_is_tried_in_one_and_kept_here() -> None:
    dataset = Made(lambda at: IMAGES[at])
    assert look(dataset, workers=2) == ("resident", "")
    assert look(dataset, workers=2, epochs=1.5) == ("as_given", "")
    source: DataLoader[Any] = DataLoader(dataset, batch_size=4, num_workers=2)
    kept = keeping(source)
    assert not dataset.read, "what reading opens would be shared by all processes that are forked later"
    for epoch in range(2):
        found = list(islice(endless_batches(kept, epoch), 3))
        assert all(map(torch.equal, found, list(islice(endless_batches(source, epoch), 3))))
    assert set(dataset.read.values()) == {1}


@pytest.mark.slow
def test_a_file_that_worker_processes_open_is_not_read_here(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("abcdefgh")

    class Letters(Dataset[Any]):
        file: Any = None

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            self.file = self.file or (tmp_path / "letters").open()
            self.file.seek(index)
            return ord(self.file.read(1))

    letters = Letters()
    source: DataLoader[Any] = DataLoader(letters, batch_size=4, num_workers=1)
    with pytest.raises(NotKeptError, match=r"the data set may hold an open file by then .cannot pickle"):
        keeping(source)
    assert letters.file is None
    assert look(letters, workers=1) == ("as_given", "")


def test_worker_processes_that_are_prepared_keep_reading() -> None:
    source: DataLoader[Any] = DataLoader(
        Made(lambda at: at), batch_size=4, num_workers=1, worker_init_fn=lambda number: None
    )
    with pytest.raises(NotKeptError, match="prepares the worker processes"):
        keeping(source)


class Named(DataLoader[Any]):
    """Is built in its own way, as PyTorch Geometric's loader is, and reads as any other."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        super().__init__(dataset, batch_size=4)


class Wrapping(Named):
    """Does something of its own to each batch, as Accelerate's loader does."""

    def __iter__(self) -> Any:
        return map(torch.neg, super().__iter__())


def test_a_loader_of_a_class_of_its_own_is_taken_as_torch_s_where_it_reads_as_that_does() -> None:
    source = Named(Made(lambda at: IMAGES[at]))
    found = list(islice(endless_batches(resident(source, CPU), 0), 6))
    assert all(map(torch.equal, found, list(source) * 2))
    with pytest.warns(UserWarning, match="how Wrapping makes its batches is not known"):
        resident(Wrapping(Made(lambda at: IMAGES[at])), CPU)
