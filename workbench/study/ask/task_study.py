"""A study for a task that has none: look at the task, write ``studies/<task>/study.toml``, or find the one there is."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from workbench.core.files import write_text_atomically
from workbench.study.ask.set_up_study import ask, shorter_than
from workbench.study.ask.study_file import AllowedDrop, read_study
from workbench.study.errors import StudyError

if TYPE_CHECKING:
    from workbench.tasks import Task

__all__ = ["DEFAULT_MINUTES", "begin_study", "folder_of"]

DEFAULT_MINUTES = 15.0


def folder_of(task: Task) -> Path:
    """Return where the study of a task is kept: ``studies/<name>``, in the working directory."""
    return Path("studies") / (re.sub(r"[^\w.-]+", "-", task.name).strip("-.") or "task")


def begin_study(
    task: Task,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    allowed_drop: float | str | None = None,
    device: str = "auto",
    fresh: bool = False,
    on_note: Callable[[str], None] = lambda _: None,
) -> Path:
    """Return the folder of a task's study; one that is there is gone on with, otherwise it is written.

    Args:
        task: The task.
        minutes: Time for the search; None is 15.
        steps: Loader batches that the task is trained for today; None takes the task's own.
        epochs: The same in passes over the data.
        allowed_drop: Drop of the metric that is allowed, in its unit or as a share ("2 %").
        device: Where to train.
        fresh: Write a new one, replacing what is there.
        on_note: Called with what is left out and why, and what the time allows.

    Raises:
        StudyError: When it is not said how long the task is trained, or said twice, the drop is none, the time is too
            short, or the study that is there asks another question.
    """
    from workbench.core import devices
    from workbench.training.task_look import epoch_batches, look_at

    folder = folder_of(task)
    _check_drop(allowed_drop)
    if steps is not None and epochs is not None:
        raise StudyError("`steps` and `epochs` say the same; give one of them")
    if (folder / "study.toml").exists() and not fresh:
        said = None if steps is None and epochs is None else _steps(task, steps, epochs, epoch_batches(task))
        _check_same_question(folder, said, allowed_drop)
        on_note(f"Going on with {folder}; --fresh starts a new one.")
        return folder
    look = look_at(task, devices.select_device(device))
    length = _steps(task, steps, epochs, look.epoch_batches)
    chosen = DEFAULT_MINUTES if minutes is None else minutes
    question = ask(look, _named_from(folder, task), steps=length, minutes=chosen, allowed_drop=allowed_drop)
    for sentence in [*question.left_out, question.forecast(chosen)]:
        on_note(sentence)
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(folder / "study.toml", question.text)
    return folder


def _named_from(folder: Path, task: Task) -> str:
    """Return a task's name as its study says it: a file relative to the study's folder, so that both may move."""
    place, colon, attribute = task.spec.rpartition(":")
    if not place.endswith(".py"):
        return task.spec or task.name
    with contextlib.suppress(ValueError):  # on another drive
        place = Path(os.path.relpath(place, folder)).as_posix()
    return f"{place}{colon}{attribute}"


def _steps(task: Task, steps: int | None, epochs: float | None, epoch_batches: int | None) -> int:
    """Return how many batches the task is trained for today."""
    if steps is None and epochs is None:
        steps, epochs = task.steps, task.epochs
    if steps is not None:
        return steps
    if epochs is None:
        raise StudyError(
            f"how long is {task.name} trained today? Say --steps N (batches of its loader) or --epochs N, or give the "
            "Task steps= or epochs="
        )
    if epoch_batches is None:
        raise StudyError(f"the loader of {task.name} does not know its length; say --steps N instead of epochs")
    return max(math.ceil(epochs * epoch_batches), 1)


def _check_drop(drop: float | str | None) -> None:
    try:
        AllowedDrop(o1=drop)
    except ValidationError:
        told = f'must be a number of at least 0 or a share such as "2 %", got {drop!r}'
        raise StudyError(f"the allowed drop {told}") from None


def _check_same_question(folder: Path, steps: int | None, allowed_drop: float | str | None) -> None:
    file = read_study(folder)
    fresh = "--fresh starts a new one and archives it"
    if file.study.objective != "time_to_quality":
        raise StudyError(f"{folder} holds a study of another kind; tune it by its folder, or move it away")
    asked = file.allowed_drop.o1
    if allowed_drop is not None and str(allowed_drop).replace(" ", "") != str(asked).replace(" ", ""):
        kept = "the default drop" if asked is None else f"an allowed drop of {asked}"
        raise StudyError(f"{folder} asks with {kept}, not {allowed_drop}; {fresh}")
    budget = file.study.budget_steps
    horizon = shorter_than(steps, budget) if steps is not None else ""
    if steps not in (None, budget) and not any(one.startswith(horizon) for one in file.set_up.left_out):
        raise StudyError(f"{folder} asks about {budget} batches, not {steps}; {fresh}")
