"""Batches that another process reads ahead: the same ones, in the same order, bit for bit."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.kit.equal_batches import assert_equal_batches
from tests.tasks.rows import LABELS, ROWS, Noisy, loader
from workbench.methods.batch.own_collate import Uncollated
from workbench.tasks import read_ahead as reading_ahead
from workbench.tasks.batches import ShuffledBatches, endless_batches
from workbench.tasks.read_ahead import loader_ahead, read_ahead, reading_turn, why_not_ahead

PREFETCHED: dict[str, Callable[[], Any]] = {
    "held": lambda: ShuffledBatches(11, 3, 5, lambda held, i: (held[0][i], held[1][i]), held=(ROWS, LABELS)),
    "loader with a generator": lambda: loader(shuffle=True, generator=torch.Generator().manual_seed(3)),
    "loader of a seed": lambda: lambda seed: loader(shuffle=True, generator=torch.Generator().manual_seed(seed)),
    "noisy": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", PREFETCHED.values(), ids=PREFETCHED)
def test_batches_read_ahead_are_the_sources_while_training_draws(source: Callable[[], Any]) -> None:
    wanted = list(islice(endless_batches(source(), 2), 12))
    torch.manual_seed(1)
    found, drawn = [], []
    for batch in islice(read_ahead(endless_batches(source(), 2)), 12):
        found.append(batch)
        drawn.append(torch.rand(()))
    assert_equal_batches(found, wanted)
    torch.manual_seed(1)
    assert drawn == [torch.rand(()) for _ in range(12)]


@pytest.mark.slow
def test_a_loader_with_processes_of_its_own_is_read_here_and_says_so() -> None:
    source = DataLoader(TensorDataset(ROWS, LABELS), batch_size=3, num_workers=1)
    wanted = list(islice(endless_batches(loader(), 2), 4))
    with pytest.warns(UserWarning, match="`runtime.data` = prefetch has no effect: .*not allowed to have children"):
        found = list(islice(read_ahead(endless_batches(source, 2)), 4))
    assert_equal_batches(found, wanted)


@pytest.mark.slow
def test_trouble_in_a_source_is_its_own() -> None:
    def broken() -> Iterator[Tensor]:
        yield from ()
        raise KeyError("pixels")

    with pytest.warns(UserWarning, match="prefetch has no effect"), pytest.raises(KeyError, match="pixels"):
        list(read_ahead(broken()))


@pytest.mark.slow
def test_what_cannot_be_handed_over_is_read_here_and_said() -> None:
    batches = [{"rows": ROWS, "made by": lambda: None}]
    stream = read_ahead(iter(batches))
    with pytest.warns(UserWarning, match="prefetch has no effect: .*[pP]ickle"):
        assert next(stream) is batches[0]
    assert not multiprocessing.active_children(), "the process that could not has ended"


@pytest.mark.slow
def test_the_process_rests_while_the_turn_is_held() -> None:
    numbers = torch.zeros(1, dtype=torch.int64).share_memory_()

    def counted() -> Iterator[Tensor]:
        while True:
            numbers.add_(1)
            yield torch.zeros(1)

    turn = reading_turn()
    assert turn is not None
    stream = read_ahead(counted(), turn)
    next(stream)
    time.sleep(0.3)
    with turn:
        time.sleep(0.1)  # it may have been about to take its turn
        before = int(numbers)
        next(stream)  # read before
        time.sleep(0.3)
        assert int(numbers) == before
    next(stream)
    time.sleep(0.3)
    assert int(numbers) == before + 2, "as many as were taken"
    assert turn.acquire()
    next(stream)
    began = time.monotonic()
    stream.close()  # type: ignore[attr-defined]  # it is a generator
    assert time.monotonic() - began < 3.0, "a process that waits for its turn would be waited for"


def test_a_process_that_rests_ends_with_the_one_that_it_reads_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_ahead, "_ASKED_SECONDS", 0.01)
    turn = reading_turn()
    assert turn is not None
    stream = reading_ahead._Stream(iter([ROWS]), turn, os.getppid())
    assert torch.equal(pickle.loads(next(iter(stream))), ROWS)
    orphan = reading_ahead._Stream(iter([ROWS]), turn, os.getpid())  # which is not this process's parent
    with turn:
        assert list(orphan) == []


@pytest.mark.slow
def test_a_loader_s_worker_reads_its_batches_in_their_order() -> None:
    class Read(Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return index, os.getpid()

    source: DataLoader[Any] = DataLoader(Read(), batch_size=2, shuffle=True)
    torch.manual_seed(3)
    wanted = [numbers.tolist() for numbers, _ in source]
    ahead = loader_ahead(source)
    torch.manual_seed(3)
    found = [(numbers.tolist(), process) for numbers, process in ahead]
    assert [numbers for numbers, _ in found] == wanted
    assert not any((process == os.getpid()).any() for _, process in found)
    assert loader_ahead(ahead) is ahead


def test_what_reads_itself_is_left_alone_with_a_sentence() -> None:
    with pytest.warns(UserWarning, match="a list reads here; give a DataLoader"):
        assert loader_ahead([ROWS]) == [ROWS]


def test_a_data_set_that_holds_an_open_file_is_not_read_in_two_processes(tmp_path: Path) -> None:
    class Lines(Dataset[Any]):
        def __init__(self, file: Any) -> None:
            self.parts = {"file": file, "numbers": np.arange(5), "length": lambda: 5}

        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> int:
            return index

    (tmp_path / "lines").write_text("1\n2\n")
    assert why_not_ahead(DataLoader(Lines(tmp_path / "lines"))) == ""
    with (tmp_path / "lines").open() as file:
        assert "may hold an open file (cannot pickle '_io.TextIOWrapper'" in why_not_ahead(DataLoader(Lines(file)))


def test_where_no_core_is_to_spare_nothing_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_ahead, "usable_cores", lambda: 1)
    assert why_not_ahead(loader()) == "there is one core"


def test_samples_of_an_uncollated_batch_are_handed_over_by_value() -> None:
    batch = Uncollated([(ROWS[0], 1), (ROWS[1], 2)], list)
    found = pickle.loads(pickle.dumps(batch))
    assert torch.equal(found.joined([found])[1][0], ROWS[1])
    assert len(pickle.dumps(batch)) < 5000
