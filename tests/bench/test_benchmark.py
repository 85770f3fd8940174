"""A benchmark's answer: verdicts, what stands in the file, and which benchmarks are meant."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from types import SimpleNamespace

import psutil
import pytest

from workbench.bench import BenchError, Benchmark, Estimate, Finding, Request, benchmarks, chosen, run_benchmark
from workbench.core import devices


def finding(low: float, high: float, goal: float | None) -> Finding:
    return Finding("a / b", "x", Estimate((low + high) / 2, low, high, 5), goal)


@pytest.mark.parametrize(
    ("low", "high", "goal", "verdict"),
    [
        (0.9, 1.0, 1.0, "met"),
        (0.9, 1.001, 1.0, "unclear"),
        (1.0, 1.1, 1.0, "unclear"),
        (1.001, 1.1, 1.0, "missed"),
        (0.9, 1.1, None, ""),
    ],
)
def test_a_goal_is_met_or_missed_only_by_the_whole_interval(
    low: float, high: float, goal: float | None, verdict: str
) -> None:
    assert finding(low, high, goal).verdict == verdict


def toy(rounds_seen: list[int]) -> Benchmark:
    def measure(request: Request) -> list[Finding]:
        rounds_seen.append(request.rounds)
        return [finding(0.9, 1.0, 1.02)]

    return Benchmark("toy", "Is it quick?", measure, 7)


def test_an_answer_tells_numbers_machine_versions_and_load() -> None:
    seen: list[int] = []
    answer = run_benchmark(toy(seen), 3)
    told = json.loads(json.dumps(answer.to_dict()))
    assert seen == [3]
    numbers = {"value": 0.95, "low": 0.9, "high": 1.0, "rounds": 5, "goal": 1.02}
    assert told["findings"] == [{"what": "a / b", "unit": "x", **numbers, "verdict": "met", "note": ""}]
    assert told["command"] == "workbench bench toy --rounds 3"
    assert told["environment"]["versions"]["torch"]
    assert told["environment"]["device"]["torch_threads"] >= 1
    assert set(told["load_average"]) == {"before", "after", "cores"}
    assert told["cores_of_others"] >= 0.0
    assert not {"seed", "task", "level", "data_hash"} & set(told["environment"])


def test_a_benchmark_has_its_own_number_of_rounds() -> None:
    seen: list[int] = []
    assert run_benchmark(toy(seen)).command == "workbench bench toy --rounds 7"
    assert seen == [7]
    with pytest.raises(ValueError, match="`rounds` must be at least 1, got 0"):
        run_benchmark(toy(seen), 0)


def test_what_others_do_meanwhile_is_told_and_own_work_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, machine, own, child = [0.0], [100.0], [7.0], [1.0]

    class Process:
        def __init__(self, seconds: list[float]) -> None:
            self._seconds = seconds

        def cpu_times(self) -> SimpleNamespace:
            return SimpleNamespace(user=self._seconds[0], system=0.25, children_user=0.5, children_system=0.0)

        def children(self, recursive: bool) -> list[Process]:
            assert recursive
            return [Process(child)]

    def measure(request: Request) -> list[Finding]:
        clock[0] += 2.0
        machine[0] += 3.5  # of which 1 in this process and 1 in a child
        own[0] += 1.0
        child[0] += 1.0
        return []

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    cores = lambda percpu: [SimpleNamespace(user=machine[0], system=5.0, steal=0.5, idle=1e9)] * percpu  # noqa: E731
    monkeypatch.setattr(psutil, "cpu_times", cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    monkeypatch.setattr(psutil, "Process", lambda: Process(own))
    monkeypatch.setattr(devices, "usable_cores", lambda: 2)
    answer = run_benchmark(Benchmark("toy", "?", measure, 1))
    assert answer.cores_of_others == pytest.approx(0.75)
    assert "others took 0.8 of 2 cores while toy ran" in answer.warning
    assert answer.to_dict()["cores_of_others"] == 0.75


@pytest.mark.parametrize(("others", "busy"), [(0.19, False), (0.21, True)])
def test_a_tenth_of_the_cores_is_a_busy_machine(others: float, busy: bool) -> None:
    answer = dataclasses.replace(run_benchmark(toy([])), load_average={"cores": 2}, cores_of_others=others)
    assert bool(answer.warning) is busy


def test_without_names_the_quick_ones_are_meant() -> None:
    assert [b.name for b in chosen([])] == [b.name for b in benchmarks().values() if b.quick]
    assert [b.name for b in chosen(["all"])] == list(benchmarks())
    assert [b.name for b in chosen(["trace", "live_panel", "trace"])] == ["trace", "live_panel"]
    assert [b.name for b in chosen(["panels", "trace"])] == ["live_panel", "panel_handlers", "open_run", "trace"]


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(BenchError, match=r"no benchmark is called 'trase'; there are .*trace, .*, panels, or 'all'"):
        chosen(["all", "trase"])


def test_every_question_is_one_sentence() -> None:
    for name, entry in benchmarks().items():
        assert entry.name == name
        assert entry.question.endswith("?")
        assert entry.question.count("?") == 1
