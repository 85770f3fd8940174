"""Whose random numbers a training takes: its own, and the caller's go on as if there had been none."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.experiments.small_tasks import Net, small_task
from tests.kit.processes import wait_until
from workbench import api
from workbench.config import BoostConfig
from workbench.panels.worker import Worker, short_turns
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


class Drawing(Net):
    """A net that draws from all three, in its forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + float(np.random.normal(scale=0.1)) + 0.1 * random.random())  # noqa: NPY002


def train_drawing(seed: int, on_loss: Callable[[int], None] | None = None) -> tuple[Any, ...]:
    task = small_task(model=Drawing, on_loss=on_loss)
    result = api.train(task, steps=30, seed=seed, evaluate_every=10, out=None, device="cpu", exponents_every=0)
    return result.metric, result.final_loss, result.curve


def test_threads_that_train_at_once_give_what_each_gives_alone() -> None:
    alone = {seed: train_drawing(seed) for seed in range(2)}
    both_begin = threading.Barrier(2, timeout=60)

    def train_all(seeds: Sequence[int]) -> list[tuple[int, Any]]:
        both_begin.wait()
        return [(seed, train_drawing(seed)) for seed in seeds]

    with short_turns(), ThreadPoolExecutor(2) as threads:
        both = threads.map(train_all, [range(2), range(1, -1, -1)])
        found = [pair for trained in both for pair in trained]
    assert [seed for seed, result in found if result == alone[seed]] == [0, 1, 1, 0]


def test_what_a_cell_draws_and_seeds_and_what_a_thread_trains_do_not_change_each_other() -> None:
    def draw_meanwhile(step: int) -> None:
        n_seen = len(seen)
        if step == 5:
            wait_until(lambda: len(seen) > n_seen + 1)

    seen: list[Any] = []
    alone = train_drawing(3)
    with short_turns(), ThreadPoolExecutor(1) as threads:
        for _ in range(2):
            training = threads.submit(train_drawing, 3, draw_meanwhile)
            while not training.done():
                seed_all(7)
                seen.append((drawn(), drawn()))
            assert training.result() == alone
            seed_all(7)
            assert set(seen) == {(drawn(), drawn())}


def test_a_panel_s_work_draws_numbers_of_its_own() -> None:
    seed_all(7)
    wanted = [drawn(), drawn()]
    seed_all(7)
    seen: list[Any] = []
    worker = Worker(lambda _: None, lambda outcome: seen.append(outcome.result))
    worker.start(lambda _: (seed_all(8), drawn()))
    assert worker.join(60)
    assert [drawn(), drawn()] == wanted
    seed_all(8)
    assert seen == [(None, drawn())]
