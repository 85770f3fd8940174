"""The first stage: what changes a run's time and not its question (compiler, memory format, number format).

What the study names is timed beside the baseline, with the loader's batches and with four of them at once, since
layout and precision interact with the batch; with the loader's alone where no larger ones are searched, or where the
task as given can do no more, because its batches cannot be put together or memory is full. The fastest whose losses
and gradient are the baseline's within rounding (`workbench.training.agreement`) becomes the ground that every later
plan starts from.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import optuna

from workbench.config import SWITCHES, BoostConfig, Plan
from workbench.core.out_of_memory import is_out_of_memory
from workbench.methods.runtime.section import RuntimeSection
from workbench.study.ask.search_space import all_off
from workbench.study.ask.set_up_question import EXPECTED_TIME
from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import OutOfTimeError, StudyStoppedError
from workbench.study.run.job import AgreementJob, SpeedMeasured
from workbench.study.run.runner import reason_of_failure
from workbench.study.set_up.total_time import StepTimes, passes_of, total_time

_CHOICE, _NO_ROOM = "runtime_choice", "no_room_for_batches"
_BATCH_FACTORS: tuple[float, ...] = (1.0, 4.0)
RUNTIME_SHARE = 0.2  # of the time of a search for a set-up, after which nothing more is timed
_THREADS, _DATA, _COMPILE = "runtime.threads", "runtime.data", "runtime.compile"
_FIRST = (_THREADS, _DATA, "runtime.cuda_graph")
_LAST = ("runtime.cuda_graph", _DATA, "runtime.matmul_precision", "runtime.cudnn_benchmark")
_FEWEST_TOLD = 2  # runtimes: of fewer the answer says it all
_OF_A_NETWORK = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a network may raise that is called with other batches, in another format or compiled."""


def ground_of(base: BoostConfig, attributes: Mapping[str, Any]) -> BoostConfig:
    """Return what every plan of a search starts from: no method but those it names, and the runtime that was chosen."""
    switches: dict[str, Any] = {f"boost.{name}": False for name in SWITCHES}
    chosen = attributes.get(_CHOICE, {}).get("values", {})
    return base.with_values({"boost.mode": "manual", **switches, **chosen})


def has_runtime(study: optuna.Study) -> bool:
    """Return whether a study has chosen its runtime."""
    return _CHOICE in study.user_attrs


def batches_without_room(attributes: Mapping[str, Any]) -> float:
    """Return the smallest batch factor known to fail, for want of memory as a rule; infinity where none is."""
    return float(min(_chosen_row(attributes).get("no_room", math.inf), attributes.get(_NO_ROOM, math.inf)))


def note_no_room(study: optuna.Study, factor: float) -> None:
    """Note that batches of this factor did not fit into memory, or could not be made; larger ones will not either."""
    if 1.0 < factor < batches_without_room(study.user_attrs):
        study.set_user_attr(_NO_ROOM, factor)


def times_per_sample(attributes: Mapping[str, Any]) -> Mapping[float, float]:
    """Return a sample's share of a step in the chosen runtime, relative to today's, by batch factor; may be empty."""
    return dict(zip(_BATCH_FACTORS, _chosen_row(attributes).get("ratios", ()), strict=False))


def runtime_ratio(attributes: Mapping[str, Any]) -> float:
    """Return a step's time in the chosen runtime relative to today's; 1 where none was chosen."""
    return float(times_per_sample(attributes).get(1.0, 1.0))


def steps_timed(file: StudyFile, attributes: Mapping[str, Any]) -> str:
    """Say what a mean step takes in each runtime that was timed, fastest first; empty where there was no choice."""
    base, shares = all_off(file.base_config()), dict[str, float]()
    for row in attributes.get(_CHOICE, {}).get("measured", []):
        if row["values"] and row["ratios"] and not row["message"]:
            summary = file.plans.resolve(base.with_values(row["values"]), "O0").summary()
            at_first = row.get("at_first", [0.0])[0]  # studies begun before it was stored have none
            shares.setdefault(summary, row["ratios"][0] + at_first)
    if len(shares) < _FEWEST_TOLD:
        return ""
    told = "; ".join(
        f"{share:.2f} {summary}" for summary, share in sorted(shares.items(), key=lambda one: (one[1], len(one[0])))
    )
    return f"Mean steps that were timed, as shares of O0's: {told}."


