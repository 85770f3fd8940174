"""Gradients to the host and weights back: the code of the accelerators, with the CPU standing in for one."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from tests.kit.twins import assert_same
from tests.optimizers.test_adam_offload import backward, network, train
from workbench.optim.adam_offload.host_transfer import CopyEvent, CopyStream, make_buckets
from workbench.optim.adam_offload.optimizer import AdamOffload


class LateStream(CopyStream):
    """A stream as slow as one may be: nothing is copied before somebody waits for it.

    Whoever reads a target too early sees old values, and whoever changes a source too early spoils it.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.queue: list[tuple[list[Tensor], list[Tensor]]] = []
        self.done = 0
        self.sent = 0

    def copy_(self, targets: list[Tensor], sources: list[Tensor]) -> CopyEvent:
        self.queue.append((targets, sources))
        self.sent += len(sources)
        torch.autograd.graph.increment_version(targets)  # a stream's copy counts when it is dispatched
        return LateEvent(self, len(self.queue))


class LateEvent(CopyEvent):
    def __init__(self, stream: LateStream, number: int) -> None:
        self.stream, self.number = stream, number

    def wait(self) -> None:
        with torch.no_grad():
            for targets, sources in self.stream.queue[self.stream.done : self.number]:
                torch._foreach_copy_([target.data for target in targets], sources)
        self.stream.done = max(self.stream.done, self.number)

    def order_compute(self) -> None:
        self.wait()

    def milliseconds(self) -> float:
        return 1.0


class LateOffload(AdamOffload):
    """Sends everything through late streams, in small buckets."""

    streams: list[LateStream]

    def __init__(self, *args: Any, **options: Any) -> None:
        self.streams = []
        super().__init__(*args, **{"transfer": "always", "bucket_bytes": 200, **options})

    def _make_stream(self, device: torch.device) -> CopyStream:
        self.streams = [*getattr(self, "streams", []), LateStream(device)]
        return self.streams[-1]


def offload(*args: Any, **options: Any) -> AdamOffload:
    return AdamOffload(*args, **{"transfer": "always", "bucket_bytes": 200, **options})


Maker = Callable[..., AdamOffload]
both_streams = pytest.mark.parametrize("make", [offload, LateOffload], ids=["at_once", "late"])
both_ways = pytest.mark.parametrize("frees", [False, True], ids=["keeps_gradients", "frees_gradients"])


def groups_of(net: nn.Module) -> list[dict[str, Any]]:
    parameters = list(net.parameters())
    return [
        {"params": parameters[::2], "weight_decay": 0.1, "lr": 0.02},
        {"params": parameters[1::2], "use_nesterov": True},
    ]


@both_streams
@both_ways
def test_the_way_over_the_host_changes_no_bit(make: Maker, frees: bool) -> None:
    net, twin = network(), network()
    travelling = make(groups_of(net), 0.01, offload_gradients=frees)
    in_place = AdamOffload(groups_of(twin), 0.01)
    for step in range(8):
        for model in (net, twin):
            model[0].requires_grad_(step % 3 != 1)  # frozen at times
        train(net, travelling, range(step, step + 1))
        train(twin, in_place, range(step, step + 1))
        assert_same(net, twin)
    assert len(travelling._transfer.buckets) > 1


@both_streams
@both_ways
def test_micro_batches_add_up(make: Maker, frees: bool) -> None:
    net, twin = network(), network()
    travelling = make(net.parameters(), 0.01, offload_gradients=frees)
    in_place = AdamOffload(twin.parameters(), 0.01)
    for window in range(3):
        for micro in range(3):
            backward(net, 3 * window + micro)
            backward(twin, 3 * window + micro)
            gone = [parameter.grad is None for parameter in net.parameters()]
            assert all(gone) if frees and window else not any(gone)  # listening begins with the first step
        for optimizer in (travelling, in_place):
            optimizer.step()
            optimizer.zero_grad()
        assert_same(net, twin)


def test_gradients_leave_during_the_backward_pass_and_only_once() -> None:
    net = network()
    optimizer = LateOffload(net.parameters(), 0.01, offload_gradients=True)
    train(net, optimizer, range(1))
    n_parameters = len(list(net.parameters()))
    leaving = optimizer.streams[0]
    before = leaving.sent
    backward(net, 1)
    assert leaving.sent == before + n_parameters
    optimizer.step()
    assert leaving.sent == before + n_parameters


@both_streams
@pytest.mark.parametrize("change", ["unscale", "clip", "replace"])
def test_gradients_may_change_before_the_step(make: Maker, change: str) -> None:
    net, twin = network(), network()
    optimizers = make(net.parameters(), 0.01), AdamOffload(twin.parameters(), 0.01)
    for step in range(3):
        for model, optimizer in zip((net, twin), optimizers, strict=True):
            backward(model, step)
            if change == "unscale":
                found = torch.zeros(())
                gradients = [p.grad for p in model.parameters() if p.grad is not None]
                torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, torch.tensor(0.25))
            elif change == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            else:
                for parameter in model.parameters():
                    parameter.grad = parameter.grad * 2
            optimizer.step()
            optimizer.zero_grad()
        assert_same(net, twin)


