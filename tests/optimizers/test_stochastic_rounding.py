"""Moments in bfloat16: right on average, and resumed exactly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.optimizers.test_adam_offload import network, train
from workbench.optim.adam_offload.host_adam import AdamNumbers, RoundedAdam, adam_step_, round_stochastically_
from workbench.optim.adam_offload.optimizer import AdamOffload


def test_every_draw_is_a_neighbour_and_all_draws_average_to_the_value() -> None:
    # One value per element, and every possible draw once: the mean is exact, not merely close.
    noise = torch.arange(2**16, dtype=torch.int32)
    for value in (1.0, 1.003, -0.7123, 3.1e-9, -2.9e20, 0.0, 2.0 - 2.0**-12):
        rounded = torch.empty(2**16, dtype=torch.bfloat16)
        round_stochastically_(torch.full((2**16,), value), noise, rounded)
        exact = torch.tensor(value).double()  # as float32 has it
        ends = sorted({float(v) for v in rounded.unique()})
        assert len(ends) <= 2
        assert ends[0] <= exact <= ends[-1]
        torch.testing.assert_close(rounded.double().mean(), exact, rtol=1e-12, atol=0.0)


def test_a_slow_average_moves_though_each_step_is_below_the_format() -> None:
    # v = 0.999 v + 0.001 g^2 from 1 to 1.5: to the nearest, bfloat16 would never leave 1.
    n, steps = 4096, 400
    weights, moments = [torch.zeros(n)], [torch.zeros(n, dtype=torch.bfloat16)]
    second = [torch.ones(n, dtype=torch.bfloat16)]
    rounded = RoundedAdam(seed=5)
    for _ in range(steps):
        rounded.step_(weights, [torch.full((n,), 1.5**0.5)], moments, second, AdamNumbers(0.0, (0.9, 0.999), 1e-8))
    expected = 1.5 - 0.5 * 0.999**steps
    # Elements of a tensor share draws' table, not draws: their errors are nearly independent.
    assert second[0].double().mean().item() == pytest.approx(expected, abs=0.002)
    assert second[0].double().std().item() < 0.05
    nearest = torch.ones((), dtype=torch.bfloat16)
    for _ in range(steps):
        nearest = (nearest.float() * 0.999 + 0.001 * 1.5).bfloat16()
    assert nearest.item() == 1.0


@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_one_step_from_zero_gives_the_weights_of_float32(nesterov: bool, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (70000,), (5,)]  # one longer than a piece
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    gradients = [torch.randn(shape, generator=generator) for shape in shapes]
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        weights = [w.clone() for w in start]
        first, second = ([torch.zeros(shape, dtype=dtype) for shape in shapes] for _ in range(2))
        step_ = adam_step_ if dtype == torch.float32 else RoundedAdam().step_
        step_(weights, gradients, first, second, AdamNumbers(0.1, (0.9, 0.999), 1e-8, 0.1, scale, nesterov))
        results.append((weights, [moment.float() for moment in (*first, *second)]))
    (exact, full), (same, short) = results
    assert all(map(torch.equal, same, exact))
    torch.testing.assert_close(short, full, rtol=2.0**-7, atol=0.0)


def test_training_stays_near_full_moments() -> None:
    net, exact, start = network(), network(), network()
    optimizer = AdamOffload(net.parameters(), 0.003, moments_dtype=torch.bfloat16, rounding_seed=3)
    train(net, optimizer, range(60))
    assert all(state["exp_avg_sq"].dtype == torch.bfloat16 for state in optimizer.state.values())
    train(exact, AdamOffload(exact.parameters(), 0.003), range(60))
    for ours, reference, began in zip(net.parameters(), exact.parameters(), start.parameters(), strict=True):
        assert (ours - reference).norm() < 0.1 * (reference - began).norm()


def test_moments_are_full_by_default_and_bad_formats_are_refused() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = AdamOffload([weight])
    optimizer.step()
    assert optimizer.state[weight]["exp_avg"].dtype == torch.float32
    with pytest.raises(ValueError, match=r"`moments_dtype` must be None or torch.bfloat16"):
        AdamOffload([weight], moments_dtype=torch.float16)
    with pytest.raises(ValueError, match="float64"):
        AdamOffload([nn.Parameter(torch.ones(2, dtype=torch.float64))], moments_dtype=torch.bfloat16)
