"""The schedule of the built-in tasks: up in a line, down in half a cosine, on any base rate."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from workbench.tasks.schedules import warmup_cosine, warmup_cosine_factor


def test_the_factor_rises_to_one_and_falls_to_the_floor() -> None:
    factors = [warmup_cosine_factor(step, 20, warmup_share=0.2, floor=0.1) for step in range(22)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4] == pytest.approx(1.0)
    assert factors[12] == pytest.approx(0.55)  # half way down a cosine
    assert factors[20:] == pytest.approx([0.1, 0.1])
    assert factors[4:] == sorted(factors[4:], reverse=True)


@pytest.mark.parametrize("rate", [0.1, 0.02])
def test_the_optimizers_own_rate_is_what_is_scaled(rate: float) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=rate)
    scheduler = warmup_cosine(optimizer, 10, warmup_share=0.2)
    seen = []
    for _ in range(10):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert seen[:2] == pytest.approx([rate / 2, rate])
    assert seen[6] == pytest.approx(rate / 2)


@pytest.mark.parametrize("total_steps", [0, 1])
def test_a_run_without_length_has_a_schedule_too(total_steps: int) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    warmup_cosine(optimizer, total_steps)
    assert optimizer.param_groups[0]["lr"] == 1.0