@both_streams
@both_ways
def test_an_overflow_leaves_every_bit_and_training_goes_on(make: Maker, frees: bool) -> None:
    net, twin = network(), network()
    travelling, in_place = make(net.parameters(), 0.01, offload_gradients=frees), AdamOffload(twin.parameters(), 0.01)
    for step in range(4):
        if step in (1, 2):
            backward(net, 100 + step)
            before = copy.deepcopy((net.state_dict(), travelling.state_dict()["state"]))
            travelling.step_with_found_inf(torch.ones(()))
            if not frees:  # gradients that left are forgotten by the skipped step itself
                travelling.zero_grad()
            state = travelling.state_dict()["state"]
            assert all(torch.equal(a, b) for a, b in zip(before[0].values(), net.state_dict().values(), strict=True))
            assert all(torch.equal(state[n][k], v) for n, own in before[1].items() for k, v in own.items())
        train(net, travelling, range(step, step + 1))
        train(twin, in_place, range(step, step + 1))
        assert_same(net, twin)


@pytest.mark.parametrize("bad", [None, math.inf, math.nan])
def test_gradients_on_the_host_are_unscaled_and_checked(bad: float | None) -> None:
    net, twin = network(), network()
    travelling = LateOffload(net.parameters(), 0.01, offload_gradients=True)
    in_place = AdamOffload(twin.parameters(), 0.01)
    for step in range(3):
        backward(twin, step)
        in_place.step()
        in_place.zero_grad()
        found, scale = torch.zeros(()), torch.tensor(1024.0)
        seed = torch.Generator().manual_seed(step)
        loss = net(torch.randn(5, 6, generator=seed, dtype=torch.float64).float()).square().mean()
        (loss * (1024.0 if bad is None or step < 2 else bad)).backward()
        gradients = [p.grad for p in net.parameters() if p.grad is not None]  # before listening begins
        assert bool(gradients) == (step == 0)
        if gradients:
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, torch.tensor(1 / 1024))
        travelling.unscale_offloaded_(lambda parameter, scale=scale: scale, found)
        assert bool(found) == (bad is not None and step == 2)
        if not found:
            travelling.step()
            assert_same(net, twin)
        travelling.zero_grad()


def test_a_scale_per_group_is_refused() -> None:
    net = network()
    optimizer = offload(net.parameters(), offload_gradients=True)
    train(net, optimizer, range(1))
    backward(net, 1)
    with pytest.raises(RuntimeError, match="a loss scale per group"):
        optimizer.unscale_offloaded_(lambda parameter: torch.ones(()), torch.zeros(()))


@both_streams
def test_weights_loaded_in_between_are_read_again(make: Maker) -> None:
    net, twin, other = network(), network(), network()
    nn.init.ones_(other[0].weight)
    travelling, in_place = make(net.parameters(), 0.01), AdamOffload(twin.parameters(), 0.01)
    for step in range(4):
        if step == 2:
            net.load_state_dict(other.state_dict())
            twin.load_state_dict(other.state_dict())
        train(net, travelling, range(step, step + 1))
        train(twin, in_place, range(step, step + 1))
        assert_same(net, twin)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_short_weights_follow_a_float32_master(dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.ones(64, dtype=dtype))
    master = nn.Parameter(torch.ones(64))
    short, full = AdamOffload([weight], 1e-4), AdamOffload([master], 1e-4)
    for step in range(60):  # one such step is too small for either format: alone it would be rounded away
        gradient = torch.randn(64, generator=torch.Generator().manual_seed(step)).to(dtype).abs()
        weight.grad, master.grad = gradient, gradient.float()
        short.step()
        full.step()
    assert torch.equal(short.state[weight]["master"], master)
    assert torch.equal(weight, master.to(dtype))
    assert not torch.equal(weight, torch.ones(64, dtype=dtype))
    assert short.state[weight]["exp_avg"].dtype == torch.float32


def test_masters_resume_exactly_when_they_are_loaded_before_the_weights() -> None:
    net, other = network(torch.bfloat16), network(torch.bfloat16)
    optimizer = AdamOffload(net.parameters(), 1e-4)
    train(net, optimizer, range(5))
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    train(net, optimizer, range(5, 9))
    resumed = AdamOffload(other.parameters(), 1e-4)
    resumed.load_state_dict(saved[1])
    other.load_state_dict(saved[0])
    train(other, resumed, range(5, 9))
    assert_same(net, other)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(optimizer.state[a]["master"], resumed.state[b]["master"])


