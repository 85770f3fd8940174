"""What CUDA's kernels refuse, and an NPU lacks, is not asked of them."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from tests.accelerator.standin import forget_waits, waits
from workbench.config import BoostConfig, OptimizerConfig
from workbench.core import devices, torch_internals
from workbench.loss_scale.gradient_statistics import EXPONENT_BINS, exponent_counts, tensor_norms_and_maxima
from workbench.loss_scale.overflow import NonFusedOptimizerWarning, step_if_finite, unscale_and_check_
from workbench.methods.adasum import method as adasum
from workbench.optim.factory import build_optimizer
from workbench.training import TraceBuffer, apply

pytestmark = pytest.mark.accelerator
FORMATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("bad", [None, math.inf, math.nan])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_gradients_of_every_format_are_unscaled(
    dtype: torch.dtype, bad: float | None, standin: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.loss_scale.overflow._WIDENED_ELEMENTS", 40)
    values = [torch.randn(shape).to(dtype) for shape in ((3, 5), (7,), (60,))]
    if bad is not None:
        values[1][3] = bad
    there = [value.to(standin) for value in values]
    scale = torch.tensor(1 / 3.0, pin_memory=True)
    forget_waits()
    found = unscale_and_check_(there, scale.to(standin, non_blocking=True), torch.zeros((), device=standin))
    assert waits() == []
    assert found.item() == float(bad is not None)
    here = [value.clone() for value in values]
    unscale_and_check_(here, scale, torch.zeros(()))
    torch.testing.assert_close([ours.cpu() for ours in there], here, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("values", [{"amp.level": "O3"}, {"amp.level": "O2", "amp.keep_batchnorm_fp32": False}])
def test_bfloat16_weights_train_under_a_loss_scale(values: dict[str, str], standin: torch.device) -> None:
    config = BoostConfig().with_values({**values, "amp.dtype": "bfloat16", "loss_scale.kind": "dynamic"})
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)).to(standin)
    boosted = apply(config, model, SGD(model.parameters(), lr=0.1, fused=True), level="O0")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with boosted.autocast():
        loss = boosted.model(torch.arange(8.0, device=standin)[:, None].expand(8, 4)).square().mean()
    boosted.backward(loss)
    assert not bool(boosted.step().overflow)
    assert not all(map(torch.equal, before, model.parameters()))


def test_a_float64_model_is_recorded(standin: torch.device) -> None:
    model = nn.Linear(3, 2, dtype=torch.float64).to(standin)
    boosted = apply({"amp": {"level": "O0"}}, model, SGD(model.parameters(), lr=0.1, fused=True), level="O0")
    trace = TraceBuffer(boosted, exponents_every=1)
    loss = model(torch.ones(4, 3, dtype=torch.float64, device=standin)).square().mean()
    boosted.backward(loss)
    expected = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))
    trace.record(boosted.step(), 4)
    (record,), _ = trace.drain()
    assert record.grad_norm == pytest.approx(expected)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_statistics_of_gradients_are_those_of_a_cpu(
    dtype: torch.dtype, standin: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.loss_scale.gradient_statistics._COUNTED_ELEMENTS", 16)
    values = [torch.randn(50, generator=torch.Generator().manual_seed(1)).to(dtype), torch.zeros(3, dtype=dtype)]
    values[0][4:9] = torch.tensor([0.0, -9.0, math.inf, math.nan, 1e-6]).to(dtype)
    there = [value.to(standin) for value in values]
    for ours, theirs in zip(tensor_norms_and_maxima(there), tensor_norms_and_maxima(values), strict=True):
        torch.testing.assert_close(ours.cpu()[1:], theirs[1:])
        assert not ours[0].cpu().isfinite()
    counts = exponent_counts(there)
    assert counts.cpu().tolist() == exponent_counts(values).tolist()
    assert counts.sum().item() == 53
    assert len(counts) == EXPONENT_BINS


def test_inner_products_are_some_launches_however_long_the_vectors(
    standin: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(1000, dtype=torch.float64, generator=generator) for _ in range(2))
    expected = [float(one @ other), float(one @ one), float(other @ other)]
    calls = []
    for run, length in ((64, 1000), (64, 960), (2000, 1000)):
        monkeypatch.setattr(adasum, "_RUN", run)
        with torch.profiler.profile() as profile:
            found = adasum._products(one[:length].to(standin), other[:length].to(standin))
        calls.append(sum(event.count for event in profile.key_averages() if event.key in ("aten::vdot", "aten::dot")))
        if length == 1000:
            assert found.cpu().tolist() == pytest.approx(expected)
    assert max(calls) <= 3


def test_gradients_that_were_made_elsewhere_get_the_layout_of_their_weights(standin: torch.device) -> None:
    model = nn.Conv2d(2, 4, 3).to(standin).to(memory_format=torch.channels_last)
    boosted = apply({"amp": {"level": "O0"}}, model, SGD(model.parameters(), lr=0.1, fused=True), level="O0")
    gradients = [torch.randn(p.shape, device=standin) for p in model.parameters()]
    before = [parameter.detach().cpu().clone() for parameter in model.parameters()]
    boosted.accept_gradients(torch.ones((), device=standin), list(model.parameters()), gradients)
    boosted.step()  # the fused kernel refuses other strides
    for old, new, gradient in zip(before, model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new.detach().cpu(), old - 0.1 * gradient.cpu())


@pytest.mark.parametrize("make", [SGD, Adam, AdamW])
def test_an_optimizer_without_a_kernel_on_the_device_lets_the_host_decide(
    make: Callable[..., Optimizer], standin: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.loss_scale.overflow.has_fused_kernel", lambda parameter, name: False)
    weight = nn.Parameter(torch.ones(3, device=standin))
    weight.grad = torch.ones_like(weight)
    optimizer = make([weight], lr=0.1, fused=True)
    with pytest.warns(NonFusedOptimizerWarning):
        step_if_finite(optimizer, torch.ones((), device=standin))
    assert weight.tolist() == [1.0] * 3


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_named_optimizer_is_fused_where_the_device_has_the_kernel(
    name: str, standin: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, section = nn.Linear(2, 1).to(standin), OptimizerConfig(name=name, lr=0.1)
    assert build_optimizer(section, net).param_groups[0]["fused"]
    monkeypatch.setattr(torch_internals, "has_kernel", lambda kind, operator: False)
    assert not build_optimizer(section, net).param_groups[0]["fused"]
    assert build_optimizer(section, nn.Linear(2, 1)).param_groups[0]["fused"]


def test_adam_on_float16_weights_is_warned_of(standin: torch.device) -> None:
    config = BoostConfig().with_values({"amp.level": "O3"})
    for make, warned in ((Adam, True), (SGD, False)):
        model = nn.Linear(3, 1).to(standin)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            apply(config, model, make(model.parameters(), lr=0.1, fused=True), level="O0")
        told = [one for one in caught if "keeps squares of float16 gradients in float16" in str(one.message)]
        assert len(told) == warned
        assert all(one.filename == __file__ for one in told)


def test_the_loss_of_an_outcome_outlives_the_graph_that_made_it(standin: torch.device) -> None:
    importlib.import_module("torch._dynamo")  # as where torch.compile is in use
    model = nn.Linear(3, 1).to(standin)
    boosted = apply({"amp": {"level": "O0"}}, model, SGD(model.parameters(), lr=0.1, fused=True), level="O0")
    loss = model(torch.ones(2, 3, device=standin)).square().mean()
    boosted.backward(loss)
    outcome = boosted.step()
    value = loss.item()
    with torch.no_grad():
        loss.detach().fill_(-1.0)  # what a replay of reduce-overhead does to its outputs
    assert float(outcome.loss) == value


class SameMemory(torch.autograd.Function):
    """Hands on every gradient in the same memory, as a replayed CUDA graph does."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, memory: Tensor) -> Tensor:
        ctx.memory = memory
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.memory.copy_(gradients[0])
        return ctx.memory.view_as(gradients[0]), None


