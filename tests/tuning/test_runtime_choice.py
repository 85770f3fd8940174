"""What changes time alone is chosen by timing, before anything else is searched."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.kit.set_up_search import RUNTIME_STUDY
from tests.kit.surface_runner import SurfaceRunner
from workbench.config import BoostConfig
from workbench.core import devices
from workbench.methods.runtime.section import RuntimeSection
from workbench.study import OutOfTimeError, parse_study
from workbench.study.errors import StudyStoppedError
from workbench.study.run.job import UNMONITORED, Agreement, AgreementJob, Job, Monitor, SpeedJob, SpeedMeasured
from workbench.study.set_up.proposing import first_batches
from workbench.study.set_up.runtime_choice import choose_runtime, times_per_sample
from workbench.study.set_up.total_time import StepTimes


class TimedRunner(SurfaceRunner):
    """Multiplies the times of what a configuration differs in from the task as given."""

    def __init__(
        self, directory: Path, factors: Mapping[tuple[str, Any], float], wrong: str, on_timed: Callable[[], None]
    ) -> None:
        super().__init__(directory)
        self.factors, self.wrong, self.on_timed = factors, wrong, on_timed
        self.configs: list[BoostConfig] = []

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if isinstance(job, AgreementJob):
            changed = job.baseline[0].diff(job.candidate[0])
            return Agreement("its losses differ" if self.wrong in changed else "")
        assert isinstance(job, SpeedJob)
        leaves = job.candidate[0].leaves()
        self.configs.append(job.candidate[0])
        self.on_timed()
        ratio = self.ratio(leaves)
        return SpeedMeasured(ratio, ratio, ratio, 20.0, 0.0)

    def ratio(self, leaves: Mapping[str, Any]) -> float:
        """Return the step time of a configuration relative to the task as given."""
        return math.prod(factor for (path, value), factor in self.factors.items() if leaves[path] == value)


def chosen(
    tmp_path: Path,
    choices: str,
    factors: Mapping[tuple[str, Any], float],
    wrong: str = "",
    limit: float | None = None,
    on_timed: Callable[[], None] = lambda: None,
    make: type[TimedRunner] = TimedRunner,
) -> tuple[dict[str, Any], TimedRunner, list[str]]:
    runner, notes = make(tmp_path, factors, wrong, on_timed), list[str]()
    file, study = parse_study(RUNTIME_STUDY.format(choices=choices)), optuna.create_study()
    choose_runtime(StepTimes(study, file, runner), notes.append, limit=limit)
    return study.user_attrs["runtime_choice"]["values"], runner, notes


def test_threads_are_chosen_before_the_layout_and_kept_beside_it(tmp_path: Path) -> None:
    choices = '"runtime.memory_format" = ["contiguous", "channels_last"]\n"runtime.threads" = [1]'
    factors = {("runtime.threads", 1): 0.5, ("runtime.memory_format", "channels_last"): 0.8}
    values, runner, _ = chosen(tmp_path, choices, factors)
    assert values == {"runtime.threads": 1, "runtime.memory_format": "channels_last"}
    layouts = [one.leaves() for one in runner.configs if one.leaves()["runtime.memory_format"] == "channels_last"]
    assert layouts
    assert all(one["runtime.threads"] == 1 for one in layouts)


@pytest.mark.parametrize(("data", "beside"), [("prefetch", {"runtime.threads": 1}), ("resident", {})])
def test_fewer_threads_are_tried_beside_a_process_that_reads(data: str, beside: dict[str, Any], tmp_path: Path) -> None:
    class Runner(TimedRunner):
        def ratio(self, leaves: Mapping[str, Any]) -> float:
            reads, alone = leaves["runtime.data"] == data, leaves["runtime.threads"] == 1
            return (0.6 if alone else 0.8) if reads else 1.2 if alone else 1.0

    choices = f'"runtime.threads" = [1]\n"runtime.data" = ["{data}"]'
    assert chosen(tmp_path, choices, {}, make=Runner)[0] == {"runtime.data": data} | beside


@pytest.mark.parametrize("alone", [0.7, 1.1])
def test_a_process_that_reads_is_tried_before_the_layout_and_after_it(alone: float, tmp_path: Path) -> None:
    """A layout that gains little by itself may gain nothing beside it, and the other way round."""
    layout, data = "runtime.memory_format", "runtime.data"

    class Runner(TimedRunner):
        def ratio(self, leaves: Mapping[str, Any]) -> float:
            reads, is_laid_out = leaves[data] == "prefetch", leaves[layout] == "channels_last"
            both = 0.9 if alone < 1.0 else 0.5
            return both if reads and is_laid_out else alone if reads else 0.95 if is_laid_out else 1.0

    choices = f'"{data}" = ["prefetch"]\n{LAYOUTS}'
    wanted = {data: "prefetch"} | ({layout: "channels_last"} if alone > 1.0 else {})
    found = chosen(tmp_path, choices, {}, make=Runner)[0]
    assert {path: value for path, value in found.items() if value != "contiguous"} == wanted


LAYOUTS = '"runtime.memory_format" = ["contiguous", "channels_last"]'


@pytest.mark.parametrize("searched", [True, False])
def test_larger_batches_have_a_say_where_they_are_searched(searched: bool, tmp_path: Path) -> None:
    class Runner(TimedRunner):
        def ratio(self, leaves: Mapping[str, Any]) -> float:
            is_larger, is_laid_out = leaves["batch.factor"] > 1.0, leaves["runtime.memory_format"] == "channels_last"
            return (0.4 if is_larger else 1.1) if is_laid_out else 1.0

    text = RUNTIME_STUDY.format(choices=LAYOUTS)
    if not searched:
        text = text.replace('"batch.factor" = [1.0, 2.0, 4.0]\n', "")
    runner, study = Runner(tmp_path, {}, "", lambda: None), optuna.create_study()
    choose_runtime(StepTimes(study, parse_study(text), runner))
    chosen = study.user_attrs["runtime_choice"]["values"].get("runtime.memory_format")
    assert chosen == ("channels_last" if searched else None)
    assert {one.leaves()["batch.factor"] for one in runner.configs} == ({1.0, 4.0} if searched else {1.0})


@pytest.mark.parametrize(
    ("choices", "factors"),
    [
        ('"runtime.threads" = [1]', {("runtime.threads", 1): 1.3}),
        (LAYOUTS, {("runtime.memory_format", "contiguous"): 1.1, ("runtime.memory_format", "channels_last"): 1.08}),
    ],
    ids=["slower", "no faster than its own noise"],
)
def test_what_is_not_surely_faster_than_the_task_as_given_is_not_chosen(
    choices: str, factors: dict[tuple[str, Any], float], tmp_path: Path
) -> None:
    assert chosen(tmp_path, choices, factors)[0] == {}


@pytest.mark.parametrize(("seconds", "today", "compiles"), [(0.1, "", True), (0.4, "", False), (0.4, 2000, True)])
def test_compiling_is_chosen_where_it_saves_more_than_it_takes(
    seconds: float, today: int | str, compiles: bool, tmp_path: Path
) -> None:
    """Of a run of 200 steps of 20 ms, of which set-ups take a third, or of today's training, of which it is a part."""

    class Runner(TimedRunner):
        def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
            found = super().run(job, monitor)
            is_compiled = isinstance(job, SpeedJob) and job.candidate[0].leaves()["runtime.compile"] == "default"
            return replace(found, cold_ms=1e3 * seconds) if is_compiled else found

    choices = '"runtime.compile" = ["off", "default"]' + (f"\n[set_up]\ntodays_steps = {today}" if today else "")
    values, _, _ = chosen(tmp_path, choices, {("runtime.compile", "default"): 0.8}, make=Runner)
    assert (values.get("runtime.compile") == "default") is compiles


