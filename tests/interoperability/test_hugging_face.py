"""Models and the Trainer of Hugging Face's transformers, used as they come; weights are random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader

from tests.kit.runs import run_task
from workbench.config import BoostConfig
from workbench.nn import AdamOffload, thor
from workbench.tasks import Task
from workbench.tasks.in_memory import task_in_memory

pytest.importorskip("transformers", reason="pip install boost-workbench[test] brings transformers")

from tests.kit.hugging_face import NO_METHODS, classifier, sentences


def batch_of(n: int) -> dict[str, Tensor]:
    """Return token numbers, and whether the first one is large, as one batch."""
    rows = sentences(n)
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "thor": lambda net: thor(net, 0.02, 0.03, 0.9, frequency=5),
    "adam_offload": lambda net: AdamOffload(net, learning_rate=2e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bert_learns_unchanged(name: str) -> None:
    model = classifier()
    optimizer = OPTIMIZERS[name](model)
    losses, batch = [], batch_of(64)
    for _ in range(60):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] > 0.6
    assert losses[-1] < 0.1


def test_thor_takes_every_linear_layer_and_embedding_of_a_bert() -> None:
    model = classifier()
    taken = set(thor(model, 0.02, 0.03, 0.9).layer_names)
    expected = {name for name, module in model.named_modules() if isinstance(module, (nn.Linear, nn.Embedding))}
    assert expected <= taken


def test_a_bert_is_a_task_like_any_other() -> None:
    whole = batch_of(256)
    batches = [{key: column[at : at + 64] for key, column in whole.items()} for at in range(0, 256, 64)]
    task = Task(
        name="bert", model=classifier, loss=lambda model, batch: model(**batch).loss,
        optimizer=lambda named: AdamW(named, lr=1e-3, fused=True), train=batches, evaluate=batches, metric="loss",
    )  # fmt: skip
    config = BoostConfig.from_dict(
        {"optimizer": {"name": "thor", "lr": 0.02}, "amp": {"level": "O2", "dtype": "bfloat16"}}
    )
    result = run_task(task, config, steps=40, device=torch.device("cpu"))
    assert not result.diverged
    assert result.metric < 0.3


class Tokenised:
    """A tokenised data set in memory with torch's format, as `datasets` keeps it: columns, of which a row is a dict."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.columns = {name: [row[name] for row in rows] for name in rows[0]}

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {name: torch.as_tensor(column[place]) for name, column in self.columns.items()}


@pytest.mark.slow
def test_a_tokenised_data_set_in_memory_is_read_by_workers_and_judged_by_the_model() -> None:
    rows = sentences(96)
    train = DataLoader(Tokenised(rows[:64]), 8, shuffle=True, num_workers=2)
    held_out = DataLoader(Tokenised(rows[64:]), 16, num_workers=1)
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    options: dict[str, Any] = {"optimizer": optimizer, "epochs": 2}
    by_loss = task_in_memory(model, train, held_out, **options)
    by_accuracy = task_in_memory(model, train, held_out, metric="accuracy", outputs="logits", **options)
    config = BoostConfig.from_dict(NO_METHODS | {"batch": {"factor": 2.0}, "curriculum": {"kind": "sequence"}})
    for task in (by_loss, by_accuracy):
        result = run_task(task, config, steps=16, device=torch.device("cpu"))
        assert not result.diverged
    assert by_loss.metric_name == "loss"
    assert 0.0 <= result.metric <= 1.0
