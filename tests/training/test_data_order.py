"""A loop that goes on from a checkpoint sees what it would have seen, in the order in which it would have seen it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from workbench import apply
from workbench.training import Boosted
from workbench.training.checkpoint import load_checkpoint, save_checkpoint

EPOCHS, N_SAMPLES, BATCH_SIZE, N_BATCHES = 3, 26, 6, 5
OFF = {"boost": {"mode": "disable_all"}}


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Points with noise from a generator of the process's."""

    def __init__(self, draw: Callable[[], float] = lambda: 0.0) -> None:
        self.x = torch.randn(N_SAMPLES, 4, generator=torch.Generator().manual_seed(1))
        self.draw = draw

    def __len__(self) -> int:
        return N_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + 0.1 * self.draw(), (self.x[index].sum() > 0).long()


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        points = Points()
        yield from (points[index] for index in torch.randperm(N_SAMPLES).tolist())


def from_torch() -> float:
    return float(torch.rand(()))


def loader(dataset: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, BATCH_SIZE, **options)


def shuffled_by(seed: int) -> DataLoader[Any]:
    return loader(Points(), shuffle=True, generator=torch.Generator().manual_seed(seed))


def with_workers(**options: Any) -> Any:
    new = lambda: loader(Points(from_torch), shuffle=True, num_workers=1, **options)  # noqa: E731
    return pytest.param(new, {}, id=" ".join(["a worker", *options]))


SET_UP = {
    "schedule": {"length": 0.75, "shape": "linear", "warmup": 0.2},
    "regularization": {"label_smoothing": 0.1, "weight_average": "ema", "decay": 0.8},
    "optimizer": {"name": "AdamW", "lr": 0.01, "weight_decay": 0.1},
    "loss_scale": {"kind": "dynamic"},
}
LOADERS = [
    pytest.param(lambda: loader(Points()), {}, id="in order"),
    pytest.param(lambda: loader(Points(), shuffle=True), {}, id="shuffled"),
    pytest.param(lambda: loader(Points(), shuffle=True), {"batch": {"factor": 2.0}}, id="merged"),
    pytest.param(lambda: loader(Points(), shuffle=True), {"batch": {"factor": 0.5}}, id="cut"),
    pytest.param(lambda: loader(Points(), shuffle=True), SET_UP, id="a whole set-up"),
    pytest.param(lambda: shuffled_by(3), {}, id="generator"),
    pytest.param(lambda: loader(Points(from_torch), shuffle=True), {}, id="noise of torch's"),
    pytest.param(lambda: loader(Points(np.random.rand), shuffle=True), {}, id="noise of numpy's"),
    pytest.param(lambda: loader(Points(random.random), shuffle=True), {}, id="noise of Python's"),
    pytest.param(lambda: loader(Stream()), {}, id="a stream"),
    with_workers(),
    with_workers(persistent_workers=True),
]


def new_boosted(config: dict[str, Any]) -> Boosted:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  # the data draw from it
    random.seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return apply({**OFF, **config}, model, optimizer, EPOCHS * N_BATCHES, criterion=nn.CrossEntropyLoss())


def train(
    boosted: Boosted, batches: Any, *, keep_at: Sequence[int] = (), path: Path = Path(), until: int = 99
) -> list[tuple[Tensor, float]]:
    """Train in an own loop, resumed where the boosted pair stands; return inputs and loss of each pass."""
    seen = []
    for x, y in boosted.batches(batches, EPOCHS, start=boosted.step_index):
        boosted.backward(boosted.criterion(boosted.model(x), y))
        seen.append((x, float(boosted.step().loss)))
        if boosted.step_index in keep_at:
            save_checkpoint(path / f"{boosted.step_index}.pt", boosted)
        if boosted.step_index == until:
            break
    return seen


def assert_same(found: list[tuple[Tensor, float]], wanted: list[tuple[Tensor, float]]) -> None:
    assert [loss for _, loss in found] == [loss for _, loss in wanted]
    assert all(torch.equal(x, other) for (x, _), (other, _) in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("new_loader", "config"), LOADERS)
def test_a_resumed_loop_sees_the_batches_that_were_left(
    new_loader: Any, config: dict[str, Any], tmp_path: Path
) -> None:
    places = (2, N_BATCHES, N_BATCHES + 2)  # in an epoch, after it (merged: within the next), in the second one
    whole = train(new_boosted(config), new_loader(), keep_at=places, path=tmp_path)
    for done in places[-1:] if new_loader().num_workers else places:
        resumed = new_boosted(config)
        torch.manual_seed(99)
        load_checkpoint(tmp_path / f"{done}.pt", resumed)
        assert_same(train(resumed, new_loader()), whole[done:])


def test_a_loop_that_was_interrupted_goes_on_in_the_same_process_with_the_same_loader() -> None:
    batches, whole = shuffled_by(3), train(new_boosted({}), shuffled_by(3))
    boosted = new_boosted({})
    assert_same(train(boosted, batches, until=7) + train(boosted, batches), whole)


def test_a_checkpoint_from_before_the_order_was_kept_still_loads(tmp_path: Path) -> None:
    boosted, resumed = new_boosted({}), new_boosted({})
    whole = train(boosted, loader(Points()), keep_at=[2], path=tmp_path)
    state = torch.load(tmp_path / "2.pt")
    del state["boosted"]["data"]
    torch.save(state, tmp_path / "2.pt")
    load_checkpoint(tmp_path / "2.pt", resumed)
    assert_same(train(resumed, loader(Points())), whole[2:])