def test_slow_first_steps_without_a_compiler_are_luck(tmp_path: Path) -> None:
    class Runner(TimedRunner):
        def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
            found = super().run(job, monitor)
            return replace(found, cold_ms=1e3) if isinstance(job, SpeedJob) else found

    values, _, _ = chosen(tmp_path, LAYOUTS, {("runtime.memory_format", "channels_last"): 0.8}, make=Runner)
    assert values == {"runtime.memory_format": "channels_last"}


@pytest.mark.parametrize("alone", [0.5, 1.1])
def test_graphs_are_tried_before_the_layout_and_if_they_lose_then_on_top_of_it(tmp_path: Path, alone: float) -> None:
    choices = '"runtime.cuda_graph" = [true]\n"runtime.memory_format" = ["contiguous", "channels_last"]'
    layout, graph = "runtime.memory_format", "runtime.cuda_graph"
    runner_factors = {(graph, True): alone, (layout, "channels_last"): 0.8}

    class Runner(TimedRunner):
        def ratio(self, leaves: Mapping[str, Any]) -> float:
            both = leaves[graph] and leaves[layout] == "channels_last"
            return 0.3 if both else super().ratio(leaves)

    values, runner, _ = chosen(tmp_path, choices, runner_factors, make=Runner)
    assert values == {graph: True, layout: "channels_last"}
    tried = list(dict.fromkeys((one.leaves()[graph], one.leaves()[layout]) for one in runner.configs))
    lost = [(False, "channels_last"), (True, "channels_last")]
    won = [(True, "channels_last")]
    assert tried == [(False, "contiguous"), (True, "contiguous"), *(won if alone < 1.0 else lost)]


