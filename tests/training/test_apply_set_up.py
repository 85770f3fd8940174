"""One set-up, three ways: `workbench.train`, a loop of one's own with `apply`, and `Model` train the same network."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, StepLR

import workbench
from tests.kit import tasks
from tests.kit.callbacks import Noting
from tests.kit.runs import train_and_watch
from tests.kit.twins import assert_same, through_file
from workbench.config import BoostConfig
from workbench.config.optimizer import HYPER_PARAMETERS
from workbench.core.wrapped_model import unwrapped
from workbench.mindspore.model import Model
from workbench.tasks import Task
from workbench.training import Boosted, apply
from workbench.training.evaluation import evaluate
from workbench.training.precision import Precision
from workbench.training.setup import seed_everything

EPOCHS, N_BATCHES = 4, 8
TOTAL = EPOCHS * N_BATCHES
OFF = {"boost": {"mode": "disable_all"}}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))  # type: ignore[no-any-return]


def images(n: int = N_BATCHES) -> list[tuple[Tensor, Tensor]]:
    return tasks.images(n)


def sgd(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.05, momentum=0.9, fused=True)


def cosine(optimizer: Optimizer, updates: int) -> LRScheduler:
    return CosineAnnealingLR(optimizer, updates)


def task() -> Task:
    return tasks.task_of(
        Net, images(), optimizer=lambda named: sgd([p for _, p in named]), evaluate=images(3), scheduler=cosine
    )


SET_UPS: dict[str, dict[str, Any]] = {
    "as given": OFF,
    "shorter on the task's curve": {**OFF, "schedule": {"length": 0.4}},
    "larger batches on the task's curve": {**OFF, "batch": {"factor": 3.0, "lr_rule": "sqrt"}},
    "parts of batches": {**OFF, "batch": {"factor": 0.5}, "schedule": {"length": 0.5, "shape": "constant"}},
    "everything": {
        **OFF,
        "schedule": {"length": 0.75, "shape": "linear", "warmup": 0.2},
        "batch": {"factor": 2.0},
        "curriculum": {"kind": "resolution", "start": 0.5, "until": 0.5, "stages": 1},
        "regularization": {"label_smoothing": 0.1, "weight_average": "ema", "decay": 0.8},
        "optimizer": {"name": "AdamW", "lr": 0.01, "weight_decay": 0.1},
        "loss_scale": {"kind": "dynamic"},
    },
    "with boost methods": {
        "boost": {"mode": "manual", "less_bn": False, "grad_freeze": True, "grad_accumulation": True},
        "grad_freeze": {"param_groups": 2, "freeze_p": 0.3},
        "grad_accumulation": {"grad_accumulation_step": 2},
        "schedule": {"length": 0.5, "shape": "cosine"},
        "optimizer": {"lr": 0.02},
    },
}


def by_hand(config: dict[str, Any], model: nn.Module, **options: Any) -> tuple[Boosted, list[float]]:
    rates = []
    options = {"total_steps": TOTAL, "criterion": nn.CrossEntropyLoss(), "scheduler": cosine} | options
    boosted = apply(config, model, sgd(model.parameters()), **options)
    for x, y in boosted.batches(images(), EPOCHS):
        with boosted.autocast():
            loss = boosted.criterion(boosted.model(x), y)
        boosted.backward(loss)
        rates.append(float(boosted.step().learning_rate))
    boosted.finish()
    return boosted, rates


@pytest.mark.parametrize("name", SET_UPS)
def test_a_loop_of_ones_own_trains_as_the_command_does_bit_for_bit(name: str) -> None:
    config = SET_UPS[name]
    trained, steps = train_and_watch(task(), BoostConfig.from_dict(config), level="O1", steps=TOTAL)
    seed_everything(0)
    model = Net()
    boosted, rates = by_hand(config, model)
    with boosted.evaluating():
        metric = evaluate(task(), model, torch.device("cpu"), Precision("O0", "float16", "cpu"))
    assert metric == trained.metric
    assert rates == [record.learning_rate for record in steps]
    assert len(rates) == trained.steps == boosted.course.passes
    assert boosted.updates == trained.steps // boosted.window.n_steps


@pytest.mark.parametrize("name", [name for name in SET_UPS if "task's" not in name and name != "with boost methods"])
def test_model_trains_and_evaluates_the_same_set_up(name: str) -> None:
    unscheduled = dataclasses.replace(task(), scheduler=None)
    trained = workbench.train(unscheduled, BoostConfig.from_dict(SET_UPS[name]), level="O0", steps=TOTAL, out=None)
    seed_everything(0)
    network, epochs = Net(), Noting("on_train_epoch_end", lambda state: state.cur_epoch_num)
    options = {"metrics": {"loss"}, "boost_level": "O0", "boost_config_dict": SET_UPS[name]}
    model = Model(network, nn.CrossEntropyLoss(), sgd(network.parameters()), **options)
    model.fit(EPOCHS, images(), images(3), callbacks=epochs)
    assert model.boosted.step_index == trained.steps
    assert model.eval(images(3))["loss"] == pytest.approx(trained.metric, rel=1e-6)
    share = SET_UPS[name].get("schedule", {}).get("length", 1.0)
    assert epochs.values == list(range(1, round(EPOCHS * share) + 1))


def test_model_needs_a_length_where_the_configuration_changes_it() -> None:
    network, shorter = Net(), {"schedule": {"length": 0.5}}
    model = Model(network, nn.CrossEntropyLoss(), sgd(network.parameters()), boost_config_dict=shorter)
    with pytest.raises(ValueError, match="give `train_dataset` a length"):
        model.train(2, (batch for batch in images()))


# How long a run is


def plain(config: dict[str, Any], total_steps: int | None = None, **options: Any) -> Boosted:
    model = Net()
    return apply(config, model, sgd(model.parameters()), total_steps, level="O0", **options)


def trained(boosted: Boosted, n: int = N_BATCHES) -> Boosted:
    """Train on the first batches of the loader itself."""
    for x, y in images()[:n]:
        boosted.backward(F.cross_entropy(boosted.model(x), y))
        boosted.step()
    return boosted


def test_epochs_and_total_steps_must_agree() -> None:
    boosted = plain(OFF, 30)
    with pytest.raises(ValueError, match=r"4 epochs of 8 batches are 32 batches, .* is 30; .* boosted\.epochs\("):
        boosted.batches(images(), 4)
    with pytest.raises(TypeError, match="`epochs` must be a whole number, or None where `total_steps` says"):
        boosted.batches(images(), 3.75)  # type: ignore[arg-type]
    assert len(list(boosted.batches(images()))) == 30  # as many epochs as that takes


def test_a_loader_that_ends_early_or_at_once_is_told_of() -> None:
    unsized = (batch for batch in images())
    with pytest.raises(ValueError, match="the loader ended after 8 of 16 forward passes; `total_steps` is 16"):
        list(plain(OFF, 16).batches(unsized, 1))
    with pytest.raises(ValueError, match="the loader held no batch in epoch 1; an iterator can be read only once"):
        list(plain(OFF, 16).batches(batch for batch in images()))
    with pytest.raises(ValueError, match="how long is the run"):
        plain(OFF).batches(images())
    with pytest.raises(ValueError, match="`total_steps` must be at least 1, got 0"):
        plain(OFF, 0)


def test_a_schedule_without_a_length_ends_at_the_first_update_with_the_way_out() -> None:
    boosted = plain({**OFF, "schedule": {"shape": "linear"}})
    with pytest.raises(RuntimeError, match=r"give apply\(\) `total_steps`, or take the batches from boosted"):
        trained(boosted, 1)


@pytest.mark.filterwarnings("ignore:less_bn had no effect")
@pytest.mark.parametrize(
    ("config", "groups"),
    [
        ({"optimizer": {"name": "Muon"}}, 2),
        ({"boost": {"mode": "manual", "less_bn": True}, "compatibility": {"grad_centralization": "multiple_of_16"}}, 4),
    ],
)
def test_a_schedule_with_an_entry_for_each_group_goes_to_the_groups_parts(config: dict[str, Any], groups: int) -> None:
    def make(optimizer: Optimizer, updates: int) -> LRScheduler:
        return LambdaLR(optimizer, [lambda update: 1.0 / (1 + update), lambda update: 0.5])

    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    parameters = [*model.parameters()]
    optimizer = SGD([{"params": parameters[:4]}, {"params": parameters[4:]}], lr=0.1)
    boosted = apply(OFF | config, model, optimizer, 8, level="O0", scheduler=make)
    begun = {id(p): group["lr"] for group in boosted.optimizer.param_groups for p in group["params"]}
    for _ in range(2):
        boosted.backward(boosted.model(torch.randn(4, 16)).square().mean())
        boosted.step()
    ratios = [round(g["lr"] / begun[id(g["params"][0])], 6) for g in boosted.optimizer.param_groups]
    firsts = [any(g["params"][0] is one for one in parameters[:4]) for g in boosted.optimizer.param_groups]
    assert len(boosted.optimizer.param_groups) >= groups
    assert ratios == [round(1 / 3, 6) if first else 1.0 for first in firsts]


def test_a_loop_that_runs_past_the_schedules_end_is_warned_once() -> None:
    boosted = plain({**OFF, "schedule": {"length": 0.5}}, 8, scheduler=cosine)

    with pytest.warns(UserWarning, match="the schedule has come to its end after 4 updates") as told:
        trained(boosted)
    assert len(told) == 1


def test_epochs_are_told_to_a_sampler() -> None:
    epochs: list[int] = []

    class Told(list[Any]):
        def set_epoch(self, epoch: int) -> None:
            epochs.append(epoch)

    list(plain(OFF).batches(Told(images()), 3))
    assert epochs == [0, 1, 2]


@pytest.mark.parametrize(
    ("sections", "in_epochs"),
    [
        ({}, [8, 8, 8, 8]),
        ({"schedule": {"length": 0.4}}, [6, 7]),  # 13 batches, where an epoch had 8
        ({"batch": {"factor": 3.0}}, [2, 3, 3, 3]),  # of three of the loader's
        ({"batch": {"factor": 0.5}, "schedule": {"length": 0.5}}, [16, 16]),  # of half a one
        ({"schedule": {"length": 0.1}}, [3]),
    ],
)
def test_a_loop_over_epochs_has_the_batches_of_the_run(sections: dict[str, Any], in_epochs: list[int]) -> None:
    epochs = [list(epoch) for epoch in plain(OFF | sections).epochs(images(), EPOCHS)]
    assert [len(epoch) for epoch in epochs] == in_epochs
    of_the_run = list(plain(OFF | sections).batches(images(), EPOCHS))
    torch.testing.assert_close([*itertools.chain(*epochs)], of_the_run, rtol=0, atol=0)


@pytest.mark.parametrize(("stop", "left"), [(11, [5, 8, 8]), (16, [8, 8]), (32, [])])  # in an epoch, between two, all
def test_a_loop_over_epochs_goes_on_where_the_run_stands(stop: int, left: list[int]) -> None:
    broken, resumed = plain(OFF), plain(OFF)
    for x, y in itertools.islice(broken.batches(images(), EPOCHS), stop):
        broken.backward(F.cross_entropy(broken.model(x), y))
        broken.step()
    resumed.load_state_dict(copy.deepcopy(broken.state_dict()))
    rest = [list(epoch) for epoch in resumed.epochs(images(), EPOCHS)]
    assert [len(epoch) for epoch in rest] == left
    torch.testing.assert_close([*itertools.chain(*rest)], (images() * EPOCHS)[stop:], rtol=0, atol=0)


def test_a_loop_over_epochs_leaves_the_settings_of_the_process_as_they_were() -> None:
    before = torch.get_num_threads()
    for epoch in plain({**OFF, "runtime": {"threads": before + 1}}).epochs(images(), EPOCHS):
        next(epoch)
        assert torch.get_num_threads() == before + 1
        break
    assert torch.get_num_threads() == before


def test_training_resumes_in_a_schedule_whose_length_the_batches_told() -> None:
    def rates(boosted: Boosted, start: int = 0, stop: int | None = None) -> list[float]:
        seen: list[float] = []
        for x, y in boosted.batches(images(), EPOCHS, start=start):
            if boosted.step_index == stop:
                break
            boosted.backward(F.cross_entropy(boosted.model(x), y))
            seen.append(boosted.optimizer.param_groups[0]["lr"])
            boosted.step()
        return seen

    whole, broken, resumed = (plain({**OFF, "schedule": {"shape": "cosine"}}) for _ in range(3))
    before = rates(broken, stop=7)
    resumed.load_state_dict(copy.deepcopy(broken.state_dict()))
    assert before + rates(resumed, start=7) == rates(whole)


def test_a_stream_without_a_length_takes_as_many_batches_as_the_run_has() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(torch.randn(40, 4))

    loader = torch.utils.data.DataLoader(Stream(), batch_size=4)
    assert len(list(plain(OFF, 20).batches(loader, 2))) == 20


# The optimizer


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"schedule": {"shape": "linear"}}, "the configuration has a schedule of its own"),
        ({"schedule": {"length": 0.5}}, "the configuration changes the number of updates"),
        ({"batch": {"factor": 2.0}}, "the configuration changes the number of updates"),
        ({"optimizer": {"name": "AdamW"}}, "the configuration replaces it by AdamW"),
    ],
)
def test_an_optimizer_with_a_scheduler_is_refused_where_the_rates_would_be_wrong(
    sections: dict[str, Any], why: str
) -> None:
    model = Net()
    optimizer = sgd(model.parameters())
    StepLR(optimizer, 3)
    with pytest.raises(ValueError, match=f"a learning-rate scheduler is attached to `optimizer`, but {why}"):
        apply({**OFF, **sections}, model, optimizer, TOTAL, level="O0")
    apply({**OFF, "regularization": {"weight_average": "ema"}}, model, optimizer, TOTAL, level="O0")


def test_a_named_optimizer_takes_over_groups_rates_and_what_is_trained() -> None:
    model = Net()
    given = AdamW(
        [
            {"params": [model.head.weight], "lr": 0.02},
            {"params": [model.head.bias, model.norm.bias, model.norm.weight], "weight_decay": 0.0},
        ],
        lr=0.01,
    )
    section = {"name": "SGD", "lr": 0.3, "momentum": 0.9, "weight_decay": 0.1}
    boosted = apply({**OFF, "optimizer": section}, model, given, level="O0")
    assert isinstance(boosted.optimizer, SGD)
    found = {id(p): group for group in boosted.optimizer.param_groups for p in group["params"]}
    assert set(found) == {id(p) for group in given.param_groups for p in group["params"]}  # not the convolution
    assert (found[id(model.head.weight)]["lr"], found[id(model.head.weight)]["weight_decay"]) == (0.6, 0.1)
    assert (found[id(model.norm.bias)]["lr"], found[id(model.norm.bias)]["weight_decay"]) == (0.3, 0.0)
    assert all(group["momentum"] == 0.9 for group in boosted.optimizer.param_groups)
    before = copy.deepcopy(model.state_dict())
    trained(boosted, 1)
    after = model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name]) and "running" not in name}
    assert moved == {"head.weight", "head.bias", "norm.weight", "norm.bias", "norm.num_batches_tracked"}


@pytest.mark.parametrize("name", sorted(HYPER_PARAMETERS))
def test_every_optimizer_takes_over_groups_and_trains_what_a_criterion_brings(name: str) -> None:
    torch.manual_seed(0)
    model, margin, frozen = Net(), nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()), requires_grad=False)
    doubled = {"params": [model.head.weight, model.head.bias, margin, frozen], "lr": 0.02}
    given = AdamW([{"params": [model.conv.weight]}, doubled], lr=0.01)
    boosted = apply({**OFF, "optimizer": {"name": name, "lr": 0.01}}, model, given, level="O0")
    found = {id(p): float(group["lr"]) for group in boosted.optimizer.param_groups for p in group["params"]}
    assert found[id(model.conv.weight)] == pytest.approx(0.01)
    if name != "Muon":  # whose head is AdamW's and has a rate of its own
        assert found[id(model.head.weight)] == pytest.approx(0.02)
    assert set(found) == {id(p) for group in given.param_groups for p in group["params"] if p is not frozen}
    before = {key: value.clone() for key, value in model.named_parameters()}
    x, y = images()[0]
    boosted.backward(F.cross_entropy(margin * boosted.model(x), y))
    boosted.step()
    moved = {key for key, value in model.named_parameters() if not torch.equal(before[key], value)}
    assert moved == {"conv.weight", "head.weight", "head.bias"}
    assert margin != 1.0


def test_rates_that_all_stand_in_the_groups_keep_their_ratios() -> None:
    """What torch takes for a rate that nobody gave is the measure of nothing."""
    model = Net()
    groups = [{"params": [model.conv.weight], "lr": 0.1}, {"params": list(model.head.parameters()), "lr": 0.05}]
    boosted = apply({**OFF, "optimizer": {"name": "AdamW", "lr": 0.002}}, model, SGD(groups), level="O0")
    assert [group["lr"] for group in boosted.optimizer.param_groups] == pytest.approx([0.002, 0.001])


def test_what_a_criterion_trains_gets_the_rate_that_muon_has_for_the_rest() -> None:
    net, temperature = nn.Linear(4, 2), nn.Parameter(torch.ones(3))
    config = {**OFF, "optimizer": {"name": "Muon", "aux_lr": 0.02}}
    boosted = apply(config, net, SGD([*net.parameters(), temperature], lr=0.1))
    assert [group["lr"] for group in boosted.optimizer.param_groups] == [0.02, 0.02]


def test_a_named_optimizer_that_does_not_take_sparse_gradients_is_refused_before_anything_is_trained() -> None:
    net = nn.ModuleDict({"table": nn.Embedding(4, 2, sparse=True), "head": nn.Linear(2, 1)})
    with pytest.raises(ValueError, match=r"of table.weight are sparse; set `optimizer.name` to SGD or Adagrad, or"):
        apply({**OFF, "optimizer": {"name": "Muon"}}, net, SGD(net.parameters(), lr=0.1))
    apply({**OFF, "optimizer": {"name": "Muon"}}, net, SGD(net["head"].parameters(), lr=0.1))  # without the table


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of what Adagrad makes
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_weight_decay_of_a_table_with_sparse_gradients_is_refused_before_anything_is_trained(name: str) -> None:
    net = nn.ModuleDict({"table": nn.Embedding(4, 2, sparse=True), "head": nn.Linear(2, 1)})
    config = {**OFF, "optimizer": {"name": name, "lr": 0.1, "weight_decay": 0.01}}
    with pytest.raises(ValueError, match=rf"{name} cannot decay table.weight, whose gradients are sparse; train it wi"):
        apply(config, net, SGD(net.parameters(), lr=0.1))
    groups = [{"params": net["head"].parameters(), "weight_decay": 0.1}, {"params": net["table"].parameters()}]
    boosted = apply(config, net, SGD(groups, lr=0.1))
    boosted.backward(net["head"](net["table"](torch.tensor([1]))).sum())
    assert boosted.step().applied


SHAPELESS: list[dict[str, Any]] = [
    {},
    {"optimizer": {"lr": 0.2}},
    {"schedule": {"length": 0.5, "shape": "cosine"}},
    {"batch": {"factor": 2.0}},
    {"curriculum": {"kind": "resolution"}},
    {"regularization": {"weight_average": "ema"}},
    {"runtime": {"threads": 1}},
]


@pytest.mark.parametrize("set_up", SHAPELESS, ids=json.dumps)
def test_lazy_layers_are_trained_where_nothing_has_to_see_their_shapes(set_up: dict[str, Any]) -> None:
    net = nn.Sequential(nn.LazyConv2d(2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(2))
    boosted = apply({**OFF, **set_up}, net, sgd(net.parameters()), TOTAL)
    for x, y in boosted.batches(images(), EPOCHS):
        with boosted.autocast():
            loss = F.cross_entropy(boosted.model(x), y)
        boosted.backward(loss)
        assert boosted.step().applied


@pytest.mark.parametrize(
    "set_up",
    [
        {"optimizer": {"name": "Muon"}},
        {"amp": {"level": "O3", "dtype": "bfloat16"}},
        {"runtime": {"memory_format": "channels_last"}},
        {"boost": {"mode": "manual", "less_bn": True, "grad_freeze": False}},
        {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": True}},
    ],
    ids=json.dumps,
)
def test_lazy_layers_are_refused_where_something_has_to_see_their_shapes(set_up: dict[str, Any]) -> None:
    net = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(RuntimeError, match=r"lazy layers, .* call it once on inputs"):
        apply({**OFF, **set_up}, net, SGD(net.parameters(), lr=0.1))


def test_without_a_name_the_given_optimizer_stays_with_the_settings_changed() -> None:
    model = Net()
    optimizer = sgd(model.parameters())
    boosted = apply({**OFF, "optimizer": {"lr": 0.7}}, model, optimizer, level="O0")
    assert boosted.optimizer is optimizer
    assert optimizer.param_groups[0]["lr"] == 0.7
    with pytest.raises(ValueError, match=r"`optimizer\.eps` is set, but SGD has no such parameter"):
        apply({**OFF, "optimizer": {"eps": 0.7}}, model, optimizer, level="O0")


class Averaging(SGD):
    """Trains one set of weights and evaluates another, as Schedule-Free optimizers do."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.modes: list[str] = []

    def eval(self) -> None:
        self.modes.append("eval")
        self._each(lambda p: p.mul_(3))

    def train(self) -> None:
        self.modes.append("train")
        self._each(lambda p: p.div_(3))

    @torch.no_grad()
    def _each(self, change: Callable[[Tensor], Any]) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                change(parameter)


