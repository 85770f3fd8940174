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
    assert "compute_loss" not in task.__dict__, "the task itself stays as it is"


@pytest.mark.parametrize(
    ("questions", "steps"),
    [pytest.param(3, 50, id="training"), pytest.param(4, 4, id="the evaluation, whose question is the fifth")],
)
def test_a_run_ends_at_the_batch_after_the_request(questions: int, steps: int) -> None:
    stop = After(questions)
    with pytest.raises(StoppedError):
        run_task(stoppable(small_task(), stop), BoostConfig(), steps=steps)
    assert stop.left == -1


def test_the_measurement_of_speed_ends_too() -> None:
    stop = After(6)
    with pytest.raises(StoppedError):
        measure_speed_ratio(stoppable(small_task(), stop), (BoostConfig(), "O0"), (BoostConfig(), "O0"))
    assert stop.left == -1
