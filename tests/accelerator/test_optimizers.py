"""THOR and AdamOffload where they belong: weights on an accelerator, moments or decisions on the host."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from tests.accelerator.standin import forget_waits, waits
from workbench.nn import AdamOffload, thor
from workbench.optim.host_copy import HostCopy
from workbench.optim.row_wise import RowWiseAdam

pytestmark = pytest.mark.accelerator
CPU = torch.device("cpu")


def net() -> nn.Sequential:
    """Return a network; a bias before BatchNorm has gradients of rounding alone, which Adam makes whole steps of."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
    )


def batches(device: torch.device) -> Iterable[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        images, classes = torch.randn(8, 1, 4, 4, generator=generator), torch.randint(0, 5, (8,), generator=generator)
        yield images.to(device), classes.to(device)


def train(model: nn.Module, optimizer: Optimizer, device: torch.device) -> list[Tensor]:
    for images, classes in batches(device):
        F.cross_entropy(model(images), classes).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().cpu() for parameter in model.parameters()]


MAKES: dict[str, Callable[[nn.Module], Optimizer]] = {
    "offload": lambda model: AdamOffload(model, learning_rate=0.01),
    "small buckets": lambda model: AdamOffload(model, learning_rate=0.01, bucket_bytes=256),
    "gradients leave": lambda model: AdamOffload(model, learning_rate=0.01, offload_gradients=True, bucket_bytes=256),
    "bfloat16 moments": lambda model: AdamOffload(model, learning_rate=0.01, moments_dtype=torch.bfloat16),
    "thor": lambda model: thor(model, learning_rate=0.05, damping=0.1, momentum=0.9, frequency=2),
    "thor, as upstream": lambda model: thor(
        model, learning_rate=0.05, damping=0.1, momentum=0.9, frequency=2, factors="mindspore"
    ),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_weights_become_those_of_a_cpu(make: Callable[[nn.Module], Optimizer], accelerator: torch.device) -> None:
    here, there = net(), net().to(accelerator)
    found, wanted = train(there, make(there), accelerator), train(here, make(here), CPU)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("offload_gradients", [False, True])
def test_no_state_of_adam_lies_on_the_device(offload_gradients: bool, accelerator: torch.device) -> None:
    model = net().to(accelerator)
    optimizer = AdamOffload(model, learning_rate=0.01, offload_gradients=offload_gradients)
    train(model, optimizer, accelerator)  # what libraries take for themselves at their first use stays theirs
    before = torch.accelerator.memory_allocated()
    train(model, optimizer, accelerator)
    held: list[Any] = [value for state in optimizer.state.values() for value in state.values()]
    assert held
    assert {value.device.type for value in held if isinstance(value, Tensor)} == {"cpu"}
    assert torch.accelerator.memory_allocated() <= before


def test_offloading_waits_for_buckets_only(standin: torch.device) -> None:
    model = net().to(standin)
    optimizer = AdamOffload(model, learning_rate=0.01, bucket_bytes=256)
    given = list(batches(standin))
    train(model, optimizer, standin)
    for images, classes in given:
        F.cross_entropy(model(images), classes).backward()  # type: ignore[no-untyped-call]
        forget_waits()
        optimizer.step()
        assert set(waits()) == {"event.synchronize"}
        optimizer.zero_grad()
    travelled = optimizer.columns()
    assert travelled["offload.transfer_ms"] > 0
    assert 0 <= travelled["offload.hidden_share"] <= 1


def test_moments_are_not_pinned_and_copies_do_without_where_memory_cannot_be(
    standin: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net().to(standin)
    optimizer = AdamOffload(model, learning_rate=0.01)
    expected = train(model, optimizer, standin)
    assert not any(state["exp_avg"].is_pinned() for state in optimizer.state.values())
    empty = torch.empty

    def limited(*shape: Any, **options: Any) -> Tensor:
        if options.get("pin_memory"):
            raise RuntimeError("CUDA error: out of memory")
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", limited)
    model = net().to(standin)
    with pytest.warns(UserWarning, match="host memory could not be pinned .*out of memory.*raise the limit"):
        found = train(model, AdamOffload(model, learning_rate=0.01), standin)
    assert all(map(torch.equal, found, expected))


def test_thor_waits_for_nothing_whatever_it_does_in_a_step(standin: torch.device) -> None:
    model = net().to(standin)
    optimizer = thor(model, learning_rate=0.05, damping=0.1, momentum=0.9, frequency=2)
    given = list(batches(standin))
    train(model, optimizer, standin)
    flag = torch.zeros((), device=standin)
    forget_waits()
    for images, classes in given:
        F.cross_entropy(model(images), classes).backward()  # type: ignore[no-untyped-call]
        optimizer.step_with_found_inf(flag)
        optimizer.zero_grad()
    assert waits() == []


def test_what_the_host_reads_later_is_what_it_was(accelerator: torch.device) -> None:
    values = torch.arange(4.0, device=accelerator)
    later = HostCopy(values)
    values.zero_()
    assert later.read().tolist() == [0.0, 1.0, 2.0, 3.0]


def test_rows_of_a_table_are_updated_as_on_a_cpu(accelerator: torch.device) -> None:
    torch.manual_seed(0)
    here = nn.Embedding(10, 3, sparse=True)
    there = copy.deepcopy(here).to(accelerator)
    for table, device in ((here, CPU), (there, accelerator)):
        optimizer = RowWiseAdam(table.parameters(), lr=0.1)
        for ids in ([1, 1, 4], [4, 9, 2]):
            table(torch.tensor(ids, device=device)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(there.weight.detach().cpu(), here.weight.detach())


@pytest.mark.parametrize("overflows", [False, True])
def test_gradients_that_left_are_unscaled_with_waits_for_their_buckets_alone(
    overflows: bool, standin: torch.device
) -> None:
    model = net().to(standin)
    optimizer = AdamOffload(model, learning_rate=0.01, offload_gradients=True, bucket_bytes=64)
    images, classes = next(iter(batches(standin)))
    scale, flag = torch.full((1,), 8.0).to(standin), torch.zeros(1).to(standin)
    F.cross_entropy(model(images), classes).backward()  # type: ignore[no-untyped-call]
    optimizer.step()  # in which the first gradients leave
    loss = F.cross_entropy(model(images), classes) * (float("inf") if overflows else 8.0)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is None for parameter in model.parameters())
    expected = [state["exp_avg"].clone() for state in optimizer.state.values()]
    forget_waits()
    optimizer.unscale_offloaded_(lambda parameter: scale, flag)
    assert set(waits()) <= {"event.synchronize"}
    assert flag.item() == float(overflows)
    optimizer.step_with_found_inf(flag)
    after = [state["exp_avg"] for state in optimizer.state.values()]
    assert all(map(torch.equal, after, expected)) is overflows
