"""Whose random numbers a training takes: its own, and the caller's go on as if there had been none."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.experiments.small_tasks import small_task
from workbench import api
from workbench.config import BoostConfig
from workbench.study.run.experimenter import TaskExperimenter
from workbench.study.run.job import SpeedJob, TrainJob

OFF = BoostConfig.from_dict({"boost": {"mode": "disable_all"}})


def train() -> Any:
    return api.train(small_task(), steps=6, out=None, device="cpu")


def compare() -> Any:
    return api.compare(small_task(), [OFF, OFF], seeds=range(2), steps=6, device="cpu")


def run_jobs() -> None:
    experimenter = TaskExperimenter(small_task(), "cpu", Path("runs"))
    experimenter.run(TrainJob(OFF, "O0", steps=6))
    experimenter.run(SpeedJob((OFF, "O0"), (OFF, "O0"), seed=0, rounds=2, steps_per_block=2))


def drawn() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.random()), random.random()  # noqa: NPY002


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


@pytest.mark.parametrize("work", [train, compare, run_jobs])
def test_a_caller_s_random_numbers_go_on_as_if_nothing_had_been_trained(work: Callable[[], object]) -> None:
    seed_all(7)
    before = drawn()
    wanted = drawn()
    seed_all(7)
    assert drawn() == before
    work()
    assert drawn() == wanted


def test_what_a_caller_drew_before_does_not_change_a_run() -> None:
    seed_all(1)
    one = train()
    seed_all(2)
    other = train()
    assert (one.metric, one.final_loss) == (other.metric, other.final_loss)
