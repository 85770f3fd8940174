"""How many runs are trained at a time unless told, and what a user hears of it."""

from __future__ import annotations

import math

from workbench.study.ask.study_file import StudyFile


def idle_places(file: StudyFile, limit: float | None) -> int:
    """Return for how many runs at a time there are idle cores, in ``limit`` seconds."""
    from workbench.core import devices  # imports torch

    return devices.idle_places_to_train(file.study.device, seconds=math.inf if limit is None else limit)


def about_places(file: StudyFile, asked: int | None, jobs: int, *, in_file: bool) -> str:
    """Return a sentence where idle cores were taken unasked, or more runs could be trained at a time than are.

    ``in_file``: the task is in a file, where other processes find it, too.
    """
    from workbench.core import devices

    if asked is None and jobs > 1:
        return f"Trains {jobs} runs at a time, on cores that were idle; {_asking_for(1)} trains one."
    number = devices.places_to_train(file.study.device)
    if number <= jobs:
        return ""
    how = f"{_asking_for(number)} uses it" if in_file else "a task in a file (my_task.py:task) could use it"
    return f"There is room to train {number} runs at a time here; {how}."


def _asking_for(jobs: int) -> str:
    return f"--jobs {jobs} (jobs={jobs} in Python, Workers in the Tune tab)"