def test_a_window_resumes_in_its_middle() -> None:
    net, other = network(), network()
    optimizer = LateOffload(net.parameters(), 0.01, offload_gradients=True)
    train(net, optimizer, range(2))
    backward(net, 2)
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    assert len(saved[1]["adam_offload"]["gradients"]) == len(list(net.parameters()))
    copied_net, copied = copy.deepcopy((net, optimizer))
    resumed = LateOffload(other.parameters(), 0.01, offload_gradients=True)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    for model, one in ((net, optimizer), (other, resumed), (copied_net, copied)):
        backward(model, 3)
        one.step()
    assert_same(net, other)
    assert_same(net, copied_net)


def test_a_window_resumes_in_its_middle_where_nothing_travels() -> None:
    net, other = network(), network()
    optimizer = LateOffload(net.parameters(), 0.01, offload_gradients=True)
    train(net, optimizer, range(2))
    backward(net, 2)
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    resumed = AdamOffload(other.parameters(), 0.01)  # float32 on a CPU stays where it is
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    for model, one in ((net, optimizer), (other, resumed)):
        backward(model, 3)
        one.step()
    assert_same(net, other)
    assert "gradients" not in resumed.state_dict()["adam_offload"]


def test_clearing_gradients_clears_those_that_left() -> None:
    net, twin = network(), network()
    travelling = LateOffload(net.parameters(), 0.01, offload_gradients=True)
    train(net, travelling, range(1))
    backward(net, 7)
    travelling.zero_grad()
    train(net, travelling, range(1, 2))
    train(twin, AdamOffload(twin.parameters(), 0.01), range(2))
    assert_same(net, twin)


def test_over_ranks_nothing_leaves_before_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    optimizer = LateOffload(net.parameters(), 0.01, offload_gradients=True)
    train(net, optimizer, range(1))
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    before = optimizer.streams[0].sent
    backward(net, 1)
    assert optimizer.streams[0].sent == before
    assert all(parameter.grad is not None for parameter in net.parameters())
    optimizer.step()
    assert all(parameter.grad is None for parameter in net.parameters())


def test_two_optimizers_cannot_both_take_the_gradient() -> None:
    net = network()
    first, second = (offload(net.parameters(), offload_gradients=True) for _ in range(2))
    train(net, first, range(1))
    backward(net, 1)
    net[0].weight.grad = torch.ones_like(net[0].weight)
    with pytest.raises(RuntimeError, match="two optimizers"):
        second.step()


def test_a_forgotten_optimizer_leaves_no_buffers_behind() -> None:
    net = network()
    optimizer = offload(net.parameters())
    train(net, optimizer, range(2))
    transfer = weakref.ref(optimizer._transfer)
    del optimizer
    gc.collect()
    assert transfer() is None
    backward(net, 2)
    assert net[0].weight.grad is not None


def test_the_trace_learns_what_the_host_knows() -> None:
    net = network()
    optimizer = LateOffload(net.parameters())
    assert optimizer.columns() == {}
    train(net, optimizer, range(2))
    columns = optimizer.columns()
    assert set(columns) == {"offload.host_ms", "offload.transfer_ms", "offload.hidden_share"}
    assert columns["offload.transfer_ms"] == 2.0  # one per bucket, says the stream
    assert 0.0 <= columns["offload.hidden_share"] <= 1.0
    in_place = AdamOffload(network().parameters())
    in_place.step()
    assert set(in_place.columns()) == {"offload.host_ms"}
    target = torch.zeros(3)
    event = CopyStream(torch.device("cpu")).copy_([target], [torch.ones(3)])
    event.wait()
    assert target.tolist() == [1.0, 1.0, 1.0]
    assert event.milliseconds() > 0.0


def test_buckets_go_backwards_and_keep_to_their_size() -> None:
    parameters = [torch.zeros(n, dtype=torch.bfloat16 if n == 7 else None) for n in (10, 300, 20, 7, 20, 5)]
    found = [[tensor.numel() for tensor in bucket] for bucket in make_buckets(parameters, 200)]
    assert found == [[5, 20, 20], [7], [300], [10]]


def test_weights_of_any_layout_come_back_as_they_were() -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    twin = copy.deepcopy(convolution)
    optimizers = offload(convolution.parameters(), 0.1), AdamOffload(twin.parameters(), 0.1)
    for module, optimizer in zip((convolution, twin), optimizers, strict=True):
        for _ in range(3):
            module(torch.ones(1, 3, 5, 5)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(convolution, twin)
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)


def test_what_lies_between_the_elements_of_a_view_stays() -> None:
    memory = torch.zeros(4, 6)
    view, dense = nn.Parameter(memory[:, ::2]), nn.Parameter(torch.zeros(4, 3))
    gradient = torch.arange(12.0).view(4, 3) + 1
    for weight in (view, dense):
        weight.grad = gradient.clone()
        AdamOffload([weight]).step()
    assert torch.equal(view, dense)
    assert torch.equal(memory[:, ::2], view)
    assert not memory[:, 1::2].any()
