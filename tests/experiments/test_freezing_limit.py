"""What freezing could save at best, on a net whose front is all its work."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.experiments.small_tasks import small_task
from workbench.config import BoostConfig
from workbench.training import freezing_limit
from workbench.training.freezing_limit import measure_freezing_limit

FREEZING = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": True}, "grad_freeze": {"total_steps": 40}}


class _Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)), nn.Linear(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def _config(**freezing: object) -> BoostConfig:
    return BoostConfig.from_dict({**FREEZING, "grad_freeze": {"total_steps": 40, "param_groups": 3, **freezing}})


def test_every_side_trains_and_intervals_hold_their_medians() -> None:
    found = measure_freezing_limit(
        small_task(model=_Deep), (_config(freeze_p=0.2), "O1"), device=torch.device("cpu"), rounds=3, steps_per_block=1
    )
    assert found.rounds == 3
    for middle, low, high in (found.realised, found.limit):
        assert 0 < low <= middle <= high


def test_a_resting_layer_has_no_gradient_and_does_not_move() -> None:
    device = torch.device("cpu")
    options = {"device": device, "seed": 0, "at_least": 1, "before_window": None}
    task = small_task(model=_Deep)
    scheduled = freezing_limit.TimedSide(task, _config(freeze_p=0.0), "O1", **options)  # type: ignore[arg-type]
    full = _config().with_values({"boost.grad_freeze": False})
    resting = freezing_limit._RestingSide(task, full, "O1", like=scheduled, **options)  # type: ignore[arg-type]
    before = {name: value.clone() for name, value in resting.boosted.model.named_parameters()}
    resting._windows(max(resting.groups))
    names = [name for name, value in resting.boosted.model.named_parameters() if not torch.equal(value, before[name])]
    front = [name for name in before if name not in names]
    assert front
    assert names
    assert front == list(before)[: len(front)]
    assert all(value.grad is None for name, value in resting.boosted.model.named_parameters() if name in front)


def test_what_is_reached_is_saved_time_over_saveable_time() -> None:
    times = np.array([[1.0, 0.9, 0.8]] * 4)
    assert freezing_limit._reached(times, 0) == pytest.approx((0.5, 0.5, 0.5))
    slower = np.array([[1.0, 0.9, 1.1]] * 4)
    assert all(math.isnan(value) for value in freezing_limit._reached(slower, 0))


def test_a_configuration_that_freezes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="freezes nothing"):
        measure_freezing_limit(small_task(), (BoostConfig(), "O0"), device=torch.device("cpu"))
