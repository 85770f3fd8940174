from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import StepLR
from torch.utils.checkpoint import checkpoint

from tests.kit.chains import assert_same_bits, chain
from tests.kit.configurations import accumulating, freezing
from tests.kit.twins import assert_close
from workbench.config import BoostConfig
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.grad_freeze.method import FreezeOpt
from workbench.training import Boosted, apply, load_checkpoint, save_checkpoint, training_loop

FREEZING = freezing(3, steps=40)


def batches(n: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(6, 5, generator=generator), torch.randint(0, 3, (6,), generator=generator)) for _ in range(n)]


def network() -> nn.Sequential:
    return chain(6, n_in=5, n_out=3, width=8)


def boosted_with(config: dict[str, Any], net: nn.Module, rate: float = 0.1, **options: Any) -> Boosted:
    return apply(config, net, SGD(net.parameters(), lr=rate, **options), level="O0")


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def train(boosted: Boosted, data: list[Any], **options: Any) -> list[Any]:
    return list(training_loop(boosted, cross_entropy, data, batch_size=lambda batch: len(batch[0]), **options))


def test_freezing_with_accumulation_keeps_one_group_per_window_and_equals_an_explicit_run() -> None:
    config = freezing(3, steps=40, accumulate=2)
    net = network()
    twin = copy.deepcopy(net)
    boosted = boosted_with(config, net, momentum=0.9, weight_decay=0.01)
    freeze = boosted.optimizer
    assert isinstance(freeze, FreezeOpt)
    strategy = list(freeze.strategy or [])
    names = {id(p): n for n, p in net.named_parameters()}
    members = [[names[id(p)] for p in freeze.group_parameters(i)] for i in range(freeze.n_groups)]
    data = batches(24)
    outcomes = train(boosted, data)
    assert [o.frozen_groups for o in outcomes] == [strategy[i // 2] for i in range(24)]
    assert len({o.frozen_groups for o in outcomes}) > 1
    optimizer = SGD(twin.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    twin_parameters = dict(twin.named_parameters())
    for window in range(12):
        trained = members[strategy[window]]
        for name, p in twin_parameters.items():
            p.requires_grad_(name in trained)
        for batch in data[2 * window : 2 * window + 2]:
            (cross_entropy(twin, batch) / 2).backward()
        before = {n: p.detach().clone() for n, p in twin_parameters.items() if n not in trained}
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        assert all(torch.equal(before[n], twin_parameters[n]) for n in before)
    assert_same_bits(net, twin)


@pytest.mark.parametrize("make", [SGD, Adam, AdamW], ids=["sgd", "adam", "adamw"])
def test_an_overflow_anywhere_in_a_window_skips_the_whole_window(make: Any) -> None:
    net, rule = network(), {"kind": "dynamic", "init": 1024.0, "window": 100}
    scaling = LossScaling.from_config(BoostConfig.from_dict({"loss_scale": rule}), torch.device("cpu"))
    boosted = Boosted(net, make(net.parameters(), lr=0.1, fused=True), loss_scaling=scaling, accumulation_steps=2)
    data = batches(6)
    data[2] = (data[2][0] * torch.inf, data[2][1])  # first micro-batch of the second window
    before = copy.deepcopy(boosted.state_dict())
    weights = []
    for outcome in training_loop(boosted, cross_entropy, data, batch_size=lambda b: len(b[0])):
        weights.append(copy.deepcopy(net.state_dict()))
        assert bool(outcome.overflow) == (outcome.step == 3)
        if outcome.step == 3:
            assert (float(outcome.loss_scale), float(outcome.loss_scale_after)) == (1024, 512)
    assert all(torch.equal(weights[1][n], weights[3][n]) for n in weights[1])
    assert not all(torch.equal(weights[3][n], weights[5][n]) for n in weights[1])
    assert before["loss_scaling"]["scale"] == 1024


@settings(max_examples=8, deadline=None)
@given(
    stop=st.integers(1, 22),
    accumulation=st.sampled_from([1, 2, 3]),
    state=st.sampled_from(["shared", "per_group"]),
    adam=st.booleans(),
)
def test_resuming_at_any_step_changes_no_bit(
    tmp_path_factory: pytest.TempPathFactory, stop: int, accumulation: int, state: str, adam: bool
) -> None:
    path = tmp_path_factory.mktemp("resume") / "checkpoint.pt"
    config = {
        **freezing(3, steps=40, accumulate=accumulation),
        "loss_scale": {"kind": "dynamic", "init": 2.0**10, "window": 3},
        "compatibility": {"freeze_state": state},
    }
    data = batches(24)
    data[7] = (data[7][0] * torch.nan, data[7][1])

    def build() -> tuple[Boosted, StepLR]:
        net = nn.Sequential(network(), nn.Dropout(0.2))
        kind = Adam if adam else SGD
        extra = {} if adam else {"momentum": 0.9}
        boosted = apply(config, net, kind(net.parameters(), lr=0.05, fused=True, **extra), level="O0", seed=1)
        return boosted, StepLR(boosted.optimizer, 5, 0.5)

    torch.manual_seed(7)
    whole, schedule = build()
    torch.manual_seed(11)
    train(whole, data[:stop], scheduler=schedule)
    save_checkpoint(path, whole, schedule)
    train(whole, data[stop:], scheduler=schedule)

    torch.manual_seed(99)
    resumed, schedule = build()
    load_checkpoint(path, resumed, schedule)
    assert resumed.step_index == stop
    train(resumed, data[stop:], scheduler=schedule)
    assert_same_bits(whole.model, resumed.model)
    assert torch.equal(whole.loss_scale, resumed.loss_scale)
    assert schedule.last_epoch == 24 // accumulation


class Shifted(nn.Module):
    """A criterion that trains a parameter of its own, and learns class weights from the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(3))
        self.register_buffer("weight", torch.ones(3))

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.weight.lerp_(1.0 / (1.0 + torch.bincount(labels, minlength=3)), 0.1)
        return nn.functional.cross_entropy(scores + self.shift, labels, self.weight)


def with_criterion() -> Boosted:
    net, criterion = network(), Shifted()
    optimizer = SGD([*net.parameters(), *criterion.parameters()], lr=0.1, momentum=0.9)
    return Boosted(net, optimizer, accumulation_steps=2, criterion=criterion)


def train_with_criterion(boosted: Boosted, data: list[Any]) -> None:
    for x, y in data:
        boosted.backward(boosted.criterion(boosted.model(x), y))
        boosted.step()


@pytest.mark.parametrize("stop", [4, 5], ids=["between windows", "in a window"])
def test_what_only_optimizer_and_criterion_hold_is_resumed_too(stop: int, tmp_path: Path) -> None:
    whole, resumed, data = with_criterion(), with_criterion(), batches(8)
    train_with_criterion(whole, data[:stop])
    save_checkpoint(tmp_path / "checkpoint.pt", whole)
    load_checkpoint(tmp_path / "checkpoint.pt", resumed)
    copied = copy.deepcopy(whole)
    for boosted in (whole, resumed, copied):
        train_with_criterion(boosted, data[stop:])
    for other in (resumed, copied):
        assert_same_bits(whole.model, other.model)
        assert_same_bits(whole.criterion, other.criterion)


def test_a_checkpoint_from_before_parameters_outside_the_model_were_kept_still_loads() -> None:
    whole, resumed = with_criterion(), with_criterion()
    train_with_criterion(whole, batches(5))
    state = whole.state_dict()
    del state["criterion"]
    for part in (state, state["gradients"]):
        for name in [name for name in part if name == "outside" or name.startswith("param_groups")]:
            del part[name]
    with torch.no_grad():
        resumed.criterion.shift.fill_(1.5)
    resumed.load_state_dict(state)
    assert_same_bits(whole.model, resumed.model)
    assert resumed.criterion.shift.tolist() == [1.5, 1.5, 1.5]  # loaded by whoever kept it
    assert resumed.criterion.shift.grad is None


def test_a_checkpoint_with_other_parameters_outside_the_model_is_refused() -> None:
    whole, other = with_criterion(), with_criterion()
    state = whole.state_dict()
    state["outside"] = {name: torch.zeros(1) for name in state["outside"]}
    with pytest.raises(RuntimeError, match=r"size mismatch for param_groups\[0\]\[\d+\]"):
        other.load_state_dict(state)


def test_a_schedule_that_begins_frozen_works_with_a_fused_optimizer_with_momentum() -> None:
    config = freezing(3, kind=0, p=0.0, steps=8)
    nets = [network(), network()]
    for net, fused in zip(nets, (True, False), strict=True):
        outcomes = train(boosted_with(config, net, momentum=0.9, weight_decay=0.01, fused=fused), batches(6))
        assert outcomes[0].frozen_groups == 1
    assert_close(*nets)


def test_wrong_order_of_calls_says_what_to_do() -> None:
    net = network()
    boosted = boosted_with({}, net)
    with pytest.raises(RuntimeError, match=r"call backward\(loss\) first"):
        boosted.step()
    boosted.backward(cross_entropy(net, batches(1)[0]))
    with pytest.raises(RuntimeError, match=r"call step\(\) before the next one"):
        boosted.backward(cross_entropy(net, batches(1)[0]))


@pytest.mark.parametrize("scale", [1.0, 65536.0])
def test_clipping_sees_the_whole_gradient_without_the_scale(scale: float) -> None:
    config = {**accumulating(2), "loss_scale": {"kind": "fixed", "init": scale}}
    data = batches(2)
    net = nn.Linear(5, 3)
    twin = copy.deepcopy(net)
    train(apply(config, net, SGD(net.parameters(), lr=1.0, fused=True), level="O0", max_grad_norm=0.01), data)
    torch.stack([cross_entropy(twin, batch) for batch in data]).mean().backward()
    assert nn.utils.clip_grad_norm_(twin.parameters(), 0.01) > 0.1
    for clipped, parameter in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(clipped, parameter - parameter.grad)


def test_clipping_takes_tables_with_sparse_gradients() -> None:
    net = nn.ModuleDict({"table": nn.EmbeddingBag(6, 3, sparse=True), "head": nn.Linear(3, 2)})
    dense = copy.deepcopy(net)
    dense["table"].sparse = False
    for one in (net, dense):
        boosted = apply(accumulating(2), one, SGD(one.parameters(), lr=1.0), level="O0", max_grad_norm=0.01)
        for rows in ([[1, 1, 4]], [[1, 2, 5]]):  # one looked up twice, and in both
            boosted.backward(one["head"](one["table"](torch.tensor(rows))).square().sum())
            boosted.step()
    assert_close(net, dense)


def test_gradients_cleared_within_a_window_are_an_error_and_not_a_smaller_update() -> None:
    net = nn.Linear(5, 3)
    boosted = Boosted(net, SGD(net.parameters(), lr=0.1), accumulation_steps=2)
    first, second = batches(2)
    boosted.optimizer.zero_grad()  # between updates it does no harm
    boosted.backward(cross_entropy(net, first))
    boosted.step()
    boosted.optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="gradients of 1 micro-batches are gone before their update; leave out zero"):
        boosted.backward(cross_entropy(net, second))


def interrupted(boosted: Boosted, batch: Any) -> None:
    """Let a backward pass fail when the gradients of the last layer are there already."""

    def fail(gradient: torch.Tensor) -> None:
        raise KeyboardInterrupt

    handle = boosted.model[0].weight.register_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        boosted.backward(cross_entropy(boosted.model, batch))
    handle.remove()


def test_a_backward_pass_that_fails_leaves_no_half_gradient_behind() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    boosted = Boosted(net, SGD(net.parameters(), lr=0.1))
    (batch,) = batches(1)
    interrupted(boosted, batch)
    boosted.backward(cross_entropy(net, batch))
    (expected,) = torch.autograd.grad(cross_entropy(net, batch), [net[1].weight])
    assert torch.equal(net[1].weight.grad, expected)


def test_a_backward_pass_that_fails_within_a_window_drops_the_window() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    boosted, data = Boosted(net, SGD(net.parameters(), lr=0.1), accumulation_steps=2), batches(3)
    train(boosted, data[:1])
    interrupted(boosted, data[1])
    other = copy.deepcopy(net)
    train(boosted, data[1:])  # one window, of these two
    sum(cross_entropy(other, batch) / 2 for batch in data[1:]).backward()
    for updated, parameter in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(updated, parameter - 0.1 * parameter.grad)


def test_schedule_applied_does_not_advance_on_a_skipped_update() -> None:
    rates = {}
    for schedule in ("attempted", "applied"):
        boosted = boosted_with({"loss_scale": {"kind": "dynamic"}}, network(), 1.0, fused=True)
        data = batches(4)
        data[1] = (data[1][0] * torch.nan, data[1][1])
        scheduler = StepLR(boosted.optimizer, 1, 0.5)
        train(boosted, data, scheduler=scheduler, schedule=schedule)
        rates[schedule] = scheduler.get_last_lr()[0]
    assert rates == {"attempted": 1 / 16, "applied": 1 / 8}


def test_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    boosted = boosted_with({}, network())
    path = tmp_path / "other.pt"
    path.write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match="not a checkpoint of this package"):
        load_checkpoint(path, boosted)
    save_checkpoint(path, boosted)
    with pytest.raises(ValueError, match="had no learning-rate scheduler"):
        load_checkpoint(path, boosted, StepLR(boosted.optimizer, 1))


def test_outcomes_read_later_still_say_the_scale_and_the_place_of_their_step() -> None:
    config = {**accumulating(2), "loss_scale": {"kind": "dynamic", "init": 16.0, "window": 1}}
    outcomes = train(boosted_with(config, network(), 0.01, fused=True), batches(7))
    assert [float(o.loss_scale) for o in outcomes] == [16, 16, 32, 32, 64, 64, 128]
    assert [float(o.loss_scale_after) for o in outcomes] == [16, 32, 32, 64, 64, 128, 128]
    assert [(o.applied, o.accumulated) for o in outcomes] == [*[(False, 1), (True, 2)] * 3, (False, 1)]


def test_a_loss_without_gradient_is_an_error_and_not_a_step_that_trains_nothing() -> None:
    net = network()
    boosted = boosted_with({}, net)
    with pytest.raises(RuntimeError, match=r"the loss has no gradient; was it detached"):
        boosted.backward(net(torch.ones(1, 5)).sum().detach())
    boosted.backward(net(torch.ones(1, 5)).sum())
    assert boosted.step().applied


@pytest.mark.parametrize("state", ["shared", "per_group"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_o3_on_a_cpu_trains_every_weight_with_a_fused_optimizer(dtype: str, state: str) -> None:
    config = {**FREEZING, "amp": {"level": "O3", "dtype": dtype}, "compatibility": {"freeze_state": state}}
    plain, other = network(), network()
    for net, fused in ((plain, False), (other, True)):
        train(boosted_with(config, net, momentum=0.9, fused=fused), batches(8))
    assert_same_bits(plain, other)


def test_weights_in_float32_keep_the_fused_kernel() -> None:
    boosted = boosted_with({"amp": {"level": "O2"}}, network(), fused=True)
    assert all(group["fused"] for group in boosted.optimizer.param_groups)


def test_a_window_of_three_hands_on_what_a_division_would() -> None:
    one = nn.Linear(5, 2)
    other = copy.deepcopy(one)
    boosted = Boosted(one, SGD(one.parameters(), lr=0.1), accumulation_steps=3)
    for _ in range(2):
        x = torch.randn(7, 5)
        boosted.backward(one(x).square().mean())
        boosted.step()
        (other(x).square().mean() / 3).backward()
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


class Checkpointed(nn.Module):
    """A stem, blocks whose activations are computed again in the backward pass, and a head."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(8))
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.head(x)


def in_four_groups(net: nn.Module, freeze_type: int = 0) -> Boosted:
    return apply(freezing(4, kind=freeze_type, steps=40), net, SGD(net.parameters(), lr=0.1, fused=True))


def test_a_run_that_is_shorter_than_an_update_says_that_it_trains_nothing() -> None:
    line = nn.Linear(3, 1)
    with pytest.warns(UserWarning, match="trains nothing: it has 3 forward passes, and an update takes 4"):
        apply(accumulating(4), line, SGD(line.parameters(), lr=0.1), 3, level="O0")


def test_an_update_begins_without_the_gradients_that_another_loss_has_left() -> None:
    trained = []
    for leaves_some in (False, True):
        torch.manual_seed(0)
        line = nn.Linear(3, 1)
        boosted = boosted_with({}, line, momentum=0.9)
        for x in torch.randn(4, 8, 3):
            if leaves_some:
                (100 * line(x).mean()).backward()
            boosted.backward(line(x).square().mean())
            boosted.step()
        trained.append(line.weight.detach())
    assert torch.equal(*trained)


def test_gradients_handed_over_may_be_those_that_a_backward_pass_has_left() -> None:
    line = nn.Linear(3, 1)
    boosted = boosted_with({}, line)
    loss = line(torch.randn(8, 3)).mean()
    loss.backward()
    gradients = [parameter.grad for parameter in line.parameters() if parameter.grad is not None]
    expected = line.weight.detach() - 0.1 * gradients[0]
    boosted.accept_gradients(loss, list(line.parameters()), gradients)
    boosted.step()
    torch.testing.assert_close(line.weight, expected)


def test_a_window_may_begin_with_a_batch_that_gives_no_gradient() -> None:
    line = nn.Linear(3, 1)
    boosted = Boosted(line, SGD(line.parameters(), lr=0.1), accumulation_steps=2)
    for _ in range(2):
        boosted.backward(line(torch.randn(8, 3)).mean())
        boosted.step()
    x, before = torch.randn(8, 3), line.weight.detach().clone()
    boosted.accept_gradients(torch.zeros(()), [], [])
    boosted.step()
    boosted.backward(line(x).mean())
    boosted.step()
    torch.testing.assert_close(line.weight, before - 0.1 * x.mean(0, keepdim=True) / 2)


@pytest.mark.parametrize("freeze_type", [0, 1])
def test_freezing_refuses_reentrant_activation_checkpoints_before_it_trains_a_step(freeze_type: int) -> None:
    net = Checkpointed(use_reentrant=True)
    before = copy.deepcopy(net.state_dict())
    boosted = in_four_groups(net, freeze_type)
    with pytest.raises(RuntimeError, match=r"grad_freeze cannot be combined with reentrant .* use_reentrant=False, or"):
        train(boosted, batches(12), steps=12)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_without_reentrance_every_parameter_behind_the_frozen_ones_gets_its_gradient() -> None:
    boosted = in_four_groups(Checkpointed(use_reentrant=False))
    seen: dict[int, int] = {}
    boosted.observer = lambda trained: seen.update({boosted.frozen_groups: len(trained)})
    train(boosted, batches(12), steps=12)
    freeze = boosted.optimizer
    assert isinstance(freeze, FreezeOpt)
    assert seen == {group: len(freeze.group_parameters(group)) for group in range(4)}


def test_reentrant_checkpoints_train_where_nothing_freezes() -> None:
    net = Checkpointed(use_reentrant=True)
    boosted = apply({"boost": {"mode": "disable_all"}}, net, SGD(net.parameters(), lr=0.1, fused=True))
    assert len(train(boosted, batches(2), steps=2)) == 2


def test_an_optimizer_without_a_rate_trains_and_shows_none() -> None:
    class FixedSteps(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(0.1 * parameter.grad)

    net = nn.Linear(5, 3)
    outcomes = train(apply({}, net, FixedSteps(net.parameters()), level="O0"), batches(1) * 20)
    assert all(math.isnan(outcome.learning_rate) for outcome in outcomes)
    assert outcomes[-1].loss < outcomes[0].loss
