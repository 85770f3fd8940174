"""The stand-in is as strict as a real accelerator: otherwise what runs on it would prove nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.accelerator.standin import forget_waits, races, waits

pytestmark = pytest.mark.accelerator


def test_it_is_what_auto_takes(standin: torch.device) -> None:
    from workbench.core.devices import select_device

    assert select_device("auto").type == standin.type
    assert not torch.ones(1, device=standin).is_cpu


def test_tensors_of_two_devices_do_not_go_together(standin: torch.device) -> None:
    here, there = torch.ones(3), torch.ones(3, device=standin)
    weight = torch.ones(2, device=standin, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.Adam([weight], fused=True)
    optimizer.step()
    optimizer.state[weight]["step"] = optimizer.state[weight]["step"].cpu()  # as from a file read to the wrong place
    for call in (
        lambda: here + there,
        lambda: torch.cat([there, here]),
        lambda: F.linear(there, torch.ones(2, 3)),
        lambda: F.conv2d(torch.ones(1, 1, 3, 3, device=standin), torch.ones(1, 1, 2, 2)),
        optimizer.step,
    ):
        with pytest.raises(RuntimeError, match=r"device|on cpu"):
            call()
    with pytest.raises(TypeError, match="host memory"):
        there.numpy()


def test_every_way_to_wait_is_counted(standin: torch.device) -> None:
    there, pinned = torch.arange(3.0, device=standin), torch.empty(3, pin_memory=True)
    mark = torch.Event(standin)
    mark.record()
    ways = {
        "item": lambda: there.sum().item(),
        "copy to the host": there.cpu,
        "copy from the host": lambda: torch.ones(3).to(standin),
        "aten::nonzero": there.nonzero,
        "aten::equal": lambda: torch.equal(there, there),
        "event.synchronize": mark.synchronize,
        "device.synchronize": torch.accelerator.synchronize,
    }
    for name, way in ways.items():
        forget_waits()
        way()
        assert waits() == [name]
    forget_waits()
    pinned.copy_(there, non_blocking=True)
    there.copy_(pinned, non_blocking=True)
    assert (there + there).sqrt().shape == (3,)
    assert mark.query()  # it was reached before
    assert waits() == []
    torch.empty(3).copy_(there, non_blocking=True)  # memory that is not pinned is waited for all the same
    assert waits() == ["copy to the host"]


def test_what_nobody_waited_for_has_not_arrived(standin: torch.device) -> None:
    there, pinned = torch.arange(3.0, device=standin), torch.zeros(3).pin_memory()
    for arrive in (lambda mark: mark.synchronize(), lambda mark: torch.accelerator.synchronize()):
        mark = torch.Event(standin)
        pinned.copy_(there, non_blocking=True)
        mark.record()
        assert pinned.isnan().all()
        assert not mark.query()
        arrive(mark)
        assert pinned.tolist() == [0.0, 1.0, 2.0]
    pinned.copy_(there, non_blocking=True)
    for _ in range(50):  # time passes
        there = there + 1
    assert pinned.tolist() == [0.0, 1.0, 2.0]


def fused_sgd_(weight: Tensor, gradient: Tensor, rate: float | Tensor) -> None:
    torch._fused_sgd_(
        [weight], [gradient], [], weight_decay=0.0, momentum=0.0, lr=rate, dampening=0.0, nesterov=False,
        maximize=False, is_first_step=False,
    )  # fmt: skip


def test_a_number_of_the_host_joins_what_is_pointwise_only(standin: torch.device) -> None:
    number, there = torch.tensor(2.0), torch.ones(3, device=standin)
    assert (there * number).tolist() == [2.0] * 3
    torch.where(there > 0, there, number)
    there.fill_(number)
    weight, flag = torch.ones(3, device=standin), torch.zeros((), device=standin)
    for call in (
        lambda: torch._amp_foreach_non_finite_check_and_unscale_([there], flag, number),
        lambda: torch._amp_foreach_non_finite_check_and_unscale_([there], number, flag),
        lambda: fused_sgd_(weight, there, number),
        lambda: there.index_fill_(0, torch.tensor([0]), 1.0),
        lambda: torch.stack([flag, number]),
    ):
        with pytest.raises(RuntimeError, match=r"device|on cpu"):
            call()


def test_kernels_refuse_what_those_of_cuda_refuse(standin: torch.device) -> None:
    one = torch.ones((), device=standin)
    with pytest.raises(NotImplementedError, match="not implemented for 'BFloat16'"):
        torch._amp_foreach_non_finite_check_and_unscale_(
            [torch.ones(2, device=standin, dtype=torch.bfloat16)], torch.zeros_like(one), one
        )
    for other in (
        torch.ones(2, 3, 4, 4, device=standin),
        torch.ones(2, 3, 4, 4, device=standin, dtype=torch.float16).to(memory_format=torch.channels_last),
    ):
        weight = torch.ones(2, 3, 4, 4, device=standin).to(memory_format=torch.channels_last)
        with pytest.raises(RuntimeError, match="same dtype, device, and layout"):
            fused_sgd_(weight, other, 0.1)


def test_there_are_two_and_one_is_current(standin: torch.device) -> None:
    first, second = torch.ones(2, device="standin:0"), torch.ones(2, device="standin:1")
    assert torch.ones(2, device=standin).device == first.device
    with torch.accelerator.device_index(1):
        assert torch.ones(2, device=standin).device == second.device == (second + 1).device
    assert torch.accelerator.current_device_index() == 0
    with pytest.raises(RuntimeError, match="device"):
        _ = first + second
    second.requires_grad_().sum().backward()
    assert second.grad.device == second.device


def test_its_random_numbers_are_its_own(standin: torch.device) -> None:
    torch.manual_seed(0)
    here, there = torch.get_rng_state(), torch.rand(4, device=standin)
    assert torch.equal(here, torch.get_rng_state())
    assert torch.rand(4).tolist() != there.tolist()
    torch.manual_seed(0)
    assert torch.rand(4, device=standin).tolist() == there.tolist()
    with pytest.raises(RuntimeError, match="device type for generator"):
        torch.rand(4, device=standin, generator=torch.Generator())
    own = [torch.rand(4, device=standin, generator=torch.Generator(standin).manual_seed(1)) for _ in range(2)]
    assert torch.equal(*own)
    with pytest.raises(RuntimeError, match="device"):
        torch.rand(4, generator=torch.Generator(standin))


def test_pinned_memory_must_stay_as_it_is_until_a_copy_from_it_has_been_made(standin: torch.device) -> None:
    pinned, there = torch.zeros(3).pin_memory(), torch.empty(3, device=standin)
    there.copy_(pinned, non_blocking=True)
    pinned.add_(1)
    torch.accelerator.synchronize()
    assert len(races()) == 1
    there.copy_(pinned, non_blocking=True)
    mark = torch.Event(standin)
    mark.record()
    mark.synchronize()
    pinned.add_(1)
    torch.accelerator.synchronize()
    assert races() == []


def test_streams_have_to_wait_for_each_other(standin: torch.device) -> None:
    def beside(waits_before: bool, waits_after: bool, recorded: bool) -> list[str]:
        stream, usual = torch.Stream(standin), torch.accelerator.current_stream()
        values = torch.ones(3, device=standin)
        torch.accelerator.synchronize()
        values.mul_(2)
        if waits_before:
            stream.wait_stream(usual)
        with stream:
            values.add_(1)
        if recorded:
            values.record_stream(stream)
        if waits_after:
            usual.wait_stream(stream)
        del values
        return races()

    assert beside(True, True, False) == []
    assert beside(True, False, True) == []
    assert "does not wait" in beside(False, True, False)[0]
    assert beside(True, False, False)[0].startswith("release")


def test_it_computes_what_the_cpu_computes(standin: torch.device) -> None:
    torch.manual_seed(0)
    here = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    there = copy.deepcopy(here).to(standin)
    images, classes = torch.randn(2, 3, 4, 4), torch.tensor([1, 4])
    for net, device in ((here, torch.device("cpu")), (there, standin)):
        optimizer = torch.optim.Adam(net.parameters(), fused=True)
        for _ in range(2):
            F.cross_entropy(net(images.to(device)), classes.to(device)).backward()
            optimizer.step()
            optimizer.zero_grad()
    for ours, theirs in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_autocast_lowers_what_it_lowers_elsewhere(standin: torch.device) -> None:
    layer = nn.Linear(3, 3, device=standin)
    with torch.autocast(standin.type, torch.float16):
        low = layer(torch.ones(2, 3, device=standin))
        assert low.dtype == torch.float16
        assert F.cross_entropy(low, torch.zeros(2, dtype=torch.int64, device=standin)).dtype == torch.float32


def test_it_knows_its_memory(standin: torch.device) -> None:
    before = torch.accelerator.memory_allocated()
    held = torch.empty(1000, device=standin)
    assert torch.accelerator.memory_allocated() == before + 4000
    del held
    assert torch.accelerator.memory_allocated() == before
    assert torch.empty(2, pin_memory=True).is_pinned()
    assert not torch.empty(2).is_pinned()
