"""What a study asks of a task that has none: for the fastest set-up, or for faster steps alone where time is short.

A look at the task (`workbench.training.task_look`) says what may make it faster: optimizers, batches, precision,
inputs, boost methods. What does not apply is left out with a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from workbench.config import TASKS_OWN, BoostConfig, Facts, describe_parameters
from workbench.core.other_work import other_work_now
from workbench.core.processor import too_many_threads
from workbench.core.text import format_duration
from workbench.methods.registry import METHODS
from workbench.study.ask.sections import SHORTENED
from workbench.study.ask.study_text import text_of
from workbench.study.errors import StudyError

if TYPE_CHECKING:
    from workbench.training.task_look import TaskLook

_OWN_FAMILIES = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
_RATE_MULTIPLES = (1.0, 2.0, 4.0)
_RUNS_WANTED = 50  # as long as today's that a search should have time for; else it asks at a shorter length
_RUNS_OF_STEPS = 25  # the same of a search for faster steps alone, which times most of what it compares
_SHORTEST_HORIZON = 16
_FEWEST_STEPS = 10  # of a run that shows no more than what a step takes
_FEWEST_MINUTES = 1.0  # for such runs, since a command takes some seconds to begin
_CONFIRM_SHARE = 0.38  # of the time
EXPECTED_TIME = 0.35  # of a candidate's run relative to today's, where it is not known better
_CANDIDATES = 3  # the leader, its safer form and its bolder one
_MOST_SAVED = 0.3  # of a training's time, by compiling
_LEAST_SAVED_SECONDS = 20.0  # compiling takes about as long: it is tried only where it may save more
_COMPILING_MINUTES = 5.0  # where steps alone are searched, since a compiler takes most of a minute


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


@dataclass(frozen=True, slots=True)
class _Room:
    """A training of today, and the time in which it is searched."""

    look: TaskLook
    steps: int  # loader batches of the training
    minutes: float
    places: int  # runs that are trained at a time

    def horizon(self) -> int:
        """Return how many batches a run of the study has: as many as today, or the most that leave time for others."""
        seconds = 60.0 * self.places * self.minutes / _RUNS_WANTED
        most = int((seconds - self.look.evaluation_seconds) / self.look.step_seconds)
        if most >= self.sixteenth:
            return min(self.steps, most)
        if self.minutes < self.minutes_for_steps:
            raise self.too_short(has_runtime=True)
        return max(most, _FEWEST_STEPS)

    @property
    def sixteenth(self) -> int:
        """Batches of the shortest run that is searched for more than faster steps."""
        return math.ceil(self.steps / _SHORTEST_HORIZON)

    @property
    def minutes_for_steps(self) -> float:
        """Minutes that a search for faster steps alone takes; infinity where its runs are no part of a sixteenth."""
        return self.minutes_for(_FEWEST_STEPS, _RUNS_OF_STEPS) if self.sixteenth > _FEWEST_STEPS else math.inf

    def minutes_for(self, steps: int, runs: int = _RUNS_WANTED) -> int:
        """Return how many minutes a search takes that has time for so many runs of so many batches."""
        run_seconds = steps * self.look.step_seconds + self.look.evaluation_seconds
        return math.ceil(runs / self.places * run_seconds / 60.0)

    def too_short(self, *, has_runtime: bool) -> StudyError:
        """Return the error that says how much time is needed."""
        look, needed, few = self.look, self.minutes_for(self.sixteenth), self.minutes_for_steps
        alone = has_runtime and self.minutes < few < needed
        why = (too_many_threads(look.threads) or other_work_now().sentence()) if look.device == "cpu" else ""
        return StudyError(
            f"{format_duration(60.0 * self.minutes)} is too short a time to search a training of {self.steps} batches "
            f"of {1e3 * look.step_seconds:.3g} ms each, with an evaluation of "
            f"{format_duration(look.evaluation_seconds)}; give it at least {_minutes(needed)} (--minutes {needed})"
            f"{f'; faster steps alone may be found in {_minutes(few)}' if alone else ''}{why and '. '}{why}"
        )


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

    Where the time is too short to see trainings of a sixteenth of today's length end, it finds faster steps alone.
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
    room = _Room(look, steps, minutes, places)
    horizon = room.horizon()
    run_seconds = horizon * look.step_seconds + look.evaluation_seconds
    is_long = horizon < room.sixteenth
    asked = (_for_steps if is_long else _for_set_ups)(room, horizon, left_out)
    cores = {"threads": threads, "reading_cores": look.reading_cores}
    study: dict[str, Any] = {
        "task": spec,
        "seed": 0,
        "budget_steps": horizon,
        "timeout_seconds": round(60 * minutes, 1),
    }
    sections: dict[str, Mapping[str, Any]] = {
        "study": {**study, **asked.pop("study"), **{key: value for key, value in cores.items() if value is not None}},
        "allowed_drop": {} if allowed_drop is None else {"o1": allowed_drop},
        **asked,
        "pruner": {"name": "none"},
        "speed": {"rounds": 12},
        "confirm": {**_seeds(run_seconds, places * minutes), "candidates": _CANDIDATES, "time_share": _CONFIRM_SHARE},
    }
    how = f"Which set-up trains {spec} fastest"
    asks = (
        f"{f'What makes steps of {spec} faster' if is_long else how} to the quality that {horizon} batches reach today?"
    )
    return SetUpQuestion(text_of([asks], sections), left_out, horizon, run_seconds)


def _for_set_ups(room: _Room, horizon: int, left_out: list[str]) -> dict[str, Any]:
    """Return the sections of a search for the fastest set-up, and add to what is left out."""
    look, steps = room.look, room.steps
    if horizon < steps:
        needed = room.minutes_for(steps)
        left_out.append(
            f"{SHORTENED}{horizon} of {steps} batches, annealed to their own end, since {_RUNS_WANTED} runs of "
            f"{steps} would take longer than {_minutes(room.minutes)}; what it finds is confirmed at {horizon}. "
            f"For {steps}, give it {_minutes(needed)} and start over (--minutes {needed} --fresh)."
        )
    # Where it sets the rate of each group by itself, no factor on the optimizer's can stand for it.
    if has_other_rates := look.sets_rates and look.rises_to > 0.0:
        highest = " and ".join(f"{rate:.3g}" for rate in dict.fromkeys(look.rates))
        left_out.append(
            "The task's own schedule is left out of tuned plain, because it goes up to other learning rates than the "
            f"optimizer is given; a linear one from its highest, {highest}, takes its place."
        )
    space = _space(look, left_out)
    runtime = _runtime(look, _not_compiled(horizon * look.step_seconds, steps * look.step_seconds), left_out)
    return {
        "study": {"n_trials": 1000, "objective": "time_to_quality"},
        "baseline": _low_precision(look, runtime),
        "sampler": {"name": "promise"},
        "set_up": {
            **_plain_rates(look),
            "plain_shape": "task" if look.has_scheduler and not has_other_rates else "linear",
            **({"todays_steps": steps} if horizon < steps else {}),
            "left_out": left_out,
            "runtime": runtime,
        },
        "space": space,
    }


def _not_compiled(run_seconds: float, todays_seconds: float) -> str:
    """Return why compiling is not tried, where runs of a study are as long as today's training or a part of it."""
    if _MOST_SAVED * todays_seconds <= _LEAST_SAVED_SECONDS:
        return f"a run of {format_duration(run_seconds)} is too short to pay for compiling"
    if run_seconds <= _LEAST_SAVED_SECONDS:  # each process of the search compiles for every kind of step
        return f"compiling takes longer than the {format_duration(run_seconds)} of a run in the search"
    return ""


