"""Batches that stay on a device: the same ones, in the same order, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from tests.kit.equal_batches import assert_equal_batches
from tests.tasks.rows import LABELS, ROWS, Noisy, loader
from workbench.tasks import load_task
from workbench.tasks.batches import ShuffledBatches, endless_batches
from workbench.tasks.reading import Reading, quicker_reading, resident

CPU = torch.device("cpu")
SOURCES: dict[str, Callable[[], Any]] = {
    "list": lambda: [(ROWS[:4], LABELS[:4]), (ROWS[4:], LABELS[4:])],
    "held": lambda: ShuffledBatches(11, 3, 5, lambda held, i: (held[0][i], held[1][i]), held=(ROWS, LABELS)),
    "of a seed": lambda: lambda seed: ShuffledBatches(11, 3, seed, lambda held, i: held[i], held=ROWS),
    "shuffled loader": lambda: loader(shuffle=True),
    "loader with a generator": lambda: loader(shuffle=True, generator=torch.Generator().manual_seed(3)),
    "loader that drops": lambda: loader(shuffle=True, drop_last=True),
    "part": lambda: DataLoader(Subset(TensorDataset(ROWS, LABELS), [9, 2, 7, 4]), batch_size=3, shuffle=True),
    "loader of a seed": lambda: lambda seed: loader(shuffle=True, generator=torch.Generator().manual_seed(seed)),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("start", [0, 5])
def test_resident_batches_are_the_sources(source: Callable[[], Any], start: int) -> None:
    wanted = list(islice(endless_batches(source(), 2, start), 12))
    found = list(islice(endless_batches(resident(source(), CPU), 2, start), 12))
    assert_equal_batches(found, wanted)


def test_a_resident_loader_gathers_without_asking_for_single_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    source = resident(loader(shuffle=True), CPU)
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda *_: pytest.fail("a sample was picked"))
    assert len(list(islice(endless_batches(source, 0), 8))) == 8


@pytest.mark.parametrize(
    "source",
    [
        DataLoader(Noisy(), batch_size=3),
        ShuffledBatches(11, 3, 0, lambda i: ROWS[i]),
    ],
    ids=["random numbers", "a closure"],
)
def test_what_is_not_known_is_left_alone_with_a_sentence(source: Any) -> None:
    with pytest.warns(UserWarning, match="`runtime.data` = resident has no effect"):
        assert resident(source, CPU) is source


def test_resident_samples_lie_on_the_device() -> None:
    meta = torch.device("meta")
    for make in (SOURCES["list"], SOURCES["held"], SOURCES["shuffled loader"]):
        x, _ = next(endless_batches(resident(make(), meta), 0))
        assert x.device == meta


@pytest.mark.parametrize("name", ["digits-lenet", "digits-autoencoder", "topics-gpt"])
def test_built_in_tasks_can_be_resident(name: str) -> None:
    train = load_task(name).train
    wanted = list(islice(endless_batches(train, 1), 3))
    assert_equal_batches(list(islice(endless_batches(resident(train, CPU), 1), 3)), wanted)


@pytest.mark.parametrize(
    ("source", "device", "gains"),
    [
        (DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=2), "cpu", True),
        (lambda seed: DataLoader(Subset(TensorDataset(torch.zeros(8, 2)), [0, 3, 5]), batch_size=2), "cpu", True),
        (DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=2, collate_fn=lambda rows: rows), "cpu", False),
        ([torch.zeros(2, 2)], "cpu", False),
        ([torch.zeros(2, 2)], "cuda", True),
    ],
)
def test_memory_gains_where_samples_are_picked_one_by_one_or_travel(source: Any, device: str, gains: bool) -> None:
    found = quicker_reading(source, 0, torch.device(device), batch_size=2, step_seconds=1.0, epochs=9.0)
    assert found == Reading("resident" if gains else "as_given")
