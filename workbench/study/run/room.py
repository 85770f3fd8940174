"""For how many runs at a time this machine has cores, as a study goes on.

A run has its threads, and what reads its batches keeps further cores busy. That depends on the runtime, which a search
for a set-up chooses: worker processes have nothing to do where samples are kept in memory.
"""

from __future__ import annotations

import math

import optuna

from workbench.methods.runtime.section import RuntimeSection
from workbench.study.ask.study_file import StudyFile
from workbench.study.set_up.runtime_choice import ground_of, has_runtime


class Room:
    """For how many runs of a study there is room.

    ``jobs`` processes were asked for, None for as many as have idle cores in so many seconds (``limit``). ``workers``
    processes read for the task as given. Until the ``study`` is open no runtime is chosen.
    """

    def __init__(self, file: StudyFile, jobs: int | None, *, limit: float | None = None, workers: int = 0) -> None:
        self._file, self._jobs, self._limit = file, jobs, limit
        known = file.study.reading_cores
        self._today = workers if known is None else known
        self._found = dict[int, int]()  # places, by the cores that are left for reading
        self.study: optuna.Study | None = None

    def alike(self) -> int:
        """Return how many runs train at a time as one alone does, also such of the task as given."""
        return self._places(max(self._today, self._reading_cores()))

    def in_search(self) -> int:
        """Return how many runs a search trains at a time, in the runtime that it has chosen."""
        return self._places(self._reading_cores()) if self._jobs is None else self._jobs

    def sentence(self, *, in_file: bool) -> str:
        """Return a sentence where idle cores are taken unasked, or more runs could be trained at a time than are.

        ``in_file``: the task is in a file, where other processes find it, too.
        """
        from workbench.core import devices

        jobs = self.in_search()
        if self._jobs is None and jobs > 1:
            return f"Trains {jobs} runs at a time, on cores that were idle; {_asking_for(1)} trains one."
        number = devices.places_to_train(self._file.study.device, beside=self._reading_cores())
        if number <= jobs:
            return ""
        how = f"{_asking_for(number)} uses it" if in_file else "a task in a file (my_task.py:task) could use it"
        return f"There is room to train {number} runs at a time here; {how}."

    def _reading_cores(self) -> int:
        if self.study is None or not has_runtime(self.study):
            may_read = "prefetch" in self._file.set_up.runtime.get("runtime.data", ())
            return max(self._today, int(may_read))
        ground = ground_of(self._file.base_config(), self.study.user_attrs)
        return {"resident": 0, "prefetch": 1}.get(ground.part(RuntimeSection).data, self._today)

    def _places(self, beside: int) -> int:
        from workbench.core import devices  # here: it imports torch

        device = self._file.study.device
        if beside not in self._found and self._jobs is not None:
            self._found[beside] = min(self._jobs, devices.places_to_train(device, beside=beside))
        elif beside not in self._found:
            seconds = math.inf if self._limit is None else self._limit
            self._found[beside] = devices.idle_places_to_train(device, seconds=seconds, beside=beside)
        return self._found[beside]


class AnyRoom:
    """Room for as many runs as are asked for: for a stand-in, which computes nothing."""

    def __init__(self, jobs: int) -> None:
        self.study: optuna.Study | None = None
        self._jobs = jobs

    def alike(self) -> int:
        """Return the number."""
        return self._jobs

    in_search = alike

    def sentence(self, *, in_file: bool) -> str:
        """Return an empty sentence."""
        return ""


def _asking_for(jobs: int) -> str:
    return f"--jobs {jobs} (jobs={jobs} in Python, Workers in the Tune tab)"
