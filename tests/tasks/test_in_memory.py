"""A model and loaders that a notebook has in memory become a task, and `tune` takes them as they are."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import workbench
from workbench.core import devices
from workbench.core.other_work import OtherWork
from workbench.study import ProgressLine, StudyError, TuneProgress
from workbench.tasks import TaskError
from workbench.tasks.in_memory import task_in_memory

X = torch.randn(24, 3)
Y = (X.sum(1) > 0).long()
TRAIN, HELD_OUT = DataLoader(TensorDataset(X, Y), 4, shuffle=True), DataLoader(TensorDataset(X, Y), 24)


class SmallNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def made(model: Any, **changes: Any) -> Any:
    options = {"loss": nn.CrossEntropyLoss(), "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "epochs": 2}
    return task_in_memory(model, TRAIN, HELD_OUT, **(options | changes))


def test_every_run_begins_with_a_copy_of_the_model_as_it_was() -> None:
    torch.manual_seed(0)
    model = SmallNet()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    said: list[str] = []
    task = made(model, on_note=said.append)
    with torch.no_grad():
        model[0].weight.zero_()
    first, second = task.new_model(), task.new_model()
    assert first is not second
    for copied in (first, second):
        assert all(torch.equal(value, before[key]) for key, value in copied.state_dict().items())
    assert "begins with a copy of the model as it is now" in said[0]
    assert (task.name, task.metric_name, task.epochs) == ("small-net", "accuracy", 2)


def test_the_optimizer_is_copied_with_its_groups_onto_the_copy() -> None:
    model = SmallNet()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters(), "weight_decay": 0.1}]
    task = made(model, optimizer=torch.optim.AdamW(groups, lr=0.01))
    copied = task.new_model()
    optimizer = task.new_optimizer(copied)
    assert type(optimizer) is torch.optim.AdamW
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.5, 0.01), (0.01, 0.1)]
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert [id(parameter) for parameter in held] == [id(parameter) for parameter in copied.parameters()]
    task.compute_loss(copied, (X, Y)).backward()
    optimizer.step()
    assert not torch.equal(copied[0].weight, model[0].weight)
    assert torch.equal(task.new_model()[0].weight, model[0].weight)


def test_a_model_that_was_trained_meanwhile_is_another_task() -> None:
    model = SmallNet()
    before = made(model).data_digest()
    assert made(model).data_digest() == before
    with torch.no_grad():
        model[0].weight.add_(1.0)
    assert made(model).data_digest() != before


def test_a_model_may_compute_its_loss_itself() -> None:
    class Judged(nn.Linear):
        def forward(self, x: Tensor, labels: Tensor) -> Any:
            logits = super().forward(x)
            return SimpleNamespace(logits=logits, loss=nn.functional.cross_entropy(logits, labels))

    model = Judged(3, 2)
    batches = [{"x": X, "labels": Y}]
    options: dict[str, Any] = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "steps": 2}
    task = task_in_memory(model, batches, batches, **options)
    assert torch.equal(task.compute_loss(model, batches[0]), model(X, Y).loss)
    assert task.metric_name == "loss"
    silent = task_in_memory(nn.Identity(), batches, batches, **(options | {"optimizer": lambda named: None}))
    with pytest.raises(TaskError, match=r"returns dict without a `loss`; give loss="):
        silent.compute_loss(lambda **batch: batch, batches[0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)}, "2 of 2 parameters that are not the m"),
        ({"model": SmallNet}, "`model` is a function that returns fresh ones; give a function, too"),
    ],
)
def test_what_does_not_belong_together_is_refused(changes: dict[str, Any], words: str) -> None:
    model = SmallNet()
    options = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)} | changes
    with pytest.raises(TaskError, match=words):
        task_in_memory(train=TRAIN, evaluate=HELD_OUT, loss=nn.CrossEntropyLoss(), **options)


def test_an_attached_scheduler_is_asked_for_as_a_function() -> None:
    model = SmallNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 2)
    with pytest.raises(TaskError, match="scheduler=lambda optimizer, updates"):
        made(model, optimizer=optimizer)


def test_arguments_about_a_model_do_not_go_with_a_study(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('[study]\ntask = "digits-lenet"\n')
    with pytest.raises(StudyError, match="`loss` goes with a model"):
        workbench.tune(tmp_path, loss=nn.CrossEntropyLoss())


@pytest.mark.parametrize("moves", [True, False], ids=["on a terminal", "into a file"])
def test_progress_is_one_line_per_phase(
    moves: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: moves)
    line = ProgressLine()
    for phase, done in (("search", 1.0), ("search", 2.0), ("confirm", 0.0)):
        line(TuneProgress(phase, done, 4.0, 150.0, "trial 1"))
    shown = "search: 1 of 4, 2.5 min left, leading trial 1\n", "confirm: 0 of 4, 2.5 min left, leading trial 1"
    assert capsys.readouterr().out == ("".join(f"\r{one}" for one in shown) if moves else "".join((*shown, "\n")))


def test_the_look_at_a_task_is_part_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = list[float]()

    def looked(*_: Any, **__: Any) -> Path:
        began.append(time.monotonic())
        return tmp_path

    def tuned(*_: Any, **options: Any) -> None:
        began.append(options["began"])
        raise StudyError("enough")

    monkeypatch.setattr("workbench.study.begin_study", looked)
    monkeypatch.setattr("workbench.study.tune", tuned)
    with pytest.raises(StudyError, match="enough"):
        workbench.tune("digits-lenet", steps=10, minutes=1.0)
    assert began[1] < began[0]


@pytest.mark.slow
def test_from_a_model_in_memory_to_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "places_to_train", lambda *_, **__: 2)
    monkeypatch.setattr(OtherWork, "sentence", lambda *_: "")
    model = SmallNet()
    weights = model[0].weight.detach().clone()
    training: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    options: dict[str, Any] = {"epochs": 8, "minutes": 10, "trials": 2, "confirm_seeds": 4, "allowed_drop": 0.05}
    answer = workbench.tune(model, TRAIN, HELD_OUT, **training, **options)
    assert torch.equal(model[0].weight, weights)
    assert answer.exported["o1"].is_file()
    assert str(answer.exported["o1"]) in str(answer)
    assert "<p>o1: " in answer._repr_html_()
    assert len(repr(answer)) < len(str(answer)) + 100, "not all its records"
    room = "There is room to train 2 runs at a time here; a task in a file (my_task.py:task) could use it."
    assert room in answer.remarks
    printed = capsys.readouterr().out
    assert "begins with a copy of the model" in printed
    assert "search: " in printed