def test_a_search_whose_time_is_over_keeps_what_it_has_chosen(tmp_path: Path) -> None:
    class Runner(TimedRunner):
        def ratio(self, leaves: Mapping[str, Any]) -> float:
            if leaves["runtime.memory_format"] == "channels_last":
                raise OutOfTimeError("over")
            return super().ratio(leaves)

    choices = '"runtime.cuda_graph" = [true]\n"runtime.memory_format" = ["contiguous", "channels_last"]'
    values, _, _ = chosen(tmp_path, choices, {("runtime.cuda_graph", True): 0.5}, make=Runner)
    assert values == {"runtime.cuda_graph": True}
    with pytest.raises(OutOfTimeError):  # with nothing chosen the next command asks again
        chosen(tmp_path, choices, {("runtime.cuda_graph", True): 1.5}, make=Runner)


def test_a_stop_while_choices_are_timed_leaves_them_to_the_next_command(tmp_path: Path) -> None:
    class Runner(TimedRunner):
        def ratio(self, leaves: Mapping[str, Any]) -> float:
            if leaves["runtime.memory_format"] == "channels_last":
                raise StudyStoppedError("stopped on request")
            return super().ratio(leaves)

    file, study = parse_study(RUNTIME_STUDY.format(choices=LAYOUTS)), optuna.create_study()
    with pytest.raises(StudyStoppedError, match="on request"):
        choose_runtime(StepTimes(study, file, Runner(tmp_path, {}, "", lambda: None)))
    assert "runtime_choice" not in study.user_attrs


@pytest.mark.parametrize("error", [AssertionError("256 samples"), KeyError(256)], ids=["assertion", "key"])
def test_a_network_that_refuses_larger_batches_in_its_own_way_ends_nothing(tmp_path: Path, error: Exception) -> None:
    class Runner(TimedRunner):
        def ratio(self, leaves: Mapping[str, Any]) -> float:
            if leaves["batch.factor"] > 1.0:
                raise error
            return super().ratio(leaves)

    values, _, _ = chosen(tmp_path, LAYOUTS, {("runtime.memory_format", "channels_last"): 0.8}, make=Runner)
    assert values == {"runtime.memory_format": "channels_last"}


@pytest.mark.parametrize(("first", "value"), [("runtime.cuda_graph", True), ("runtime.data", "resident")])
def test_what_a_fifth_of_the_time_does_not_reach_is_left_out_and_the_rest_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, value: Any
) -> None:
    passed = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])

    def ten_seconds() -> None:
        passed[0] += 10.0

    choices = f'"runtime.memory_format" = ["contiguous", "channels_last"]\n"{first}" = [{json.dumps(value)}]'
    factors = {(first, value): 0.5, ("runtime.memory_format", "channels_last"): 0.8}
    values, _, notes = chosen(tmp_path, choices, factors, limit=29.8, on_timed=ten_seconds)
    assert values == {first: value}
    assert notes == [
        f"Left out: {first} = {value}, runtime.memory_format = channels_last, because no time was left to measure it."
    ]


