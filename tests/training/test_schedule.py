"""Shorter runs and other batches: how many passes there are, what they see, and where the learning rate ends."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

import workbench
from tests.kit.runs import train_and_watch
from tests.kit.tasks import task_of
from tests.kit.twins import pickled
from workbench.config import BoostConfig
from workbench.methods.batch.method import concatenated, parts_of
from workbench.methods.schedule.method import factor_at, recorded, stretched
from workbench.optim.adam_offload.optimizer import AdamOffload
from workbench.optim.thor.optimizer import Thor
from workbench.tasks import Task
from workbench.tasks.errors import TaskError

STEPS = 24


def config(**sections: Any) -> BoostConfig:
    return BoostConfig.from_dict({"boost": {"mode": "disable_all"}, **sections})


def task(scheduler: Any = None, seen: list[Tensor] | None = None) -> Task:
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    batches = [(inputs[i : i + 8], (inputs[i : i + 8].sum(dim=1) > 0).long()) for i in range(0, 64, 8)]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if seen is not None and model.training:
            seen.append(batch[0])
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return task_of(lambda: nn.Linear(4, 2), batches, loss=loss, metric="accuracy", scheduler=scheduler)


def rates(scheduler: Any, **sections: Any) -> list[float]:
    return [record.learning_rate for record in train_and_watch(task(scheduler), config(**sections), steps=STEPS)[1]]


def test_a_run_may_be_told_in_epochs() -> None:
    assert workbench.train(task(), epochs=1.5, out=None).steps == 12  # of 8 batches each
    with pytest.raises(ValueError, match="`steps` and `epochs` both say"):
        workbench.train(task(), steps=3, epochs=1, out=None)
    with pytest.raises(ValueError, match="`epochs` must be"):
        workbench.train(task(), epochs=math.inf, out=None)


@pytest.mark.parametrize(
    ("sections", "passes", "samples"),
    [
        ({"schedule": {"length": 0.5}}, 12, 8),
        ({"batch": {"factor": 2.0}}, 12, 16),
        ({"batch": {"factor": 0.5}}, 48, 4),
        ({"schedule": {"length": 0.5}, "batch": {"factor": 4.0}}, 3, 32),
    ],
)
def test_a_run_sees_its_share_of_the_samples(sections: dict[str, Any], passes: int, samples: int) -> None:
    seen: list[Tensor] = []
    unchanged: list[Tensor] = []
    result = workbench.train(task(seen=seen), config(**sections), level="O0", steps=STEPS, out=None)
    workbench.train(task(seen=unchanged), config(), level="O0", steps=STEPS, out=None)
    assert result.steps == passes
    assert result.curve[-1][0] == passes * samples // 8
    used = [inputs for inputs in seen if len(inputs) == samples][-passes:]
    assert len(used) == passes  # the outputs are checked with one batch before training
    here, there = torch.cat(used), torch.cat(unchanged[-STEPS:])
    assert torch.equal(here, there[: len(here)])  # the same samples in the same order


def test_evaluations_stand_at_batches_of_the_loader() -> None:
    result = workbench.train(task(), config(batch={"factor": 2.0}), level="O0", steps=STEPS, out=None, evaluate_every=8)
    assert [step for step, _ in result.curve] == [8, 16, 24]


def cosine(optimizer: torch.optim.Optimizer, total: int) -> CosineAnnealingLR:
    return CosineAnnealingLR(optimizer, total)


def test_a_shorter_run_goes_through_the_whole_curve_of_the_task() -> None:
    whole, short = rates(cosine), rates(cosine, schedule={"length": 0.5})
    assert len(short) == STEPS // 2
    assert short[0] == pytest.approx(whole[0])
    assert short[-1] == pytest.approx(whole[-1])
    assert short[6] == pytest.approx((whole[12] + whole[13]) / 2, rel=0.1)


def test_a_scheduler_that_counts_its_own_steps_is_stretched_too() -> None:
    def drops(optimizer: torch.optim.Optimizer, _total: int) -> StepLR:
        return StepLR(optimizer, step_size=STEPS // 2)

    short = rates(drops, schedule={"length": 0.5})
    assert short[0] == pytest.approx(0.1)
    assert short[-1] == pytest.approx(0.01)


def test_a_stretched_course_survives_a_pickle() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.2)
    scheduler = stretched(optimizer, 3, [(1.0,), (0.5,), (0.0,)])
    optimizer.step()
    scheduler.step()
    assert [pickled(factor)(2) for factor in scheduler.lr_lambdas] == [0.0]
    assert pickled(scheduler).get_last_lr() == [0.1]


def test_length_one_keeps_the_scheduler_itself_bit_for_bit() -> None:
    assert rates(cosine, schedule={"warmup": 0.3}) == rates(cosine)


@pytest.mark.parametrize("shape", ["cosine", "linear", "warmup_stable_decay"])
def test_every_shape_rises_to_the_rate_and_ends_where_it_is_told(shape: Any) -> None:
    told = rates(cosine, schedule={"shape": shape, "warmup": 0.25, "final": 0.1, "length": 0.5})
    assert told[:3] == pytest.approx([0.1 / 3, 0.2 / 3, 0.1])
    assert told[-1] == pytest.approx(0.01)
    assert told[3:] == sorted(told[3:], reverse=True)


def test_the_constant_shape_replaces_a_falling_curve() -> None:
    assert rates(cosine, schedule={"shape": "constant", "warmup": 0.0}) == [0.1] * STEPS


def test_factors_of_one_update_are_defined() -> None:
    assert factor_at(0, 1, "linear", warmup=0.0) == 1.0


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("sqrt", 2.0), ("linear", 4.0)])
def test_the_rate_follows_the_batch_by_the_rule(rule: str, factor: float) -> None:
    assert rates(None, batch={"factor": 4.0, "lr_rule": rule})[0] == pytest.approx(0.1 * factor)


def test_freezing_spans_the_updates_of_the_shorter_run() -> None:
    from workbench.methods.in_effect import fitted_config

    freezing = {
        "boost": {"mode": "manual", "grad_freeze": True, "less_bn": False, "adasum": False},
        "grad_freeze": {"total_steps": 24, "param_groups": 2},
    }
    short = BoostConfig.from_dict({**freezing, "schedule": {"length": 0.5}})
    assert fitted_config(short, "O1", STEPS).grad_freeze.total_steps == 12
    assert fitted_config(BoostConfig.from_dict(freezing), "O1", STEPS).grad_freeze.total_steps == 24


def test_a_plateau_scheduler_cannot_be_stretched_and_says_so() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(ValueError, match="its course is not known beforehand"):
        recorded(lambda one, _: torch.optim.lr_scheduler.ReduceLROnPlateau(one), optimizer, 5)


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        (lambda one, _: torch.optim.lr_scheduler.ReduceLROnPlateau(one), "ReduceLROnPlateau.step() needs metrics"),
        (lambda *_: SteppedByEpochs(), "SteppedByEpochs.step() needs epoch"),
        (lambda *_: 0.1, "must return an object with step(), got float"),
    ],
    ids=["plateau", "epochs", "number"],
)
def test_a_scheduler_that_a_run_cannot_step_is_refused_in_a_sentence(scheduler: Any, said: str) -> None:
    with pytest.raises(TaskError, match=re.escape(said)):
        rates(scheduler)


class SteppedByEpochs:
    """A scheduler as timm's."""

    def step(self, epoch: int, metric: float | None = None) -> None:
        """Set the rates of an epoch."""