def test_an_optimizer_that_averages_evaluates_its_average_with_statistics_of_its_own() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = Averaging(model.parameters(), lr=0.1)
    boosted = trained(apply(OFF, model, optimizer, level="O0"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with boosted.evaluating():
        assert model.training
        assert torch.equal(model.head.weight, before["head.weight"] * 3)
        inputs = model.conv(torch.cat([x for x, _ in images()]))  # of equal batches, so that means may be averaged
        torch.testing.assert_close(model.norm.running_mean, inputs.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
        assert int(model.norm.num_batches_tracked) == 8
        assert model.norm.momentum == 0.1
    assert optimizer.modes == ["eval", "train"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training


def test_an_evaluation_leaves_no_trace_in_a_criterion_that_is_trained() -> None:
    model, temperature = Net(), nn.Parameter(torch.rand(100, generator=torch.Generator().manual_seed(0)))
    boosted = apply(OFF, model, Averaging([*model.parameters(), temperature], lr=0.1), level="O0")
    before = temperature.detach().clone()
    assert not torch.equal(before.mul(3).div_(3), before)
    with boosted.evaluating():
        assert torch.equal(temperature, before * 3)
    assert torch.equal(temperature, before)


def averaging(net: type[Net] = Net) -> Boosted:
    torch.manual_seed(0)
    model = net()
    return apply(OFF, model, Averaging(model.parameters(), lr=0.1), level="O0")


def variance_used(boosted: Boosted) -> Tensor:
    with boosted.evaluating():
        variance: Tensor = boosted.model.norm.running_var.clone()
    return variance


def test_a_resumed_training_evaluates_its_average_with_the_same_statistics() -> None:
    whole, resumed, from_earlier = trained(averaging()), averaging(), averaging()
    state = through_file(whole.state_dict())
    resumed.load_state_dict(state)
    assert torch.equal(variance_used(resumed), variance_used(whole))
    assert not torch.equal(variance_used(resumed), resumed.model.norm.running_var)
    assert_same(resumed.model, whole.model)
    del state["average"]  # as in an earlier checkpoint
    from_earlier.load_state_dict(state)
    assert torch.equal(variance_used(from_earlier), whole.model.norm.running_var)


def test_a_norm_that_rests_in_training_keeps_its_statistics() -> None:
    """As a frozen body's in fine-tuning; training resumed in another process, too."""
    whole, resumed = averaging(), averaging()
    before = whole.model.norm.running_var.clone()
    whole.model.norm.eval()
    state = through_file(trained(whole).state_dict())
    resumed.load_state_dict(state)
    assert torch.equal(variance_used(whole), before)
    assert torch.equal(variance_used(resumed), before)


class CalledWithAnObject(Net):
    def forward(self, batch: Any) -> Tensor:
        return super().forward(batch.images)


def test_inputs_that_a_checkpoint_cannot_hold_are_left_out_of_it() -> None:
    boosted = averaging(CalledWithAnObject)
    boosted.backward(boosted.model(SimpleNamespace(images=images()[0][0])).sum())
    boosted.step()
    assert through_file(boosted.state_dict())["average"]["inputs"] == []


def test_with_nothing_to_average_an_evaluation_touches_nothing() -> None:
    boosted = plain(OFF)
    versions = [parameter._version for parameter in boosted.model.parameters()]
    with boosted.evaluating():
        assert [parameter._version for parameter in boosted.model.parameters()] == versions
    assert not boosted.model._forward_pre_hooks


_ALIKE = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": False}}
STATES: dict[str, dict[str, Any]] = {
    "nothing": OFF,
    "freezing": {"boost": _ALIKE["boost"] | {"grad_freeze": True}, "grad_freeze": {"param_groups": 2}},
    "an average": {**OFF, "regularization": {"weight_average": "ema"}},
    "AdamW": {**OFF, "optimizer": {"name": "AdamW"}},
    "Schedule-Free": {**OFF, "optimizer": {"name": "ScheduleFreeAdamW"}},
    "cast weights": {**OFF, "amp": {"level": "O3", "dtype": "bfloat16"}},
    "scale groups": {"boost": _ALIKE["boost"] | {"loss_scale_group": True}, "loss_scale": {"kind": "dynamic"}},
    "a loss scale": {**OFF, "loss_scale": {"kind": "dynamic"}},
    "a fixed one": {**OFF, "loss_scale": {"kind": "fixed", "init": 4.0}},
    "a schedule": {**OFF, "schedule": {"shape": "cosine"}},
    "larger batches": {**OFF, "batch": {"factor": 2.0}},
}


@pytest.mark.filterwarnings("ignore:.*has no effect", "ignore:the loss scale groups", "ignore:.*bfloat16 is slower")
def test_a_state_is_loaded_into_its_own_set_up_only_and_else_nothing_is_changed() -> None:
    made = {}
    for name, config in STATES.items():
        torch.manual_seed(len(made))
        net = Net()
        made[name] = workbench.apply(config, net, sgd(net.parameters()), TOTAL, level="O0")
        with made[name].autocast():
            loss = made[name].model(images(1)[0][0]).float().square().mean()
        made[name].backward(loss)
        made[name].step()
    for (name, boosted), (other, theirs) in itertools.product(made.items(), made.items()):
        before = copy.deepcopy(unwrapped(boosted.model))
        if name == other:
            boosted.load_state_dict(through_file(boosted.state_dict()))
        else:
            with pytest.raises(RuntimeError, match=r"needs the same set-up, but .* before, and .* here"):
                boosted.load_state_dict(theirs.state_dict())
        assert_same(unwrapped(boosted.model), before)


@pytest.mark.parametrize("name", [None, "AdamW"], ids=["its own", "named"])
def test_the_optimizer_of_another_model_is_refused(name: str | None) -> None:
    config = {} if name is None else {"optimizer": {"name": name}}
    with pytest.raises(ValueError, match="the optimizer holds none of the model's parameters"):
        apply(config, nn.Linear(3, 1), SGD(nn.Linear(3, 1).parameters(), lr=0.1))


def test_the_state_of_a_run_of_another_length_is_refused_before_anything_is_changed() -> None:
    def a_run(total_steps: int) -> Boosted:
        net = nn.Linear(2, 1)
        return apply({**OFF, "schedule": {"shape": "cosine"}}, net, SGD(net.parameters(), lr=0.1), total_steps)

    run = a_run(8)
    before = copy.deepcopy(run.model)
    with pytest.raises(ValueError, match="has 4 batches of the loader, but was set up for 8"):
        run.load_state_dict(a_run(4).state_dict())
    assert_same(run.model, before)
