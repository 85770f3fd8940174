"""Larger batches that a loader's own collate_fn makes, of the samples of several."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset

from tests.experiments.small_tasks import small_task
from workbench.config import BoostConfig
from workbench.methods.batch.method import concatenated
from workbench.methods.batch.own_collate import Uncollated, uncollated
from workbench.tasks.batches import endless_batches, with_loader
from workbench.training import apply
from workbench.training.setup import prepare

CPU = torch.device("cpu")
TEXTS = [torch.full((1 + number % 5, 4), float(number)) for number in range(10)]


def padded(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return texts of one length, shape ``[n_texts, length, 4]``, and their labels."""
    return pad_sequence(texts, batch_first=True).sum(1), torch.tensor([int(text[0, 0]) % 2 for text in texts])


def loader(**options: Any) -> DataLoader[Any]:
    """Return five batches of two texts."""
    return DataLoader(TEXTS, **{"batch_size": 2, "collate_fn": padded, **options})  # type: ignore[arg-type]


def test_samples_come_in_the_loaders_order_and_are_collated_together() -> None:
    shuffled = loader(shuffle=True)
    wanted = [x for x, _ in islice(endless_batches(shuffled, 3), 4)]
    group = list(islice(endless_batches(uncollated(shuffled), 3), 4))
    assert all(isinstance(batch, Uncollated) for batch in group)
    x, labels = concatenated([batch.to(CPU) for batch in group])
    assert torch.equal(x, torch.cat(wanted))
    assert labels.shape == (8,)
    assert torch.equal(concatenated(group[:1])[0], wanted[0]), "one is collated, too"
    assert concatenated([batch.to("meta") for batch in group])[0].device.type == "meta"


def test_workers_may_be_sent_it() -> None:
    batch = next(iter(uncollated(loader())))
    assert pickle.loads(pickle.dumps(uncollated(loader()).collate_fn))([TEXTS[0]]).samples == [TEXTS[0]]
    assert batch.collate is padded


@pytest.mark.parametrize(
    "source",
    [
        DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2),
        loader(batch_size=None, collate_fn=lambda text: text),
        [torch.ones(2)],
        "no loader",
    ],
    ids=["torch's own way", "no batches", "a list", "anything"],
)
def test_other_sources_stay_as_they_are(source: Any) -> None:
    assert uncollated(source) is source


def test_a_source_that_is_a_function_has_its_loaders_changed() -> None:
    for made in (
        with_loader(lambda seed: loader(), uncollated)(0),
        with_loader(lambda seed, epoch: loader(), uncollated)(0, 1),
        with_loader(loader(), uncollated),
    ):
        assert isinstance(next(iter(made)), Uncollated)
    assert with_loader(lambda seed: [1, 2], uncollated)(0) == [1, 2]


@pytest.mark.parametrize(("factor", "sizes"), [(2.0, [4, 4, 4]), (1.0, [2, 2, 2]), (0.5, [1, 1, 1])])
def test_a_run_and_a_loop_of_ones_own_train_on_larger_batches(factor: float, sizes: list[int]) -> None:
    task = replace(small_task(), train=loader())
    config = BoostConfig().with_values({"boost.mode": "disable_all", "batch.factor": factor})
    prepared = prepare(task, config, level="O0", seed=0, device=CPU, steps=6)
    in_run = list(islice(prepared.batches(0), 3))
    model = task.new_model()
    boosted = apply(config, model, task.new_optimizer(model), 6, criterion=task.loss)
    in_loop = list(islice(boosted.batches(loader()), 3))
    for batches in (in_run, in_loop):
        assert [len(x) for x, _ in batches] == sizes
    assert all(torch.equal(one[0], other[0]) for one, other in zip(in_run, in_loop, strict=True))
