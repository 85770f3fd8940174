"""A study for a task that has none: look at the task, write ``studies/<task>/study.toml``, or find the one there is.

A look at the task (`workbench.training.task_look`) says what may make it faster: optimizers, batches, precision,
inputs, boost methods. What does not apply is left out with a sentence.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from workbench.config import BoostConfig, Facts, describe_parameters
from workbench.core.files import write_text_atomically
from workbench.core.other_work import other_work_now
from workbench.core.processor import too_many_threads
from workbench.core.text import format_duration
from workbench.methods.registry import METHODS
from workbench.study.ask.sections import SHORTENED, AllowedDrop
from workbench.study.ask.study_file import parse_study, read_study
from workbench.study.ask.study_text import text_of
from workbench.study.errors import StudyError, StudyStoppedError

if TYPE_CHECKING:
    from workbench.tasks import Task
    from workbench.training.task_look import TaskLook

DEFAULT_MINUTES = 15.0

_OWN_FAMILIES = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
_RATE_MULTIPLES = (1.0, 2.0, 4.0)
_RUNS_WANTED = 50  # as long as today's that a search should have time for; else it asks at a shorter length
_SHORTEST_HORIZON = 16
_AS_QUICK = 1.05  # times the quickest step, of the numbers of threads that leave room for the most runs
_CONFIRM_SHARE = 0.38  # of the time
_EXPECTED_TIME = 0.35  # of a candidate's run relative to today's
_CANDIDATES = 3  # the leader, its safer form and its bolder one
_LEAST_SAVED_SECONDS = 20.0  # compiling takes about as long: it is tried only where 30 % of a run is more


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
    unit or a share ("2 %"). ``fresh`` replaces an existing study, ``folder`` takes the place of `folder_of`, and
    ``on_note`` gets what is left out and why, and what the time allows. ``stop`` is asked at each batch of the look.

    Raises:
        StudyError: When the length of today's training is missing or given twice, the drop is not valid, the time is
        too short, or the study that is there asks another question.
        StudyStoppedError: When ``stop`` returned True; nothing is written then.
    """
    from workbench.core import devices
    from workbench.tasks.stoppable_task import StoppedError, stoppable
    from workbench.training.task_look import epoch_batches, look_at

    folder = folder_of(task) if folder is None else folder
    _check_drop(allowed_drop)
    if steps is not None and epochs is not None:
        raise StudyError("`steps` and `epochs` mean the same thing; give only one of them")
    if (folder / "study.toml").exists() and not fresh:
        said = None if steps is None and epochs is None else _steps(task, steps, epochs, epoch_batches(task))
        _check_same_question(folder, task, said, allowed_drop)
        on_note(f"Continuing {folder}; to start a new one, use --fresh (fresh=True in Python).")
        return folder
    length = _steps(task, steps, epochs, epoch_batches(task))
    try:
        look = look_at(stoppable(task, stop), devices.select_device(device), length)
    except StoppedError:
        raise StudyStoppedError("stopped during the look at the task; nothing was written") from None
    minutes = DEFAULT_MINUTES if minutes is None else minutes
    threads, places = threads_and_places(look, device, jobs, 60.0 * minutes)
    asked = (look, _named_from(folder, task))
    options: Any = {"allowed_drop": allowed_drop, "places": places, "threads": threads}
    question = ask(*asked, steps=length, minutes=minutes, **options)
    about_task = [look.compared, look.falls_early, look.untrained]
    for sentence in [*about_task, *question.left_out, question.forecast(minutes, places)]:
        if sentence:
            on_note(sentence)
    parse_study(question.text)  # nothing is written that could not be read
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
    as possible are trained at a time, each with the fewest threads whose step takes about as long as the quickest.
    """
    from workbench.core import devices

    def places(threads: int) -> int:
        if jobs is None:
            return devices.idle_places_to_train(device, threads, seconds)
        return min(jobs, devices.places_to_train(device, threads))

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


def _steps(task: Task, steps: int | None, epochs: float | None, epoch_batches: int | None) -> int:
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
        return batches_of_epochs(task, epochs, epoch_batches)
    except TaskError as error:
        raise StudyError(str(error)) from None


def _check_drop(drop: float | str | None) -> None:
    try:
        AllowedDrop(o1=drop)
    except ValidationError:
        rule = 'must be a number of at least 0 or a share such as "2 %"'
        raise StudyError(f"the allowed drop {rule}, got {drop!r}") from None


def _check_same_question(folder: Path, task: Task, steps: int | None, allowed_drop: float | str | None) -> None:
    file = read_study(folder)
    fresh = "--fresh starts a new one and archives it"
    if file.study.objective != "time_to_quality":
        raise StudyError(f"{folder} holds a study of another kind; tune it by its folder, or move it away")
    if _is_elsewhere(folder, file.study.task, task):
        raise StudyError(
            f"{folder} is about {file.study.task}, not {task.spec}; give the task another name, or {fresh}"
        )
    asked = file.allowed_drop.o1
    if allowed_drop is not None and str(allowed_drop).replace(" ", "") != str(asked).replace(" ", ""):
        kept = "the default drop" if asked is None else f"an allowed drop of {asked}"
        raise StudyError(f"{folder} asks with {kept}, not {allowed_drop}; {fresh}")
    if steps not in (None, file.study.budget_steps, file.set_up.todays_steps):
        raise StudyError(f"{folder} asks about {file.study.budget_steps} batches, not {steps}; {fresh}")


def _is_elsewhere(folder: Path, named: str, task: Task) -> bool:
    """Return whether a study names a task of another place than the given one, where both are from a place at all."""
    place, _, attribute = named.rpartition(":")
    other, _, own = task.spec.rpartition(":")
    if place.endswith(".py") and other.endswith(".py"):
        return (folder / place).resolve() != Path(other).resolve() or attribute != own
    return bool(task.spec) and named != task.spec


# The question


@dataclass(frozen=True, slots=True)
class SetUpQuestion:
    """The text of a ``study.toml``, and what to report about it."""

    text: str
    left_out: list[str]  # why what might have been searched is not, a sentence each
    steps: int  # loader batches of a run in the study
    run_seconds: float  # of such a run as given, evaluated at its end

    def forecast(self, minutes: float, places: int = 1) -> str:
        """Return in a sentence what a time allows at most, where so many runs are trained at a time."""
        runs = places * minutes * 60.0 / max(self.run_seconds, 1e-9)
        one = f"{self.run_seconds:.1f} s" if self.run_seconds < 10.0 else format_duration(self.run_seconds)
        one = "less than a second" if self.run_seconds < 1.0 else f"about {one}"
        them = f"them, {places} at a time," if places > 1 else "them"
        fit = f"at most {runs:.0f} of {them} fit into {format_duration(60.0 * minutes)}"
        return f"A run as given takes {one}; {fit}, of which starting and timing take a share."


def ask(
    look: TaskLook,
    spec: str,
    *,
    steps: int,
    minutes: float,
    allowed_drop: float | str | None,
    places: int = 1,
    threads: int | None = None,
) -> SetUpQuestion:
    """Return the study that finds a task's fastest set-up in ``minutes``, confirmation included.

    ``spec`` is the task as on the command line, ``steps`` the loader batches that it is trained for today, ``places``
    the runs that are trained at a time, ``threads`` one of the look's fewer threads that each of them has.
    """
    left_out = list[str]()
    if threads is not None:
        ratio = look.step_seconds / look.fewer_threads[threads]
        number = "one thread for a run is" if threads == 1 else f"{threads} threads for a run are"
        left_out.append(
            f"More than {number} left out: a step as given takes {float(f'{ratio:.2g}'):g} x as long with "
            f"{look.threads}{f', and so {places} runs are trained at a time' if places > 1 else ''}."
        )
        look = replace(look, step_seconds=look.fewer_threads[threads], fewer_threads={})
    horizon = _horizon(look, steps, minutes)
    training_seconds = horizon * look.step_seconds
    run_seconds = training_seconds + look.evaluation_seconds
    if horizon < steps:
        needed = math.ceil(_RUNS_WANTED * (steps * look.step_seconds + look.evaluation_seconds) / 60)
        left_out.append(
            f"{SHORTENED}{horizon} of {steps} batches, annealed to their own end, since {_RUNS_WANTED} runs of "
            f"{steps} would take longer than {_minutes(minutes)}; what it finds is confirmed at {horizon}. "
            f"For {steps}, give it {_minutes(needed)} and start over (--minutes {needed} --fresh)."
        )
    if look.sets_rates:
        left_out.append(
            "The task's own schedule is left out of tuned plain, because it goes up to another learning rate than "
            f"the optimizer is given; a linear one from its highest rate, {look.rates[0]:.3g}, takes its place."
        )
    space = _space(look, left_out)
    runtime = _runtime(look, training_seconds, left_out)
    sections: dict[str, Mapping[str, Any]] = {
        "study": {
            "task": spec,
            "seed": 0,
            "budget_steps": horizon,
            "n_trials": 1000,
            "timeout_seconds": round(60.0 * minutes, 1),
            "objective": "time_to_quality",
            **({} if threads is None else {"threads": threads}),
        },
        "allowed_drop": {} if allowed_drop is None else {"o1": allowed_drop},
        "baseline": {"amp.dtype": "bfloat16" if look.fast_bfloat16 else "float16"} if "amp.level" in runtime else {},
        "sampler": {"name": "promise"},
        "pruner": {"name": "none"},
        "speed": {"rounds": 4, "steps_per_block": 3},
        "set_up": {
            "plain_rates": _plain_rates(look),
            "plain_shape": "task" if look.has_scheduler and not look.sets_rates else "linear",
            **({"todays_steps": steps} if horizon < steps else {}),
            "left_out": left_out,
            "runtime": runtime,
        },
        "space": space,
        "confirm": {**_seeds(run_seconds, places * minutes), "candidates": _CANDIDATES, "time_share": _CONFIRM_SHARE},
    }
    asks = f"Which set-up trains {spec} fastest to the quality that {horizon} batches reach today?"
    return SetUpQuestion(text_of([asks], sections), left_out, horizon, run_seconds)


def _seeds(run_seconds: float, minutes: float) -> dict[str, int]:
    """Return how many seeds a confirmation takes: as many as its share of the time allows, 10 to 60."""
    pair = (1.0 + _CANDIDATES * _EXPECTED_TIME) * run_seconds
    most = int(min(max(_CONFIRM_SHARE * 60.0 * minutes / pair, 10), 60))
    return {"seeds_min": max(most // 2, 10), "seeds_max": most}


def _horizon(look: TaskLook, steps: int, minutes: float) -> int:
    """Return how many batches a run of the study has: as many as today, or the most that leave time for a search."""
    most = int((60.0 * minutes / _RUNS_WANTED - look.evaluation_seconds) / look.step_seconds)
    least = math.ceil(steps / _SHORTEST_HORIZON)
    if most < least:
        needed = _RUNS_WANTED * (least * look.step_seconds + look.evaluation_seconds) / 60.0
        why = (too_many_threads(look.threads) or other_work_now().sentence()) if look.device == "cpu" else ""
        raise StudyError(
            f"{format_duration(60.0 * minutes)} is too short a time to search a training of {steps} batches of "
            f"{1e3 * look.step_seconds:.3g} ms each, with an evaluation of {format_duration(look.evaluation_seconds)}; "
            f"give it at least {_minutes(math.ceil(needed))} (--minutes {math.ceil(needed)})"
            f"{why and '. '}{why}"
        )
    return min(steps, most)


def _minutes(number: float) -> str:
    return f"{number:g} minute{'' if number == 1 else 's'}"


def _space(look: TaskLook, left_out: list[str]) -> dict[str, Any]:
    names = _optimizers(look, left_out)
    space: dict[str, Any] = {"optimizer.name": names} if names else {}

    def add(what: str, why_not: str, values: Mapping[str, Any]) -> None:
        if why_not:
            left_out.append(_left_out(what, why_not))
        else:
            space.update(values)

    for name in names:
        space |= _ranges(look, name)
    space["schedule.length"] = {"low": 0.08, "high": 0.9, "log": True}
    space["schedule.shape"] = ["linear"]
    space["schedule.warmup"] = {"low": 0.03, "high": 0.3, "log": True}
    add("Larger batches are", look.no_merging, {"batch.factor": [1.0, 2.0, 4.0], "batch.lr_rule": ["sqrt"]})
    network, config = look.network, BoostConfig()
    smoothing = {"regularization.label_smoothing": {"low": 0.0, "high": 0.2}}
    add("Label smoothing is", network.no_smoothing, smoothing)
    space["regularization.weight_average"] = ["none", "ema"]
    space["regularization.decay"] = {"low": 0.8, "high": 0.99}
    kinds = {"resolution": network.no_resolution, "sequence": network.no_sequence}
    sizes = [kind for kind, why in kinds.items() if not why]
    neither = "" if sizes else kinds["resolution" if look.convolutions else "sequence"]
    if all("hold no" in why for why in kinds.values()):
        neither = "the batches hold neither images nor token sequences"
    curriculum = {"kind": ["none", *sizes], "start": [0.5], "until": {"low": 0.2, "high": 0.7}, "stages": [1]}
    add("Smaller inputs at first are", neither, {f"curriculum.{key}": value for key, value in curriculum.items()})
    for method in METHODS:
        if method.tried_on is not None:
            values = method.tried_on(network)
            settled = config.with_values({path: one[0] for path, one in values.items() if len(one) == 1})
            needs = describe_parameters()[method.switch].needs
            add(f"{method.name} is", needs.why_not(settled, Facts(network=network)), values)
    return space


def _left_out(what: str, why_not: str) -> str:
    """Say why something that might be searched is not, for example ``"Muon is"``."""
    return f"{what} left out, because {why_not}."


def _optimizers(look: TaskLook, left_out: list[str]) -> list[str]:
    own = look.optimizer if look.optimizer in _OWN_FAMILIES else ""
    why_not = ""
    if len(set(look.rates)) > 1:
        why_not = f"the task's {look.optimizer} has groups with learning rates of their own, which another would lose"
    elif look.sparse_gradients:
        why_not = "the network's embeddings have sparse gradients, which they do not take"
    if why_not:
        left_out.append(_left_out("Other optimizers are", why_not))
        return []
    if not own:
        left_out.append(f"The task's own optimizer, {look.optimizer}, is tried at its own settings only.")
    names = ["AdamW"] if own not in ("Adam", "AdamW") else [own]
    if look.matrices:
        names.append("Muon")
    else:
        left_out.append(_left_out("Muon is", "the network has no hidden matrices"))
    return names + ([own] if own and own not in names else [])


def _ranges(look: TaskLook, name: str) -> dict[str, Any]:
    """Return the ranges of an optimizer's hyper-parameters: around the task's own where it is the same family."""
    found: dict[str, Any] = {f"optimizer.lr[{name}]": True}
    if name == look.optimizer:
        found[f"optimizer.lr[{name}]"] = {"low": look.rates[0] / 4, "high": look.rates[0] * 8, "log": True}
        found[f"optimizer.weight_decay[{name}]"] = [look.weight_decay]
        if look.momentum > 0.0:
            found[f"optimizer.momentum[{name}]"] = [look.momentum]
            found[f"optimizer.nesterov[{name}]"] = [True]
    if name == "Muon":
        found["optimizer.aux_lr"] = {"low": 0.001, "high": 0.03, "log": True}
    return found


def _runtime(look: TaskLook, run_seconds: float, left_out: list[str]) -> dict[str, Any]:
    runtime: dict[str, Any] = {}
    if look.fast_bfloat16 or look.device == "cuda":
        runtime["amp.level"] = ["O0", "O2"]
    else:
        no_format = f"this {look.device.upper()} has no instructions for it, and float16 because it is slow there"
        left_out.append(_left_out("bfloat16 is", no_format))
    if quicker := [n for n, seconds in look.fewer_threads.items() if seconds < look.step_seconds]:
        runtime["runtime.threads"] = quicker
    if look.device == "cuda":
        runtime["runtime.cuda_graph"] = [True]  # small networks wait for the host, which launches their kernels
        runtime["runtime.matmul_precision"] = ["high"]
        if look.convolutions:
            runtime["runtime.cudnn_benchmark"] = [True]
    if look.gains_from_memory:
        runtime["runtime.data"] = ["resident"]
    if look.convolutions:
        runtime["runtime.memory_format"] = ["contiguous", "channels_last"]
    if 0.3 * run_seconds > _LEAST_SAVED_SECONDS:
        runtime["runtime.compile"] = ["off", "default"]
    else:
        too_short = f"a run of {format_duration(run_seconds)} is too short to pay for compiling"
        left_out.append(_left_out("torch.compile is", too_short))
    return runtime


def _plain_rates(look: TaskLook) -> list[float]:
    """Return the rates of tuned plain; none where groups have their own rates."""
    if len(set(look.rates)) > 1 or look.rates[0] <= 0.0:
        return []
    return [float(f"{look.rates[0] * multiple:.4g}") for multiple in _RATE_MULTIPLES]
