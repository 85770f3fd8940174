"""Accumulation: mean over the window, one update per window, exact resume."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.golden_files import golden_paths, load_json, load_npz
from tests.golden_networks import (
    assert_trajectory,
    build_loss,
    build_network,
    build_optimizer,
    divide_by_loss_scale,
    golden_batch,
    load_initial_weights,
    plain_list,
)
from tests.kit.twins import assert_close, assert_same
from workbench.methods.grad_accumulation.method import AccumulationWindow, GradientAccumulation


def accumulated(net: nn.Module) -> dict[str, np.ndarray]:
    return {
        name: np.zeros(p.shape, np.float32) if p.grad is None else p.grad.numpy() for name, p in net.named_parameters()
    }


@pytest.mark.parametrize("path", golden_paths("grad_accum_*.npz"), ids=lambda path: path.stem)
def test_golden_accumulation_buffers_updates_and_positions(path: Path) -> None:
    meta, arrays = load_npz(path)
    net, loss = build_network(meta["net"]), build_loss(meta["loss"])
    load_initial_weights(net, arrays)
    optimizer = build_optimizer(meta, plain_list(net))
    divide_by_loss_scale(optimizer, meta)
    steps = meta.get("max_accumulation_step", meta.get("grad_accumulation_step"))
    accumulate = GradientAccumulation(steps, optimizer)
    parameters = list(net.parameters())
    for call in range(len(arrays["x"])):
        x, y = golden_batch(arrays, call)
        value = loss(net(x), y)
        grads = torch.autograd.grad(value * meta.get("sens", 1.0), parameters)
        for (name, _), grad in zip(net.named_parameters(), grads, strict=True):
            if f"grad/{name}" in arrays:
                np.testing.assert_allclose(grad.numpy(), arrays[f"grad/{name}"][call], rtol=1e-4, atol=1e-5)
        returned = accumulate(value.detach(), grads)
        np.testing.assert_allclose(returned.item(), arrays["losses"][call], rtol=1e-4)
        for name, buffer in accumulated(net).items():
            assert buffer.any() == arrays[f"accum/{name}"][call].any()  # cleared means exactly 0
            np.testing.assert_allclose(buffer, arrays[f"accum/{name}"][call], rtol=1e-4, atol=1e-5)
        assert accumulate.window.position == meta["accumulation_step_after"][call]
        assert_trajectory(net, arrays, call + 1)


@pytest.mark.parametrize("path", golden_paths("train_one_step_sens*.json"), ids=lambda path: path.stem)
def test_golden_one_micro_batch_or_less_switches_accumulation_off(path: Path) -> None:
    for number, recorded in load_json(path)["results"]["accum_le1"].items():
        window = AccumulationWindow(int(number))
        assert (window.n_steps > 1) is recorded["use"]
        assert window.n_steps == recorded["max"]
        assert window.advance() is True


def quadratic(seed: int) -> tuple[nn.Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    net = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return net, torch.randn(24, 3, generator=generator), torch.randn(24, 2, generator=generator)


def gradients(net: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad((net(x) - y).square().mean(), list(net.parameters()))


@given(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), st.integers(0, 100))
@settings(max_examples=20)
def test_k_micro_batches_are_one_large_batch(k: int, seed: int) -> None:
    net, x, y = quadratic(seed)
    whole, _, _ = quadratic(seed)
    accumulate = GradientAccumulation(k, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    large = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for part_x, part_y in zip(x.chunk(k), y.chunk(k), strict=True):
            accumulate(None, gradients(net, part_x, part_y))
        large.zero_grad()
        (whole(x) - y).square().mean().backward()
        large.step()
    assert_close(net, whole)


@given(st.integers(2, 5), st.integers(1, 4))
@settings(max_examples=15)
def test_flush_applies_what_is_left_as_its_own_mean(k: int, left: int) -> None:
    left = min(left, k - 1)
    net, x, y = quadratic(0)
    whole, _, _ = quadratic(0)
    accumulate = GradientAccumulation(k, torch.optim.SGD(net.parameters(), lr=0.1))
    assert accumulate.flush() is False
    n = 4 * left
    for part_x, part_y in zip(x[:n].chunk(left), y[:n].chunk(left), strict=True):
        accumulate(None, gradients(net, part_x, part_y))
    assert accumulate.flush() is True
    assert accumulate.flush() is False
    large = torch.optim.SGD(whole.parameters(), lr=0.1)
    (whole(x[:n]) - y[:n]).square().mean().backward()
    large.step()
    assert_close(net, whole)


@given(st.integers(1, 4), st.integers(0, 9))
@settings(max_examples=15)
def test_resuming_in_the_middle_of_a_window_changes_nothing(k: int, stop: int) -> None:
    net, x, y = quadratic(0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    accumulate = GradientAccumulation(k, optimizer)
    resumed, _, _ = quadratic(1)
    again = GradientAccumulation(k, torch.optim.SGD(resumed.parameters(), lr=0.1, momentum=0.9))
    for step in range(10):
        if step == stop:
            resumed.load_state_dict(net.state_dict())
            again.optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            again.load_state_dict(accumulate.state_dict())
        accumulate(None, gradients(net, x[step : step + 4], y[step : step + 4]))
        if step >= stop:
            again(None, gradients(resumed, x[step : step + 4], y[step : step + 4]))
    assert_same(net, resumed)


def test_the_sum_lives_in_grad_and_the_callers_gradients_stay_as_they_are() -> None:
    net, x, y = quadratic(0)
    accumulate = GradientAccumulation(3, torch.optim.SGD(net.parameters(), lr=0.1))
    (net(x) - y).square().mean().backward()  # a probe, say, whose gradients nobody cleared: no part of the window
    given_ = gradients(net, x, y)
    copies = [g.clone() for g in given_]
    accumulate(None, given_)
    buffers = [p.grad for p in net.parameters()]
    accumulate(None, given_)
    assert all(p.grad is buffer for p, buffer in zip(net.parameters(), buffers, strict=True))
    for parameter, original, passed in zip(net.parameters(), copies, given_, strict=True):
        assert torch.equal(original, passed)
        torch.testing.assert_close(parameter.grad, original * 2 / 3)


def test_a_parameter_without_gradient_is_left_alone() -> None:
    net, x, y = quadratic(0)
    accumulate = GradientAccumulation(2, torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.5))
    before = net.bias.detach().clone()
    for _ in range(2):
        accumulate(None, [gradients(net, x, y)[0], None])
    assert torch.equal(net.bias, before)


def test_wrong_arguments_are_named() -> None:
    net, x, y = quadratic(0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="`grad_accumulation_step` must be an integer"):
        AccumulationWindow(2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`optimizer` must be a torch\.optim\.Optimizer"):
        GradientAccumulation(2, net)  # type: ignore[arg-type]
    accumulate = GradientAccumulation(3, optimizer)
    with pytest.raises(ValueError, match=r"one entry per parameter \(2\), got 1"):
        accumulate(None, gradients(net, x, y)[:1])
    accumulate(None, gradients(net, x, y))
    with pytest.raises(ValueError, match=r"must not be the parameters' own \.grad"):
        accumulate(None, [p.grad for p in net.parameters()])
    with pytest.raises(ValueError, match="windows of 3 micro-batches, this one has 2"):
        AccumulationWindow(2).load_state_dict(accumulate.window.state_dict())
    with pytest.raises(ValueError, match="state_dict holds 1 gradients"):
        accumulate.load_state_dict({"window": {}, "gradients": [None]})
