"""Exported scripts compute what the package does, whatever form the data have, and the metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integrations.test_torch_scripts import PLAIN, own_task, trained_here, written
from tests.integrations.test_trainer_scripts import run_by
from tests.kit.script_runs import run_here
from workbench.config import BoostConfig

HEAD = '''\
"""A task of the user's."""
from collections import namedtuple
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler, TensorDataset

from workbench import Task

X = torch.randn(77, 4, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()
data = TensorDataset(X, Y)
batches = [*zip(X.split(8), Y.split(8))]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, weight=1.0):
        return self.layer(getattr(x, "x", x) * weight)


def task_of(train=batches[:5], evaluate=batches[5:], metric="loss", model=Net, loss=nn.CrossEntropyLoss(), **more):
    return Task("own", model, loss, lambda named: torch.optim.SGD(named, lr=0.1), train, evaluate, metric, **more)

'''

OBJECTS = """
class Points:
    def __init__(self, samples):
        self.x, self.y = map(torch.stack, zip(*samples))


def loader(seed=0):
    return DataLoader(data, 8, collate_fn=Points)
"""
STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y)


def collated(samples):
    return tuple(map(torch.stack, zip(*samples)))
"""
WEIGHTED = """
weights = torch.full((1, 4), 2.0)
task = task_of(*[[(x, weights, y) for x, y in part] for part in (batches[:5], batches[5:])])
"""
TEXTS = """
class Spelled(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(2, 2)

    def forward(self, texts):
        return self.table(torch.tensor(["ab".index(text) for text in texts]))


texts = [(["ab"[int(y)] for y in part], part) for part in Y.split(8)]
task = task_of(texts[:5], texts[5:], "accuracy", model=Spelled)
"""
UNEVEN = """
class Both(nn.Module):
    def forward(self, scores, target):
        return nn.functional.cross_entropy(scores, target["kind"]) + (scores[:, 0] - target["value"]).square().mean()


pairs = [(x, {"kind": y, "value": x[:, 0]}) for x, y in batches]
task = task_of(pairs[:5], pairs[5:], loss=Both())
"""
OF_NUMPY = """
class Total:
    def reset(self):
        self.total = 0.0

    def update(self, outputs, targets):
        self.total += float(abs(outputs.numpy()).sum())

    def compute(self):
        return self.total


task = task_of(metric=Total(), direction="minimize")
"""
EPOCHS = """
class InTurn(Sampler):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(X)

    def __iter__(self):
        return iter(torch.randperm(len(X), generator=torch.Generator().manual_seed(self.epoch)).tolist())


task = task_of(DataLoader(data, 8, sampler=InTurn()))
"""
CHECKED = """
@dataclass
class Checked:
    x: torch.Tensor
    y: torch.Tensor
    size: int = field(init=False, default=0)

    def __post_init__(self):
        self.size = len(self.y)
        assert len(self.x) == self.size


def own_loss(model, batch):
    return nn.functional.cross_entropy(model(batch.x), batch.y)


held = [Checked(x, y) for x, y in batches]
task = task_of(held[:5], held[5:], loss=own_loss)
"""
GENERATED = """
def epoch(seed):
    yield from batches


task = task_of(lambda seed: epoch(seed), lambda seed: epoch(seed))
"""
NAMED = """
Answered = namedtuple("Answered", "y x")
held = [Answered(y, x) for x, y in batches]
task = task_of(held[:5], held[5:])
"""
BY_INDICES = (
    "task = task_of(DataLoader(data, batch_size=None, sampler=BatchSampler(SequentialSampler(data), 8, False)))"
)
NORMED = """
few = TensorDataset(X[:70], Y[:70])
task = task_of(DataLoader(few, 32), model=lambda: nn.Sequential(Net(), nn.BatchNorm1d(2)))
"""

FACTOR, CUT = {"batch": {"factor": 2.0}}, {"batch": {"factor": 0.25}}
AHEAD, KEPT = {"runtime": {"data": "prefetch"}}, {"runtime": {"data": "resident"}}
HALF = {"amp": {"level": "O2", "dtype": "bfloat16"}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "an iterator": (GENERATED, {}),
    "lists of samples": (TEXTS, FACTOR),
    "a tensor for all, joined": (WEIGHTED, FACTOR),
    "a tensor for all, cut": (WEIGHTED, CUT),
    "a short last batch, cut": (NORMED, CUT),
    "batches of indices, ahead": (BY_INDICES, AHEAD),
    "a stream, ahead": (f"{STREAM}\ntask = task_of(DataLoader(Stream(), 8))", AHEAD),
    "a stream, kept": (f"{STREAM}\ntask = task_of(DataLoader(Stream(), 8))", KEPT),
    "a stream, joined": (f"{STREAM}\ntask = task_of(DataLoader(Stream(), 8, collate_fn=collated))", FACTOR),
    "ignored targets": ('task = task_of(metric="accuracy", loss=nn.CrossEntropyLoss(ignore_index=1))', {}),
    "one-hot targets": (
        "hot = [(x, nn.functional.one_hot(y, 2).float()) for x, y in batches]\n"
        'task = task_of(hot[:5], hot[5:], "accuracy")',
        {},
    ),
    "several targets, uneven batches": (UNEVEN, {}),
    "a metric of numpy's": (OF_NUMPY, HALF),
    "a sampler that is told epochs": (EPOCHS, {}),
    "a named tuple, its target first": (NAMED, {}),
    "a dataclass that checks itself": (CHECKED, {}),
    "objects of a function": (f"{OBJECTS}\ntask = task_of(loader, loader)", {}),
}


@pytest.mark.filterwarnings("ignore:`runtime.data` = resident has no effect, because samples cannot be kept")
@pytest.mark.parametrize("name", CASES)
def test_a_script_computes_what_the_package_does(name: str, tmp_path: Path) -> None:
    text, chosen = CASES[name]
    task, config = own_task(tmp_path, HEAD + text), BoostConfig.from_dict(PLAIN | chosen)
    script = written(tmp_path, task, config, 24)
    assert run_here(tmp_path / script.name) == pytest.approx(trained_here(task, config, 24), rel=1e-6)


@pytest.mark.slow
def test_a_trainer_s_samples_have_their_own_part_of_each_list(tmp_path: Path) -> None:
    """They are shuffled, so that a text with another one's label could not be learned."""
    task, config = own_task(tmp_path, HEAD + TEXTS.replace("accuracy", "loss")), BoostConfig.from_dict(PLAIN)
    script = written(tmp_path, task, config, 60, "transformers")
    assert run_by("transformers", tmp_path / script.name) == pytest.approx(
        trained_here(task, config, 60)["metric"], rel=0.1
    )


ONE_CYCLE = """
def one_cycle(optimizer, n_steps):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=n_steps, cycle_momentum=False)


task = task_of([*zip(X[:40].split(8), Y[:40].split(8))], scheduler=one_cycle)
"""


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_in_lightning_a_schedule_with_a_peak_of_its_own_keeps_it_beside_another_optimizer(tmp_path: Path) -> None:
    chosen = {"optimizer": {"name": "AdamW", "lr": 0.02}, "schedule": {"length": 0.5}}
    task, config = own_task(tmp_path, HEAD + ONE_CYCLE), BoostConfig.from_dict(PLAIN | chosen)
    script = written(tmp_path, task, config, 30, "lightning")
    assert run_by("lightning", tmp_path / script.name) == pytest.approx(trained_here(task, config, 30)["metric"])


@pytest.mark.filterwarnings("ignore:less_bn had no effect", "ignore:grad_freeze is not in effect")
def test_a_generator_s_batches_are_read_again_beside_apply(tmp_path: Path) -> None:
    config = BoostConfig.from_dict({"boost": {"mode": "manual", "grad_freeze": True}})
    task = own_task(tmp_path, HEAD + GENERATED)
    script = written(tmp_path, task, config, 24)
    assert "apply(" in script.text
    assert run_here(tmp_path / script.name)["metric"] == pytest.approx(trained_here(task, config, 24)["metric"])