def _for_steps(room: _Room, horizon: int, left_out: list[str]) -> dict[str, Any]:
    """Return the sections of a search for faster steps, of a training that is too long for a search of whole runs.

    The rest of a set-up is judged by the end of a training, which the time does not hold.
    """
    look, minutes = room.look, room.minutes
    needed = room.minutes_for(room.sixteenth)
    left_out.append(
        f"{SHORTENED}{horizon} of {room.steps} batches and searches only what makes a step faster and leaves learning "
        f"as it is, since {format_duration(60.0 * minutes)} is too short a time to see such trainings end. For "
        f"optimizer, schedule, batches and the rest, give it at least {_minutes(needed)} and start over "
        f"(--minutes {needed} --fresh)."
    )
    too_short = "" if minutes >= _COMPILING_MINUTES else f"{format_duration(60.0 * minutes)} is too short a time for it"
    runtime = _runtime(look, too_short, left_out)
    runtime.pop("runtime.threads", None)  # the study has the number that is quickest
    if not runtime or minutes < _FEWEST_MINUTES:
        raise room.too_short(has_runtime=bool(runtime))
    return {
        "study": {"n_trials": 2, "objective": "speed"},
        "baseline": {"boost.mode": "disable_all", **_low_precision(look, runtime)},
        "set_up": {"todays_steps": room.steps, "left_out": left_out, "runtime": runtime},
    }


def _low_precision(look: TaskLook, runtime: Mapping[str, Any]) -> dict[str, str]:
    return {"amp.dtype": "bfloat16" if look.fast_bfloat16 else "float16"} if "amp.level" in runtime else {}


