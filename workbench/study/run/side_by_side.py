"""Train runs that do not wait for each other side by side, each trainer one round of runs after the other.

The runs of a round are compared with each other, so one trainer takes them in turn. A trainer computes elsewhere, such
as a `ProcessTrainer` in a process of its own; here a thread waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from workbench.config import Plan
from workbench.study.ask.plans import needs_warm_up
from workbench.study.run.job import Monitor, Trained, TrainJob
from workbench.study.run.runner import Experimenter

_Name = TypeVar("_Name")


def places(trainers: Sequence[Experimenter], plans: Iterable[Plan]) -> int:
    """Return how many runs of some plans are trained at a time: one where a warm-up has to be recorded here."""
    return 1 if any(map(needs_warm_up, plans)) else max(len(trainers), 1)


def train_rounds(
    trainers: Sequence[Experimenter], rounds: Iterable[tuple[_Name, Sequence[TrainJob]]]
) -> Iterator[tuple[_Name, Sequence[Trained]]]:
    """Train rounds of runs, each under a name of the caller's, and give each as it ends: its name and its runs.

    The next round is asked for when a trainer has nothing to do, in the thread of the caller. After an error, of a run
    or of what gives the rounds, no further one is begun; it is raised when those that run have ended. What ends the
    caller ends them within a step.
    """
    given_up = threading.Event()

    def train(trainer: Experimenter, name: _Name, jobs: Sequence[TrainJob]) -> tuple[_Name, Sequence[Trained]]:
        return name, [trainer.run(job, Monitor(stop=given_up.is_set)) for job in jobs]

    waiting, free = iter(rounds), list(trainers)
    running: dict[Future[tuple[_Name, Sequence[Trained]]], Experimenter] = {}
    errors: list[BaseException] = []
    with ThreadPoolExecutor(len(trainers), "trainer") as threads:
        try:
            while True:
                try:
                    while free and not errors and (following := next(waiting, None)) is not None:
                        trainer = free.pop(0)
                        running[threads.submit(train, trainer, *following)] = trainer
                except Exception as error:
                    errors.append(error)
                if not running:
                    break
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    free.append(running.pop(ended))
                    error_of_run = ended.exception()
                    if error_of_run is None:
                        yield ended.result()
                    else:
                        errors.append(error_of_run)
        except BaseException:
            given_up.set()
            raise
    if errors:
        raise errors[0]