def test_gradients_of_a_window_outlive_the_graph_that_made_them(standin: torch.device) -> None:
    importlib.import_module("torch._dynamo")  # as where torch.compile is in use
    values = {"boost.mode": "manual", "boost.grad_accumulation": True, "grad_accumulation.grad_accumulation_step": 2}
    values |= {"boost.less_bn": False, "boost.grad_freeze": False, "amp.level": "O0"}
    model = nn.Linear(3, 1, bias=False).to(standin)
    optimizer = SGD(model.parameters(), lr=1.0, fused=True)
    boosted = apply(BoostConfig().with_values(values), model, optimizer, level="O1")
    memory, before = torch.zeros(1, 3, device=standin), model.weight.detach().clone()
    for value in (2.0, 4.0):
        x = torch.full((1, 3), value, device=standin)
        boosted.backward((SameMemory.apply(model.weight, memory) * x).sum())  # type: ignore[no-untyped-call]
        boosted.step()
    torch.testing.assert_close(before - model.weight, torch.full_like(before, 3.0))


def test_a_device_that_does_not_tell_its_memory_counts_as_zero(
    standin: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untold(device: object) -> int:
        raise RuntimeError("Allocator for standin is not a DeviceAllocator")

    held = torch.ones(5, device=standin)
    assert devices.memory_bytes(standin) >= held.nbytes
    monkeypatch.setattr(torch.accelerator, "memory_allocated", untold)
    assert devices.memory_bytes(standin) == 0