def test_what_computes_something_else_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    choices = '"runtime.memory_format" = ["contiguous", "channels_last"]\n"runtime.data" = ["resident"]'
    factors = {("runtime.data", "resident"): 0.5, ("runtime.memory_format", "channels_last"): 0.8}
    values, _, notes = chosen(tmp_path, choices, factors, wrong="runtime.data")
    assert values == {"runtime.memory_format": "channels_last"}
    assert notes == ["Left out: runtime.data = resident, because its losses differ."]


@pytest.mark.parametrize("is_fast", [False, True])
def test_bfloat16_is_timed_only_where_the_processor_has_instructions_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fast: bool
) -> None:
    monkeypatch.setattr(devices, "has_fast_bfloat16", lambda _device: is_fast)
    values, runner, notes = chosen(tmp_path, '"amp.level" = ["O0", "O2"]', {("amp.level", "O2"): 0.7})
    assert any(one.amp.level == "O2" for one in runner.configs) == is_fast
    assert values == ({"amp.level": "O2"} if is_fast else {})
    assert notes == (
        [] if is_fast else ["Left out: amp.level = O2, because this CPU has no instructions for bfloat16."]
    )


def test_one_reason_is_told_once_with_what_all_have_in_common_that_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_fast_bfloat16", lambda _device: False)
    choices = '"amp.level" = ["O0", "O2"]\n"runtime.memory_format" = ["contiguous", "channels_last"]'
    _, _, notes = chosen(tmp_path, choices, {("runtime.memory_format", "channels_last"): 0.7})
    assert notes == ["Left out: amp.level = O2, because this CPU has no instructions for bfloat16."]


def test_what_was_chosen_is_not_told_as_left_out_with_what_there_was_no_time_to_time_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def on_timed() -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(devices, "has_fast_bfloat16", lambda _device: True)
    choices = f'"amp.level" = ["O0", "O2"]\n{LAYOUTS}\n"runtime.cudnn_benchmark" = [true]'
    values, _, notes = chosen(tmp_path, choices, {("amp.level", "O2"): 0.5}, limit=3.0, on_timed=on_timed)
    assert (values["amp.level"], values["runtime.memory_format"]) == ("O2", "channels_last")
    assert notes == [
        "Left out: amp.level = O2, runtime.memory_format = channels_last, runtime.cudnn_benchmark = True, because no "
        "time was left to measure it."
    ]


def test_choices_that_act_together_alone_are_timed_together_and_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_fast_bfloat16", lambda _device: True)
    choices = f'"amp.level" = ["O0", "O2"]\n{LAYOUTS}\n"runtime.convolution" = ["library", "by_shape"]'
    factors = {("amp.level", "O2"): 1.2, ("runtime.convolution", "by_shape"): 0.5}
    values, runner, _ = chosen(tmp_path, choices, factors)
    assert (values["runtime.memory_format"], values["runtime.convolution"]) == ("channels_last", "by_shape")
    asked = [(one.amp.level, one.part(RuntimeSection)) for one in runner.configs]
    timed = dict.fromkeys((level, part.memory_format, part.convolution) for level, part in asked)
    assert [*timed][:2] == [("O0", "contiguous", "library"), ("O2", "channels_last", "by_shape")]
    assert len(timed) == 6, "without channels_last there is nothing to choose"


def test_what_a_sample_takes_in_larger_batches_decides_the_first_plans(tmp_path: Path) -> None:
    factors = {("runtime.memory_format", "channels_last"): 0.8, ("batch.factor", 4.0): 2.0}
    file, study = parse_study(RUNTIME_STUDY.format(choices=LAYOUTS)), optuna.create_study()
    runner = TimedRunner(tmp_path, factors, "", lambda: None)
    assert times_per_sample(study.user_attrs) == {}
    choose_runtime(StepTimes(study, file, runner))
    assert times_per_sample(study.user_attrs) == pytest.approx({1.0: 0.8, 4.0: 0.4})
    (best, length), (following, _) = first_batches([1.0, 2.0, 4.0], times_per_sample(study.user_attrs))
    assert (best, length, following) == (4.0, 0.8, 2.0)
    assert first_batches([1.0, 2.0], {1.0: 1.0, 4.0: 1.0})[0][0] == 1.0
    assert first_batches([], {1.0: 1.0}) == []
