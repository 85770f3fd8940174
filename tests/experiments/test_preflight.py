"""Before a run trains anything, loss and metric are tried on what the model returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.kit.runs import run_task
from tests.tasks.test_outputs import Net, X, Y, task_of
from workbench.api import compare, train, tune
from workbench.config import BoostConfig
from workbench.study import StudyFailedError
from workbench.tasks import TaskError

CPU = torch.device("cpu")


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
@pytest.mark.parametrize("shape", ["dict", "tuple", "hugging"])
def test_a_run_whose_outputs_nobody_can_take_does_not_begin(shape: str, metric: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="say in the Task which part is the prediction"):
        run_task(task_of(shape, metric=metric), BoostConfig(), steps=3, device=CPU, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_metric_that_cannot_work_is_told_before_the_first_step() -> None:
    seen: list[Any] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append(batch)
        return F.cross_entropy(model(batch[0])[0], batch[1])

    with pytest.raises(TaskError, match="the metric accuracy needs a tensor, but the model returns a tuple of 2"):
        run_task(task_of("tuple", loss=loss), BoostConfig(), steps=3, device=CPU)
    assert seen == []


@pytest.mark.parametrize(("shape", "outputs"), [("dict", "out"), ("tuple", 0), ("hugging", "logits")])
def test_a_model_that_returns_more_trains_to_the_bits_of_one_that_does_not(shape: str, outputs: Any) -> None:
    wrapped = run_task(task_of(shape, outputs), BoostConfig(), steps=20, evaluate_every=5, device=CPU)
    bare = run_task(task_of("tensor"), BoostConfig(), steps=20, evaluate_every=5, device=CPU)
    assert (wrapped.curve, wrapped.final_loss) == (bare.curve, bare.final_loss)
    assert wrapped.curve[-1][1] > 0.8


def test_a_criterion_for_what_the_model_returns_in_training_only_is_left_to_the_first_step() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net("tuple")

        def forward(self, x: torch.Tensor) -> Any:
            both = self.net(x)
            return both if self.training else both[0]

    class Both(nn.Module):
        def forward(self, returned: Any, target: torch.Tensor) -> torch.Tensor:
            logits, aux = returned
            return F.cross_entropy(logits, target) + 0 * aux

    task = task_of("tuple", model=Auxiliary, loss=Both())
    assert len(run_task(task, BoostConfig(), steps=3, device=CPU).curve) == 1


def test_trying_leaves_the_run_as_it_is() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.drop, self.layer = nn.BatchNorm1d(3), nn.Dropout(0.3), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.drop(self.norm(x)))  # type: ignore[no-any-return]

    task = task_of("tensor", model=Normed)
    first, second = (run_task(task, BoostConfig(), steps=5, device=CPU) for _ in range(2))  # tried in the first only
    assert (first.metric, first.final_loss) == (second.metric, second.final_loss)


@pytest.mark.filterwarnings("ignore:less_bn had no effect")
@pytest.mark.filterwarnings("ignore:grad_freeze is not in effect")
def test_outputs_work_on_every_way_that_trains(tmp_path: Path) -> None:
    task = task_of("dict", "out", evaluate=[(X, Y)])
    assert train(task, steps=4, device="cpu", out=None).curve
    compared = compare(task, [{"boost": {"mode": "disable_all"}}, {}], seeds=[0], steps=4, device="cpu")
    assert [side.summary for side in compared.sides] == ["nothing switched on"] * 2  # O1 finds nothing here
    text = '[study]\ntask = "wrapped"\nbudget_steps = 4\nn_trials = 2\ndevice = "cpu"\nobjective = "speed"\n'
    text += '[space]\n"optimizer.lr" = [0.1, 0.2]\n[speed]\nrounds = 2\nsteps_per_block = 1\n'
    (tmp_path / "study.toml").write_text(text + "[confirm]\nseeds_min = 2\nseeds_max = 2\n")
    result = tune(tmp_path, task=task)
    assert len(result.trials) == 2
    assert {trial.state for trial in result.trials} <= {"complete", "pruned"}  # four steps decide nothing about speed


def test_a_study_whose_task_cannot_train_says_so(tmp_path: Path) -> None:
    text = '[study]\ntask = "wrapped"\nbudget_steps = 4\nn_trials = 2\ndevice = "cpu"\n'
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises((TaskError, StudyFailedError), match="outputs='out'"):
        tune(tmp_path, task=task_of("dict"))
