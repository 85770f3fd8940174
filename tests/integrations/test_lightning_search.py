"""A search of a LightningModule as others write them: with hooks of their own, metric objects, several loaders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

import workbench
from tests.integrations.test_lightning import N_TRAIN, fitted, pytestmark
from tests.kit.lit_digits import Digits, LitDigits, small_network
from workbench.integrations.lightning import from_lightning
from workbench.tasks import TaskError

__all__ = ["pytestmark"]


class _LogsAnObject(LitDigits):
    def __init__(self) -> None:
        super().__init__(small_network())
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, targets = batch
        self.accuracy(self(images), targets)
        self.log("val_acc", self.accuracy)


class _LogsAtTheEnd(LitDigits):
    def __init__(self) -> None:
        super().__init__(small_network())

    def on_validation_epoch_start(self) -> None:
        self.right: list[Tensor] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, targets = batch
        self.right.append((self(images).argmax(dim=1) == targets).float())

    def on_validation_epoch_end(self) -> None:
        self.log("val_acc", torch.cat(self.right).mean())


class _IsMadeInSetup(LitDigits):
    def __init__(self) -> None:
        super().__init__(nn.Identity())

    def setup(self, stage: str) -> None:
        self.head = nn.Linear(64, 32)

    def configure_model(self) -> None:
        if isinstance(self.network, nn.Identity):
            self.network = nn.Sequential(nn.Flatten(), self.head, nn.ReLU(), nn.Linear(32, 10))


class _NumberOfLoader(LitDigits):
    def __init__(self) -> None:
        super().__init__(small_network())

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:  # type: ignore[override]
        super().validation_step(batch, batch_idx)


@pytest.mark.parametrize("kind", [_LogsAnObject, _LogsAtTheEnd, _IsMadeInSetup])
def test_a_module_is_made_and_judged_as_in_a_fit(kind: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    task = from_lightning(kind, Digits(n_train=N_TRAIN), metric="val_acc", max_epochs=2)
    result = workbench.train(task, steps=20, seed=0)
    seed_everything(0, verbose=False)
    fit, _ = fitted(module=kind())
    assert result.metric == pytest.approx(float(fit.callback_metrics["val_acc"]), abs=1e-6)
    assert float(result.metric or 0) > 0.1


def test_a_step_that_takes_the_number_of_its_loader_is_given_one() -> None:
    assert judged(_NumberOfLoader) > 0.0


class _TakesWhatComes(_LogsAnObject):
    def training_step(self, *args: Any, **options: Any) -> Tensor:
        return super().training_step(*args, **options)


class _LooksForAPart(_LogsAnObject):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        assert not hasattr(self.trainer, "teacher")
        assert getattr(self.trainer, "profiler", None) is None
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("kind", [_TakesWhatComes, _LooksForAPart])
def test_a_step_is_called_as_a_trainer_would(kind: Any) -> None:
    task = from_lightning(kind, Digits(32, N_TRAIN), metric="val_acc", max_epochs=1)
    assert task.model()(next(iter(task.train))).isfinite()


def judged(kind: Any, **options: Any) -> float:
    """Return what a module's validation gives before it is trained."""
    task = from_lightning(kind, Digits(n_train=N_TRAIN), max_epochs=1, **{"metric": "val_loss"} | options)
    model, metric = task.new_model(), task.new_metric()
    task.compute_loss(model, next(task.batches(0)))
    task.update_metric(metric, model.eval(), next(iter(task.evaluation_batches(0))))
    return float(metric.compute())


class _OwnBackward(_LogsAnObject):
    def backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        loss.backward()  # type: ignore[no-untyped-call]


class _AsksForRates(_LogsAnObject):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("rate", self.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]
        return super().training_step(batch, batch_idx)


class _LogsNothing(_LogsAtTheEnd):
    def on_validation_epoch_end(self) -> None:
        self.log("val_f2", 0.5)


def _digits() -> LitDigits:
    return LitDigits(small_network())


def _several() -> Any:
    loader = DataLoader([(torch.zeros(1, 8, 8), 0)] * 4, 2)  # type: ignore[arg-type]  # a list is a data set
    return [loader, loader]


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        (_LogsAnObject, {"val_dataloaders": _several()}, "a search takes one val_dataloader, got several"),
        (_LogsAnObject, {"train_dataloaders": {"a": _several()}}, "a search takes one train_dataloader, got several"),
        (_OwnBackward, {}, "_OwnBackward has its own backward()"),
        (_AsksForRates, {}, "without a Trainer, and this one asks for its trainer's 'strategy'"),
        (_LogsNothing, {}, "got 'val_loss'; at the end of an epoch it logs val_f2"),
        (_digits, {"metric": "val_f2x", "direction": "maximize"}, "must be what validation_step logs (val_loss, val"),
        (_digits, {"metric": "score"}, "give direction="),
    ],
)
def test_what_a_search_cannot_do_is_refused_in_a_sentence(kind: Any, options: Any, sentence: str) -> None:
    with pytest.raises(TaskError, match=re.escape(sentence)):
        judged(kind, **options)


class _WarmsUpByHand(_LogsAnObject):
    def optimizer_step(self, *args: Any, **options: Any) -> None:
        super().optimizer_step(*args, **options)


def test_hooks_that_a_search_leaves_out_are_named() -> None:
    with pytest.warns(UserWarning, match="_WarmsUpByHand's optimizer_step is not called in a search"):
        from_lightning(_WarmsUpByHand, Digits(n_train=N_TRAIN), metric="val_acc", max_epochs=1)
