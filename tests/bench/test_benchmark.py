"""A benchmark's answer: verdicts, what stands in the file, and which benchmarks are meant."""

from __future__ import annotations

import json
import os

import pytest

from workbench import devices
from workbench.bench import BENCHMARKS, BenchError, Benchmark, Estimate, Finding, Request, chosen, run_benchmark


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
    assert told["findings"] == [
        {
            "what": "a / b",
            "unit": "x",
            "value": 0.95,
            "low": 0.9,
            "high": 1.0,
            "rounds": 5,
            "goal": 1.02,
            "verdict": "met",
            "note": "",
        }
    ]
    assert told["command"] == "workbench bench toy --rounds 3"
    assert told["environment"]["versions"]["torch"]
    assert told["environment"]["device"]["torch_threads"] >= 1
    assert set(told["load_average"]) == {"before", "after", "cores"}
    assert not {"seed", "task", "level", "data_hash"} & set(told["environment"])


def test_a_benchmark_has_its_own_number_of_rounds() -> None:
    seen: list[int] = []
    assert run_benchmark(toy(seen)).command == "workbench bench toy --rounds 7"
    assert seen == [7]
    with pytest.raises(ValueError, match="`rounds` must be at least 1, got 0"):
        run_benchmark(toy(seen), 0)


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "hardware_summary", lambda: {"cpu_cores_usable": 2})
    monkeypatch.setattr(os, "getloadavg", lambda: (1.2, 9.0, 9.0))
    assert "load 1.2 on 2 cores" in run_benchmark(toy([])).warning
    monkeypatch.setattr(os, "getloadavg", lambda: (0.9, 9.0, 9.0))
    assert run_benchmark(toy([])).warning == ""


def test_without_names_the_quick_ones_are_meant() -> None:
    assert [b.name for b in chosen([])] == [b.name for b in BENCHMARKS.values() if b.quick]
    assert [b.name for b in chosen(["all"])] == list(BENCHMARKS)
    assert [b.name for b in chosen(["trace", "live_panel", "trace"])] == ["trace", "live_panel"]
    assert [b.name for b in chosen(["panels", "trace"])] == ["live_panel", "panel_handlers", "open_run", "trace"]


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(BenchError, match=r"no benchmark is called 'trase'; there are .*trace, .*, panels, or 'all'"):
        chosen(["all", "trase"])


def test_every_question_is_one_sentence() -> None:
    for name, entry in BENCHMARKS.items():
        assert entry.name == name
        assert entry.question.endswith("?")
        assert entry.question.count("?") == 1
