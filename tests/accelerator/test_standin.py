"""The stand-in is as strict as a real accelerator: otherwise what runs on it would prove nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.accelerator.standin import forget_waits, waits

pytestmark = pytest.mark.accelerator


def test_it_is_what_auto_takes(standin: torch.device) -> None:
    from workbench.core.devices import select_device

    assert select_device("auto").type == standin.type
    assert not torch.ones(1, device=standin).is_cpu


def test_tensors_of_two_devices_do_not_go_together(standin: torch.device) -> None:
    here, there = torch.ones(3), torch.ones(3, device=standin)
    with pytest.raises(RuntimeError, match=r"device|on cpu"):
        _ = here + there
    with pytest.raises(RuntimeError, match=r"device|on cpu"):
        torch.cat([there, here])
    with pytest.raises(RuntimeError, match=r"device|on cpu"):
        F.linear(there, torch.ones(2, 3))
    with pytest.raises(RuntimeError, match=r"device|on cpu"):
        F.conv2d(torch.ones(1, 1, 3, 3, device=standin), torch.ones(1, 1, 2, 2))
    weight = torch.ones(2, device=standin, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.Adam([weight], fused=True)
    optimizer.step()
    optimizer.state[weight]["step"] = optimizer.state[weight]["step"].cpu()  # as from a file read to the wrong place
    with pytest.raises(RuntimeError, match=r"device|on cpu"):
        optimizer.step()
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


def test_it_computes_what_the_cpu_computes(standin: torch.device) -> None:
    torch.manual_seed(0)
    here = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    there = copy.deepcopy(here).to(standin)
    images, classes = torch.randn(2, 3, 4, 4), torch.tensor([1, 4])
    for net, device in ((here, torch.device("cpu")), (there, standin)):
        optimizer = torch.optim.Adam(net.parameters(), fused=True)
        for _ in range(2):
            F.cross_entropy(net(images.to(device)), classes.to(device)).backward()  # type: ignore[no-untyped-call]
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
