"""A study for a task that has none: look at the task, write ``studies/<task>/study.toml``, or find the one there is.

A look at the task (`workbench.training.task_look`) says what may make it faster: optimizers, batches, precision,
inputs, boost methods. What does not apply is left out with a sentence.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from workbench.core.files import write_text_atomically
from workbench.study.ask.sections import AllowedDrop
from workbench.study.ask.set_up_question import ask
from workbench.study.ask.study_file import StudyFile, parse_study, read_study
from workbench.study.errors import StudyError, StudyStoppedError

if TYPE_CHECKING:
    from workbench.tasks import Task
    from workbench.training.task_look import TaskLook

DEFAULT_MINUTES = 15.0

_AS_QUICK = 1.05  # times the quickest step, of the numbers of threads that leave room for the most runs


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
    folder: Path | None = None,
    on_note: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    jobs: int | None = 1,
) -> Path:
    """Return the folder of a task's study: an existing one is continued, otherwise a new one is written.

    ``minutes`` are for the search (None is 15), by ``jobs`` processes (None for as many as have idle cores). ``steps``
    or ``epochs`` is how long the task is trained today (None for the task's own). ``allowed_drop`` is in the metric's
    unit or a share ("2 %"). ``fresh`` archives an existing study, ``folder`` takes the place of `folder_of`, and
    ``on_note`` gets what is left out and why, and what the time allows. ``stop`` is asked at each batch of the look.

    Raises:
        StudyError: When the length of today's training is missing or given twice, the drop is not valid, the time is
        too short, or the study that is there asks another question or is being tuned.
        StudyStoppedError: When ``stop`` returned True; nothing is written then.
    """
    from workbench.core import devices
    from workbench.study.store.storage import archive_idle_study, holding_study
    from workbench.tasks.stoppable_task import StoppedError, stoppable
    from workbench.training.task_look import look_at

    folder = folder_of(task) if folder is None else folder
    _check_drop(allowed_drop)
    for name, number in (("epochs", epochs), ("minutes", minutes)):
        if number is not None and not math.isfinite(number):
            raise StudyError(f"`{name}` must be a finite number, got {number}")
    if steps is not None and epochs is not None:
        raise StudyError("`steps` and `epochs` mean the same thing; give only one of them")
    if (folder / "study.toml").exists() and not fresh:
        said = None if steps is None and epochs is None else _steps(task, steps, epochs)
        asked_before = _check_same_question(folder, task, said, allowed_drop)
        on_note(f"Continuing {folder}; to start a new one, use --fresh (fresh=True in Python).")
        if asked_before.set_up.shortened:
            on_note(asked_before.set_up.shortened)
        return folder
    if fresh and folder.exists():
        with holding_study(folder):  # fails now, not after the look, if another process is tuning it
            pass
    length = _steps(task, steps, epochs)
    try:
        look = look_at(stoppable(task, stop), devices.select_device(device), length)
    except StoppedError:
        raise StudyStoppedError("stopped during the look at the task; nothing was written") from None
    minutes = DEFAULT_MINUTES if minutes is None else minutes
    threads, places = threads_and_places(look, device, jobs, 60.0 * minutes)
    asked = (look, _named_from(folder, task))
    options: Any = {"allowed_drop": allowed_drop, "places": places, "threads": threads}
    question = ask(*asked, steps=length, minutes=minutes, **options)
    about_task = [look.compared, look.falls_early, look.counted, look.unfused, look.untrained]
    for sentence in [*about_task, *question.left_out, question.forecast(minutes, places)]:
        if sentence:
            on_note(sentence)
    parse_study(question.text)  # nothing is written that could not be read
    if fresh and (archived := archive_idle_study(folder)) is not None:
        on_note(f"The earlier study is archived in {archived}.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(folder / "study.toml", question.text)
    except OSError as error:
        raise StudyError(f"{folder}: cannot be written ({error.strerror or error})") from None
    return folder


def threads_and_places(
    look: TaskLook, device: str, jobs: int | None, seconds: float = math.inf
) -> tuple[int | None, int]:
    """Return how many threads a run has, None for torch's own, and how many runs are trained at a time.

    ``jobs`` are the processes that are asked for; None is as many as have idle cores for so many seconds. As many runs
    as possible are trained at a time, each with the fewest threads whose step takes about as long as the quickest, and
    with cores for what reads beside it.
    """
    from workbench.core import devices

    beside = {"resident": 0, "prefetch": 1}.get(look.reading, look.reading_cores or 0)

    def places(threads: int) -> int:
        if jobs is None:
            return devices.idle_places_to_train(device, threads, seconds, beside=beside)
        return min(jobs, devices.places_to_train(device, threads, beside=beside))

    times = {look.threads: look.step_seconds, **look.fewer_threads}
    room = {threads: places(threads) for threads in times}
    roomy = [threads for threads in times if room[threads] == max(room.values())]
    enough = _AS_QUICK * min(times[threads] for threads in roomy)
    fewest = min(threads for threads in roomy if times[threads] <= enough)
    return None if fewest == look.threads else fewest, room[fewest]


def _named_from(folder: Path, task: Task) -> str:
    """Return a task's name as its study has it: a file relative to the study's folder, so that both may move."""
    place, colon, attribute = task.spec.rpartition(":")
    if not place.endswith(".py"):
        return task.spec or task.name
    with contextlib.suppress(ValueError):  # on another drive
        place = Path(os.path.relpath(place, folder)).as_posix()
    return f"{place}{colon}{attribute}"


def _steps(task: Task, steps: int | None, epochs: float | None) -> int:
    """Return how many batches the task is trained for today."""
    from workbench.tasks import TaskError
    from workbench.training.task_look import batches_of_epochs

    if steps is None and epochs is None:
        steps, epochs = task.steps, task.epochs
    if steps is not None:
        return int(steps)
    if epochs is None:
        raise StudyError(
            f"how long is {task.name} trained today? Say --steps N (batches of its loader) or --epochs N, or give the "
            "Task steps= or epochs="
        )
    try:
        return batches_of_epochs(task, epochs)
    except TaskError as error:
        raise StudyError(str(error)) from None


def _check_drop(drop: float | str | None) -> None:
    try:
        AllowedDrop(o1=drop)
    except ValidationError:
        rule = 'must be a number of at least 0 or a share such as "2 %"'
        raise StudyError(f"the allowed drop {rule}, got {drop!r}") from None


def _check_same_question(folder: Path, task: Task, steps: int | None, allowed_drop: float | str | None) -> StudyFile:
    file = read_study(folder)
    fresh = "--fresh starts a new one and archives it"
    if file.study.objective != "time_to_quality" and file.set_up.todays_steps is None:
        raise StudyError(f"{folder} holds a study of another kind; tune it by its folder, or move it away")
    if _is_elsewhere(folder, file.study.task, task):
        raise StudyError(
            f"{folder} is about {file.study.task}, not {task.spec}; give the task another name, or {fresh}"
        )
    asked = file.allowed_drop.o1
    if allowed_drop is not None and _comparable(allowed_drop) != _comparable(asked):
        kept = "the default drop" if asked is None else f"an allowed drop of {asked}"
        raise StudyError(f"{folder} asks with {kept}, not {allowed_drop}; {fresh}")
    if steps not in (None, file.study.budget_steps, file.set_up.todays_steps):
        raise StudyError(f"{folder} asks about {file.study.budget_steps} batches, not {steps}; {fresh}")
    return file


def _comparable(drop: float | str | None) -> float | str | None:
    """Return a drop so that equal ones are equal: 1 and 1.0, "2%" and "2 %"."""
    return drop.replace(" ", "") if isinstance(drop, str) else drop


def _is_elsewhere(folder: Path, named: str, task: Task) -> bool:
    """Return whether a study is about a task from another file or module; a task that is from none fits any study."""
    place, _, attribute = named.rpartition(":")
    other, _, own = task.spec.rpartition(":")
    if place.endswith(".py") and other.endswith(".py"):
        return (folder / place).resolve() != Path(other).resolve() or attribute != own
    return bool(task.spec) and named != task.spec