def _chosen_row(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what was measured of the chosen runtime; empty before the choice."""
    found = attributes.get(_CHOICE, {"values": {}, "measured": []})
    return next((row for row in found["measured"] if row["values"] == found["values"]), {})


def choose_runtime(
    times: StepTimes,
    on_note: Callable[[str], None] = lambda _: None,
    on_timed: Callable[[int, int], None] = lambda done, total: None,
    *,
    limit: float | None = None,
) -> None:
    """Time the combinations of the study's runtime choices and keep the fastest, with what was measured.

    ``on_timed`` is called before each with how many are timed, and out of how many. What would begin after a
    ``limit``, seconds, is left out. A choice that the study already has is not made again.
    """
    study, choices = times.study, times.file.set_up.runtime
    if has_runtime(study):
        return
    timing = _RuntimeTiming(times, math.inf if limit is None else time.monotonic() + limit)
    chosen = timing.row({}, 1)
    rows = [chosen]
    together = list(_chosen_together(choices))
    total = sum(map(timing.changes, itertools.chain(*together)))
    try:
        for combined in together:
            # Values as given add nothing to what was chosen so far, nor does what was.
            others = [chosen["values"] | values for values in combined if timing.changes(values)]
            others = [one for one in others if timing.acts(one) and all(one != row["values"] for row in rows)]
            tried = []
            for values in others:
                on_timed(len(rows) - 1, total)
                tried.append(timing.row(values, max(1, len(chosen["ratios"]))))
                rows.append(tried[-1])
            chosen = timing.fastest(chosen, tried)
    except OutOfTimeError:
        if chosen is rows[0]:  # nothing is found yet: the next command asks again
            raise
    study.set_user_attr(_CHOICE, {"values": chosen["values"], "measured": rows})
    by_reason: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        changed = {path: value for path, value in row["values"].items() if timing.changes({path: value})}
        if row["message"] and changed.items() <= chosen["values"].items():
            continue  # what was not timed, or failed, by itself is chosen with the others
        by_reason.setdefault(row["message"], []).append(changed)
    for reason, left_out in by_reason.items():
        others = [values for another, found in by_reason.items() if another != reason for values in found]
        if reason:
            on_note(f"Left out: {'; '.join(_named(left_out, others))}, because {reason}.")


def _named(combinations: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return in words what combinations of values have in common, and no other has; each of them if nothing."""
    shared = dict(item for item in combinations[0].items() if all(item in one.items() for one in combinations))
    is_theirs = shared and not any(shared.items() <= other.items() for other in others)
    named = [shared] if is_theirs else combinations
    return [", ".join(f"{path} = {value}" for path, value in one.items()) or "nothing" for one in named]


def _chosen_together(choices: Mapping[str, Any]) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the combinations of values of which one is chosen, in the order in which they are.

    Threads hardly depend on the others, so they are chosen first. How samples are read comes next: it is asked where
    reading takes long, and a short search has no time for what comes last. A process that reads ahead needs a core, so
    fewer threads are tried beside it, and formats after both, since these pay otherwise with other threads. CUDA graphs
    come before formats, too: one that only adds kernels to launch is faster under them. Where formats make reading
    otherwise or graphs worth it, they are chosen after them. TF32 and cuDNN's benchmark add to what the others leave,
    each by itself.
    """

    def combined(*paths: str) -> list[Mapping[str, Any]]:
        products = itertools.product(*(choices[path] for path in paths))
        return [dict(zip(paths, values, strict=True)) for values in products]

    alone = {path: combined(path) for path in (*_FIRST, *_LAST) if path in choices}
    if "prefetch" in choices.get(_DATA, ()) and _THREADS in choices:
        alone[_DATA] += combined(_DATA, _THREADS)
    yield from (alone[path] for path in _FIRST if path in alone)
    formats = combined(*(path for path in choices if path not in alone))

    def late(values: Mapping[str, Any]) -> tuple[bool, int]:
        """Put off what is compiled, which takes longest to time, and what changes little, which seldom gains most."""
        changes = sum(value != choices[path][0] for path, value in values.items())
        return values.get(_COMPILE, "off") != "off", -changes

    yield sorted(formats, key=late)
    yield from (alone[path] for path in _LAST if path in alone)


class _RuntimeTiming:
    """Times runtime values against the baseline: rows of values, ratios by batch factor, a reason if one is missing."""

    def __init__(self, times: StepTimes, end: float) -> None:
        from workbench.core import devices

        self._times, self._end, self._file = times, end, times.file
        self._base = all_off(self._file.base_config())
        self._device = devices.select_device(self._file.study.device)
        is_enlarged = any(one.path == "batch.factor" for one in self._file.dimensions)
        self._factors = _BATCH_FACTORS if is_enlarged else _BATCH_FACTORS[:1]
        # The shorter a run is, the more compiling has to save.
        self._length = 1.0 if self._file.finds_steps_alone else EXPECTED_TIME
        self._has_bfloat16 = devices.has_fast_bfloat16(self._device)

    def changes(self, values: Mapping[str, Any]) -> bool:
        """Return whether values differ from the task as given."""
        return self._base.with_values(values) != self._base

    def acts(self, values: Mapping[str, Any]) -> bool:
        """Return whether all values act together; others are as without those that do not."""
        return len(self._plan(values, 1.0).dropped) <= len(self._plan({}, 1.0).dropped)

    def _plan(self, values: Mapping[str, Any], factor: float) -> Plan:
        return self._file.plans.resolve(self._base.with_values({**values, "batch.factor": factor}), "O0")

    def row(self, values: Mapping[str, Any], n_needed: int) -> dict[str, Any]:
        """Time values; a row has as many ratios as needed, or none and a message."""
        row: dict[str, Any] = {"values": values, "ratios": [], "at_first": []}
        row["message"] = self._why_not_timed(values)
        try:
            for factor in self._factors if not row["message"] else ():
                plan = self._plan(values, factor)
                step = self._times.measured(plan)
                row["ratios"].append(step.ratio / factor)
                row["at_first"].append(self._at_first(plan, step))
        except StudyStoppedError:
            raise
        except _OF_A_NETWORK as error:  # a compiler that fails ends nothing
            if row["ratios"] and is_out_of_memory(error):
                row["no_room"] = self._factors[len(row["ratios"])]
            if len(row["ratios"]) < n_needed:
                row |= {"message": reason_of_failure(error), "ratios": [], "at_first": []}
        return row

    def _at_first(self, plan: Plan, step: SpeedMeasured) -> float:
        """Return what compiling and reading once take, as a share of the baseline's run that they are spread over.

        That is today's training where nothing else is searched.
        """
        if plan.config.part(RuntimeSection).compile == "off":
            step = replace(step, cold_ms=0.0)  # a few slow steps, which differ by luck
        steps, share = self._file.study.budget_steps, self._file.share_of_today
        if self._file.finds_steps_alone:
            steps, share = round(steps / share), 1.0
        whole = total_time(plan, step, steps, share_of_today=share)
        return whole.ratio - step.ratio * passes_of(plan, steps) / steps

    def _why_not_timed(self, values: Mapping[str, Any]) -> str:
        if time.monotonic() > self._end and values:
            return "no time was left to measure it"
        config, device = self._base.with_values(values), self._device.type
        is_bfloat16 = config.effective_amp_level(device) != "O0" and config.amp.dtype == "bfloat16"
        missing = is_bfloat16 and not self._has_bfloat16
        return f"this {device.upper()} has no instructions for bfloat16" if missing else ""

    def fastest(self, chosen: dict[str, Any], tried: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the fastest row that agrees with the baseline, as what is ``chosen`` does; others get a message."""
        n_ratios = max(1, len(chosen["ratios"]))
        able = [row for row in (chosen, *tried) if row["ratios"]]

        def time_of(row: Mapping[str, Any]) -> tuple[float, int]:
            """Return its time, and of equal ones the number of choices."""
            parts = zip(row["ratios"][:n_ratios], row["at_first"], strict=False)
            time = float(math.prod(ratio + at_first / self._length for ratio, at_first in parts))
            return time, sum(self.changes({path: value}) for path, value in row["values"].items())

        for row in sorted(able, key=time_of):
            if row is not chosen:
                row["message"] = self._disagreement(row["values"])
            if not row["message"]:
                return row
        return chosen

    def _disagreement(self, values: Mapping[str, Any]) -> str:
        """Return why values do not compute what the baseline does; empty where they do."""
        sides = (self._base, "O0"), (self._base.with_values(values), "O0")
        try:
            return self._times.experimenter.run(AgreementJob(*sides, self._file.study.seed)).why_not
        except StudyStoppedError:
            raise
        except _OF_A_NETWORK as error:  # what was timed with some batches may fail with others
            return reason_of_failure(error)
