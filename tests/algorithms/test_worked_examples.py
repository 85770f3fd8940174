"""Schedule and curriculum on numbers that can be checked by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from workbench.methods.curriculum.method import size_at
from workbench.methods.schedule.method import factor_at, stretched


def test_a_rate_rises_and_falls_to_its_end() -> None:
    factors = [factor_at(update, 5, "linear", warmup=0.2) for update in range(5)]
    assert factors == pytest.approx([1.0, 1.0, 2 / 3, 1 / 3, 0.0])


def test_a_recorded_course_is_run_through_in_fewer_updates() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = stretched(optimizer, 3, [(1.0,), (0.75,), (0.5,), (0.25,), (0.0,)])
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(2):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [2.0, 1.0, 0.0]


def test_a_size_is_one_that_networks_are_likely_to_take() -> None:
    given = [(32, 0.5), (224, 0.6), (28, 0.5), (127, 0.5), (32, 1.0)]
    assert [size_at(full, share) for full, share in given] == [16, 128, 16, 64, 32]
