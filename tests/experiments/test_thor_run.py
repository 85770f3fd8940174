"""A run of a task under ``optimizer.name = "thor"``: what reaches the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.experiments.small_tasks import small_task
from tests.kit.runs import read_back, run_task
from workbench.config import BoostConfig

FREEZING = {
    "boost": {"mode": "manual", "less_bn": False, "grad_freeze": True},
    "grad_freeze": {"param_groups": 2, "freeze_type": 1, "freeze_p": 0.5, "total_steps": 30},
}


@pytest.mark.parametrize(
    "company",
    [
        {},
        {"amp": {"level": "O2", "dtype": "float16"}, "loss_scale": {"kind": "dynamic", "init": 2.0**24, "window": 50}},
        {"amp": {"level": "O2", "dtype": "bfloat16"}},
        FREEZING,
    ],
    ids=["alone", "loss scale", "amp", "freezing"],
)
def test_columns_and_events_of_thor_are_recorded(tmp_path: Path, company: dict[str, Any]) -> None:
    section = {"name": "thor", "lr": 0.05, "damping": 0.4, "damping_decay": 0.5, "frequency": 10}
    config = BoostConfig.from_dict({**company, "optimizer": section})
    result = run_task(
        small_task(), config, level="O1" if "boost" in company else "O0", steps=30, device=torch.device("cpu"),
        out=tmp_path,
    )  # fmt: skip
    assert result.metric > 0.6
    run = read_back(result)
    steps, events = run.steps, run.events
    assert steps["thor.damping"].tolist() == [0.4] * 10 + [0.2] * 10 + [0.1] * 10
    refreshed = steps.index[steps["thor.refreshed"] == 1].tolist()
    told = events[events["kind"] == "factors_refreshed"]["step"].tolist()
    overflows = steps.index[steps["overflow"]].tolist()
    # A refresh that an overflow spoils is made up for in the next step, and told when it has succeeded.
    assert told == [step for step in refreshed if step not in overflows]
    assert {0, 10, 20} <= set(refreshed)
    assert all(step + 1 in refreshed for step in overflows if step in refreshed)
    assert bool(overflows) == ("loss_scale" in company)