def test_batches_that_are_dataclasses_are_concatenated_and_cut() -> None:
    @dataclasses.dataclass
    class Pair:
        x: torch.Tensor
        kind: str

    both = concatenated([Pair(torch.zeros(3, 2), "kept"), Pair(torch.ones(2, 2), "kept")])
    assert (both.x.shape, both.kind) == ((5, 2), "kept")
    assert [len(part.x) for part in parts_of(both, 2)] == [2, 3]


def test_batches_of_other_shapes_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"shapes \(2, 3\), \(2, 4\) cannot be concatenated without a method joined"):
        concatenated([torch.zeros(2, 3), torch.zeros(2, 4)])
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(2), torch.zeros(1)]), torch.zeros(2)
    with pytest.raises(ValueError, match=r"packed sequences cannot be concatenated or cut; give them padded"):
        concatenated([packed, packed])
    with pytest.raises(ValueError, match=r"packed sequences cannot be concatenated or cut; give them padded"):
        list(parts_of(packed, 2))


class WithoutRate(torch.optim.Optimizer):
    """Steps by a number that it does not call a learning rate, or by one that it finds itself."""

    def __init__(self, parameters: Any, **defaults: Any) -> None:
        super().__init__(parameters, defaults)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(0.1 * parameter.grad)


@pytest.mark.parametrize("defaults", [{"eta": 0.1}, {"lr": None}])
def test_an_optimizer_without_a_rate_has_a_shorter_run_and_no_course(defaults: dict[str, Any]) -> None:
    net = nn.Linear(2, 1)
    config = {"boost": {"mode": "disable_all"}, "schedule": {"length": 0.5, "shape": "linear"}}
    with pytest.warns(UserWarning, match="the optimizer has no learning rate to change"):
        boosted = workbench.apply(config, net, WithoutRate(net.parameters(), **defaults), 8, level="O0")
    rates = []
    for batch in boosted.batches([torch.ones(3, 2)] * 8):
        boosted.backward(boosted.model(batch).square().mean())
        rates.append(boosted.step().learning_rate)
    assert len(rates) == 4
    assert all(math.isnan(rate) for rate in rates)


@pytest.mark.parametrize(
    "optimizer",
    [lambda net: AdamOffload(net, [0.1, 0.05]), lambda net: Thor(net, lambda step: 0.1, 0.1, 0.9)],
    ids=["a list", "a function"],
)
def test_rates_that_an_optimizer_was_given_step_by_step_are_not_changed_in_vain(optimizer: Any) -> None:
    net = nn.Linear(3, 1)
    with pytest.raises(ValueError, match=r"`optimizer\.lr` is set, but the \w+ was given a rate for each step"):
        workbench.apply({"optimizer": {"lr": 0.7}}, net, optimizer(net), level="O0")
    with pytest.warns(UserWarning, match="the optimizer has no learning rate to change"):
        workbench.apply({"schedule": {"shape": "linear"}}, net, optimizer(net), 2, level="O0")
