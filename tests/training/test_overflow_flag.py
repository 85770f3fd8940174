"""A device whose overflows show in its flag and not in the gradients: an NPU in saturation mode, by a stand-in."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from workbench.config import BoostConfig
from workbench.core import devices
from workbench.core.records import EventKind
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.loss_scale_group.method import GroupLossScaleManager
from workbench.methods.loss_scale_group.scaling import GroupLossScaling
from workbench.training import Boosted, TraceBuffer, apply

CPU = torch.device("cpu")
DYNAMIC = {"loss_scale": {"kind": "dynamic", "init": 1024.0, "window": 100}}


class Flag:
    """An overflow flag as an NPU's: it stays set until it is cleared."""

    def __init__(self) -> None:
        self.is_set = False
        self.cleared = 0

    def clear(self, _: torch.device) -> None:
        self.is_set = False
        self.cleared += 1

    def read(self, _: torch.device) -> Tensor:
        return torch.tensor(float(self.is_set))


@pytest.fixture
def flag(monkeypatch: pytest.MonkeyPatch) -> Flag:
    """Give every device a flag for the duration of a test."""
    flag = Flag()
    monkeypatch.setattr(devices, "has_overflow_flag", lambda device: True)
    monkeypatch.setattr(devices, "begin_overflow_watch", flag.clear)
    monkeypatch.setattr(devices, "device_overflow", flag.read)
    return flag


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))


def one_scale(_: nn.Module) -> LossScaling:
    return LossScaling.from_config(BoostConfig.from_dict(DYNAMIC), CPU)


def two_groups(net: nn.Module) -> LossScaling:
    manager = GroupLossScaleManager(64.0, [["0"], ["1"]], reduce_ratio=0.5, growth_ratio=1.0, minimum=1.0)
    return GroupLossScaling.from_manager(manager, net)


def boosted_with(scaling: Callable[[nn.Module], LossScaling], **options: Any) -> Boosted:
    net = network()
    return Boosted(net, SGD(net.parameters(), lr=0.01, fused=True), loss_scaling=scaling(net), **options)


def backward(boosted: Boosted, overflowing: Flag | None = None) -> None:
    """Run one forward and backward pass; somewhere in the latter the device notes an overflow in the given flag."""
    hidden = boosted.model[0](torch.ones(2, 4))
    if overflowing is not None:
        hidden.register_hook(lambda _: setattr(overflowing, "is_set", True))
    boosted.backward(boosted.model[1:](hidden).square().mean())


@pytest.mark.parametrize(
    ("scaling", "scales"),
    [(one_scale, [1024.0, 512.0, 512.0]), (two_groups, [64.0, 32.0, 32.0])],
    ids=["one scale", "group scales"],
)
def test_an_overflow_that_only_the_flag_tells_skips_the_step_and_halves_the_scale(
    flag: Flag, scaling: Callable[[nn.Module], LossScaling], scales: list[float]
) -> None:
    boosted = boosted_with(scaling)
    trace = TraceBuffer(boosted)
    weights = [copy.deepcopy(boosted.model.state_dict())]
    for overflowing in (None, flag, None):
        backward(boosted, overflowing)
        trace.record(boosted.step(), 2)
        weights.append(copy.deepcopy(boosted.model.state_dict()))
    records, events = trace.drain()
    assert [record.skipped for record in records] == [False, True, False]
    assert [record.loss_scale_after for record in records] == scales
    moved = [any(not torch.equal(before[n], after[n]) for n in before) for before, after in pairwise(weights)]
    assert moved == [True, False, True]
    assert [event.step for event in events if event.kind is EventKind.OVERFLOW] == [1]
    if boosted.loss_scaling.group_scales is not None:  # the flag blames no group, so each scale falls
        assert boosted.loss_scaling.group_scales.tolist() == [32.0, 32.0]
        assert [event.kind for event in events].count(EventKind.SCALE_DOWN) == 2


@pytest.mark.parametrize("scaling", [one_scale, two_groups], ids=["one scale", "group scales"])
def test_a_window_is_skipped_whole_when_the_device_overflowed_in_any_micro_batch(
    flag: Flag, scaling: Callable[[nn.Module], LossScaling]
) -> None:
    boosted = boosted_with(scaling, accumulation_steps=2)
    overflows = []
    for overflowing in (flag, None, None, flag, None, None):
        backward(boosted, overflowing)
        overflows.append(bool(boosted.step().overflow))
    assert overflows == [False, True, False, True, False, False]
    assert flag.cleared == 3  # once per window


def test_an_overflow_between_two_steps_is_not_the_next_steps(flag: Flag) -> None:
    boosted = boosted_with(one_scale)
    flag.is_set = True  # an evaluation, say
    backward(boosted)
    assert not bool(boosted.step().overflow)


def test_gradients_made_elsewhere_are_not_blamed_for_an_earlier_step(flag: Flag) -> None:
    boosted = boosted_with(one_scale)
    backward(boosted, flag)
    assert bool(boosted.step().overflow)
    parameters = list(boosted.model.parameters())
    boosted.accept_gradients(torch.zeros(()), parameters, [torch.ones_like(p) for p in parameters])
    assert not bool(boosted.step().overflow)


def test_groups_are_sought_again_when_the_device_overflowed_while_they_were_found(flag: Flag) -> None:
    config = {"boost": {"mode": "manual", "loss_scale_group": True}, "amp": {"level": "O2"}, **DYNAMIC}
    net = network()
    boosted = apply(config, net, SGD(net.parameters(), lr=0.01, fused=True), level="O0")
    backward(boosted, flag)
    assert bool(boosted.step().overflow)
    assert boosted.loss_scaling.group_scales is None
    backward(boosted)
    assert not bool(boosted.step().overflow)
    assert boosted.loss_scaling.group_scales is not None


def test_without_a_loss_scale_the_flag_is_left_alone(flag: Flag) -> None:
    boosted = boosted_with(lambda net: LossScaling())
    backward(boosted, flag)
    assert not bool(boosted.step().overflow)
    assert flag.cleared == 0


def test_a_device_without_a_flag_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    monkeypatch.setattr(devices, "has_overflow_flag", asked.append)  # which returns None
    for name in ("begin_overflow_watch", "device_overflow"):
        monkeypatch.setattr(devices, name, lambda device: pytest.fail(f"{device} has no flag"))
    boosted = boosted_with(one_scale)
    for _ in range(3):
        backward(boosted)
        boosted.step()
    assert asked == [CPU]