def _seeds(run_seconds: float, minutes: float) -> dict[str, int]:
    """Return how many seeds a confirmation takes: as many as its share of the time allows, 10 to 60."""
    pair = (1.0 + _CANDIDATES * EXPECTED_TIME) * run_seconds
    most = int(min(max(_CONFIRM_SHARE * 60.0 * minutes / pair, 10), 60))
    return {"seeds_min": max(most // 2, 10), "seeds_max": most}


def _minutes(number: float) -> str:
    return f"{number:g} minute{'' if number == 1 else 's'}"


def _space(look: TaskLook, left_out: list[str]) -> dict[str, Any]:
    names = _optimizers(look, left_out)
    space: dict[str, Any] = {} if names == [TASKS_OWN] else {"optimizer.name": names}

    def add(what: str, why_not: str, values: Mapping[str, Any]) -> None:
        if why_not:
            left_out.append(_left_out(what, why_not))
        else:
            space.update(values)

    for name in names:
        space |= _ranges(look, name)
    space["schedule.length"] = {"low": 0.08, "high": 0.9, "log": True}
    space["schedule.shape"] = ["linear" if look.rises_to or names != [TASKS_OWN] else "task"]
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
        return [TASKS_OWN]
    names = ["AdamW"] if own not in ("Adam", "AdamW") else [own]
    if look.matrices:
        names.append("Muon")
    else:
        left_out.append(_left_out("Muon is", "the network has no hidden matrices"))
    if not own:
        searched = "nothing but its rate" if _ranges(look, TASKS_OWN) else "nothing"
        left_out.append(f"Of the task's own optimizer, {look.optimizer}, {searched} is searched.")
        own = TASKS_OWN
    return names + ([own] if own not in names else [])


def _ranges(look: TaskLook, name: str) -> dict[str, Any]:
    """Return the ranges of an optimizer's hyper-parameters: around the task's own where it is the same family."""
    if name == TASKS_OWN:  # whatever its rates are
        about = look.rises_to if any(look.rates) else 0.0
        return {"optimizer.lr_factor": {"low": about / 4, "high": about * 8, "log": True}} if about else {}
    found: dict[str, Any] = {f"optimizer.lr[{name}]": True}
    if name == look.optimizer:
        found[f"optimizer.lr[{name}]"] = {"low": look.rates[0] / 4, "high": look.rates[0] * 8, "log": True}
        found[f"optimizer.weight_decay[{name}]"] = [look.weight_decay]
        if look.momentum > 0.0:
            found[f"optimizer.momentum[{name}]"] = [look.momentum]
            found[f"optimizer.nesterov[{name}]"] = [True]
    if name == "Muon":
        found["optimizer.aux_lr[Muon]"] = {"low": 0.001, "high": 0.03, "log": True}
    return found


def _runtime(look: TaskLook, not_compiled: str, left_out: list[str]) -> dict[str, Any]:
    runtime: dict[str, Any] = {}
    if look.fast_bfloat16 or look.device == "cuda":
        runtime["amp.level"] = ["O0", "O2"]
    else:
        no_format = f"this {look.device.upper()} has no instructions for it, and float16 because it is slow there"
        left_out.append(_left_out("bfloat16 is", no_format))
    # A process that reads ahead needs a core for itself, so that fewer threads are tried beside it.
    at_most = math.inf if look.reading == "prefetch" and look.device == "cpu" else look.step_seconds
    if enough := [n for n, seconds in look.fewer_threads.items() if seconds < at_most]:
        runtime["runtime.threads"] = enough
    if look.device == "cuda":
        runtime["runtime.cuda_graph"] = [True]  # small networks wait for the host, which launches their kernels
        runtime["runtime.matmul_precision"] = ["high"]
        if look.convolutions:
            runtime["runtime.cudnn_benchmark"] = [True]
    if look.reading != "as_given":
        runtime["runtime.data"] = [look.reading]
    if look.not_kept:
        left_out.append(look.not_kept)
    if look.convolutions:
        runtime["runtime.memory_format"] = ["contiguous", "channels_last"]
        if look.device == "cpu" and look.faster_convolutions:
            runtime["runtime.convolution"] = ["library", "by_shape"]
    if not_compiled:
        left_out.append(_left_out("torch.compile is", not_compiled))
    else:
        runtime["runtime.compile"] = ["off", "default"]
    return runtime


def _plain_rates(look: TaskLook) -> dict[str, Any]:
    """Return the rates of tuned plain; factors on them where groups have their own, and none where there are none."""
    is_one = len(set(look.rates)) == 1
    about = look.rates[0] if is_one else look.rises_to
    if about <= 0.0:
        return {}
    rates = [float(f"{about * multiple:.4g}") for multiple in _RATE_MULTIPLES]
    return {**({} if is_one else {"plain_rate": "optimizer.lr_factor"}), "plain_rates": rates}
