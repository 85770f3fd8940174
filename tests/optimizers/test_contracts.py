"""Contracts: the same questions asked of every optimizer of the package."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR

from tests.kit.twins import assert_close, assert_same, pickled, through_file
from tests.scaling.host_reads import forbid_host_reads
from workbench.core.step_optimizer import StepOptimizer
from workbench.loss_scale import step_if_finite
from workbench.optim.adam_offload.optimizer import AdamOffload
from workbench.optim.muon.optimizer import Muon
from workbench.optim.row_wise import RowWiseAdagrad, RowWiseAdam
from workbench.optim.schedule_free import ScheduleFreeAdamW
from workbench.optim.thor.optimizer import Thor


def falling(step: int) -> float:
    return 0.1 * 0.5**step


@dataclass(frozen=True)
class Made:
    """An optimizer, and what is asked of it besides the usual."""

    make: Callable[[nn.Module], Optimizer]
    of_table: bool = False  # updates tables with sparse gradients
    dtype: torch.dtype = torch.float32
    has_plain_rate: bool = True  # one that a scheduler may move
    counts_skips: bool = False  # a skipped step counts, so that what follows is another than without it
    never_waits: bool = False  # for the host to read anything


THOR = {"learning_rate": 0.05, "damping": 0.1, "momentum": 0.9, "frequency": 3}


def thor(net: nn.Module, **options: Any) -> Thor:
    return Thor(net, **{**THOR, **options})


def offload(net: nn.Module, **options: Any) -> AdamOffload:
    return AdamOffload(net.named_parameters(), **({"learning_rate": 0.01} | options))


N_STEPS, STOPS = 8, (0, 3, 4)  # before, at and after a refresh of THOR
RATES = [0.1 / (i + 1) for i in range(12)]
MADE = {
    "thor": Made(thor, counts_skips=True),
    "thor, damping by the step": Made(
        lambda net: thor(net, damping=torch.tensor([0.3, 0.2, 0.1]), factor_decay=0.0), counts_skips=True
    ),
    "thor, trace rule": Made(lambda net: thor(net, trace_threshold=0.05), counts_skips=True),
    "thor, factors of the reference": Made(lambda net: thor(net, factors="mindspore"), counts_skips=True),
    "muon": Made(Muon, never_waits=True),
    "schedule free": Made(lambda net: ScheduleFreeAdamW(net.parameters(), lr=0.03, warmup_steps=5)),
    "adam offload": Made(lambda net: offload(net, use_locking=True)),
    "adam offload, rates by the step": Made(
        lambda net: offload(net, learning_rate=RATES, weight_decay=falling), has_plain_rate=False
    ),
    "adam offload, over the host": Made(lambda net: offload(net, transfer="always", bucket_bytes=200)),
    "adam offload, rounded moments": Made(lambda net: offload(net, moments_dtype=torch.bfloat16)),
    "adam offload, rounded over the host": Made(
        lambda net: offload(net, moments_dtype=torch.bfloat16, transfer="always")
    ),
    "adam offload, short weights": Made(offload, dtype=torch.bfloat16),
    "row-wise adam": Made(lambda net: RowWiseAdam(net.parameters()), of_table=True),
    "row-wise adam, short weights": Made(
        lambda net: RowWiseAdam(net.parameters()), of_table=True, dtype=torch.bfloat16
    ),
    "row-wise adagrad": Made(lambda net: RowWiseAdagrad(net.parameters()), of_table=True),
    "row-wise adagrad, short weights": Made(
        lambda net: RowWiseAdagrad(net.parameters()), of_table=True, dtype=torch.bfloat16
    ),
}


def asked_of(wanted: Callable[[Made], bool] = lambda made: True) -> pytest.MarkDecorator:
    chosen = {name: made for name, made in MADE.items() if wanted(made)}
    return pytest.mark.parametrize("made", chosen.values(), ids=chosen)


def network(made: Made) -> nn.Sequential:
    torch.manual_seed(0)
    if made.of_table:
        net = nn.Sequential(nn.Embedding(9, 6, sparse=True), nn.Tanh(), nn.Linear(6, 4))
    else:
        parts = (nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(48, 10), nn.LayerNorm(10))
        net = nn.Sequential(*parts, nn.Linear(10, 4))
    return net.to(made.dtype)


def loss_of(net: nn.Sequential, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(12, 1, 4, 4, generator=generator).to(next(net.parameters()).dtype)
    if isinstance(net[0], nn.Embedding):
        x = torch.randint(9, (12,), generator=generator)
    return F.cross_entropy(net(x), torch.randint(4, (12,), generator=generator))


def train(net: nn.Sequential, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(net, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@asked_of()
def test_training_resumed_from_a_checkpoint_gives_the_same_bits(made: Made) -> None:
    net, saved = network(made), {}
    optimizer = made.make(net)
    for step in range(N_STEPS):
        saved[step] = through_file({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
        train(net, optimizer, range(step, step + 1))
    for stop in STOPS:
        fresh = network(made)
        resumed = made.make(fresh)
        train(fresh, resumed, range(20, 21))  # is forgotten
        for group in resumed.param_groups:
            group["lr"] = 0.7
        fresh.load_state_dict(saved[stop]["net"])
        resumed.load_state_dict(saved[stop]["optimizer"])
        train(fresh, resumed, range(stop, N_STEPS))
        assert_same(fresh, net)
        for mine, theirs in zip(fresh.parameters(), net.parameters(), strict=True):
            for name, value in optimizer.state[theirs].items():
                found, wanted = (torch.as_tensor(one) for one in (resumed.state[mine][name], value))
                assert torch.equal(found, wanted), (stop, name)
                assert found.dtype == wanted.dtype, (stop, name)


@asked_of()
def test_a_copy_goes_on_by_itself(made: Made) -> None:
    net, copies = network(made), []
    optimizer = made.make(net)
    for step in range(N_STEPS):
        if step in STOPS:
            copies += [(step, *copied((net, optimizer))) for copied in (copy.deepcopy, pickled)]
        train(net, optimizer, range(step, step + 1))
    for step, twin, its_optimizer in copies:
        train(twin, its_optimizer, range(step, N_STEPS))
        assert_same(twin, net)


@asked_of(lambda made: made.has_plain_rate)
def test_a_scheduler_moves_every_rate(made: Made) -> None:
    net, by_hand = network(made), network(made)
    optimizer, other = made.make(net), made.make(by_hand)
    scheduler = StepLR(optimizer, 1, gamma=0.5)
    for step in range(3):
        train(net, optimizer, range(step, step + 1))
        train(by_hand, other, range(step, step + 1))
        scheduler.step()
        for group in other.param_groups:
            group["lr"] *= 0.5
        assert [group["lr"] for group in optimizer.param_groups] == [group["lr"] for group in other.param_groups]
    assert_same(net, by_hand)


@asked_of(lambda made: not made.of_table)
def test_sparse_gradients_are_refused(made: Made) -> None:
    table = nn.Embedding(5, 3, sparse=True, dtype=made.dtype)
    optimizer = made.make(table)
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=r"dense gradients.*; build the embedding with sparse=False"):
        optimizer.step()


@asked_of()
def test_a_closure_is_evaluated_with_gradients(made: Made) -> None:
    net, twin = network(made), network(made)
    optimizer, other = made.make(net), made.make(twin)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(net, 0)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    expected = loss_of(twin, 0)
    assert torch.equal(torch.as_tensor(optimizer.step(closure)), expected)  # type: ignore[arg-type]
    train(twin, other, range(1))
    assert_same(net, twin)


@asked_of(lambda made: isinstance(made.make(network(made)), StepOptimizer) and not made.counts_skips)
@pytest.mark.parametrize("skipped", [0, 2])
def test_an_overflow_leaves_every_bit_and_what_follows_is_as_without_it(made: Made, skipped: int) -> None:
    net, clean = network(made), network(made)
    optimizer, other = made.make(net), made.make(clean)
    train(net, optimizer, range(skipped))
    train(clean, other, range(skipped))
    before = copy.deepcopy(optimizer.state_dict())
    calls: list[str] = []
    handles = (
        optimizer.register_step_pre_hook(lambda *_: calls.append("before")),
        optimizer.register_step_post_hook(lambda *_: calls.append("after")),
    )
    (loss_of(net, 50) * float("inf")).backward()  # type: ignore[no-untyped-call]
    with forbid_host_reads() if made.never_waits else contextlib.nullcontext():
        step_if_finite(optimizer, torch.ones(1))
    assert calls == ["before", "after"]  # on a skipped step, too
    for handle in handles:
        handle.remove()
    assert_same(net, clean)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert after.get("adam_offload", {}).keys() == before.get("adam_offload", {}).keys()
    for number, state in before["state"].items():
        assert all(torch.equal(after["state"][number][name], value) for name, value in state.items())
    train(net, optimizer, range(skipped, 6))
    train(clean, other, range(skipped, 6))
    assert_same(net, clean)


@asked_of(lambda made: not (made.of_table or made.counts_skips or made.dtype.itemsize == 2))
def test_a_gradient_scaler_of_torch_unscales_and_skips(made: Made) -> None:
    net, plain = network(made), network(made)
    optimizer, other = made.make(net), made.make(plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(3):
        for gain in (float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(loss_of(net, step) * gain).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
        train(plain, other, range(step, step + 1))
    assert_close(net, plain, rtol=1e-4, atol=1e-6)
