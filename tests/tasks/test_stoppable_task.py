from __future__ import annotations

import pytest

from tests.experiments.small_tasks import small_task
from tests.kit.runs import run_task
from workbench.config import BoostConfig
from workbench.tasks.stoppable_task import StoppedError, stoppable
from workbench.training.speed import measure_speed_ratio


class After:
    """Says stop from some question on."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_task_nobody_stops_trains_as_it_did() -> None:
    task = small_task()
    here = run_task(stoppable(task, lambda: False), BoostConfig(), steps=5)
    there = run_task(task, BoostConfig(), steps=5)
    assert (here.metric, here.final_loss) == (there.metric, there.final_loss)
    assert stoppable(task, lambda: False).data_digest() == task.data_digest()


def test_training_ends_at_the_batch_after_the_request() -> None:
    stop = After(3)
    with pytest.raises(StoppedError):
        run_task(stoppable(small_task(), stop), BoostConfig(), steps=50)
    assert stop.left == -1


def test_evaluation_and_the_measurement_of_speed_end_too() -> None:
    stop = After(4)
    with pytest.raises(StoppedError):
        run_task(stoppable(small_task(), stop), BoostConfig(), steps=4)  # the fifth question is the evaluation's
    stop = After(6)
    with pytest.raises(StoppedError):
        measure_speed_ratio(stoppable(small_task(), stop), (BoostConfig(), "O0"), (BoostConfig(), "O0"))
    assert stop.left == -1


def test_the_task_itself_stays_as_it_is() -> None:
    task = small_task()
    stoppable(task, lambda: True)
    assert "compute_loss" not in task.__dict__
