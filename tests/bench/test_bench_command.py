"""``workbench bench`` prints a table for people, one object for programs, and writes a file when asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command, here, workbench  # noqa: F401  # fixtures
from workbench.bench import questions
from workbench.core.other_work import OtherWork

QUESTION = """\
from workbench.bench import Benchmark, Estimate, Finding, Request


def measure(request: Request) -> list[Finding]:
    rounds = request.rounds
    print("said by a library")
    return [
        Finding("a / b", "x", Estimate(1.01, 1.0, 1.015, rounds), 1.02, "on nothing"),
        Finding("c", "s", Estimate(0.25, 0.2, 0.3, rounds), 0.1),
        Finding("d", "s", Estimate(2.5, 2.0, 3.0, rounds)),
        *([Finding("e / b", "x", None, None, "not installed", "absent")] if request.peers else []),
    ]


BENCHMARK = Benchmark({about})
"""


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Offer two questions that measure nothing, and a file that asks none, in place of the real folder."""
    folder = tmp_path / "questions"
    folder.mkdir()
    (folder / "a_toy.py").write_text(QUESTION.format(about='"quick", "Is it?", measure, 4, place=1, quick=True'))
    (folder / "another_toy.py").write_text(QUESTION.format(about='"long", "And this?", measure, 2'))
    (folder / "script.py").write_text("raise SystemExit('this asks no question')")
    monkeypatch.setattr(questions, "__path__", [str(folder)])


def test_the_table_has_value_interval_goal_and_verdict(workbench: Command) -> None:  # noqa: F811
    outcome = workbench("bench")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines.count("quick: Is it?") == 1
    assert "And this?" not in outcome.out
    rows = {line.split("  ")[0]: " ".join(line.split()) for line in lines}
    assert rows["a / b"] == "a / b 1.010 x 1.000 to 1.015 1.020 x met on nothing"
    assert rows["c"] == "c 250.0 ms 200.0 to 300.0 100.0 ms missed"
    assert rows["d"] == "d 2.500 s 2.000 to 3.000 - -"
    assert "cores" in lines[-1]
    assert "torch " in lines[-1]


def test_without_a_name_the_lines_for_users_are_printed_alone(workbench: Command, tmp_path: Path) -> None:  # noqa: F811
    about = '"quick", "Is it?", measure, 4, place=1, quick=True, shown=("a /", "d")'
    (tmp_path / "questions" / "with_lines.py").write_text(QUESTION.format(about=about.replace('"quick", ', '"own", ')))
    printed = workbench("bench").out.partition("own: Is it?")[2].partition("quick: Is it?")[0]
    assert "a / b" in printed
    assert "250.0 ms" not in printed
    assert "250.0 ms" in workbench("bench", "own").out


def test_a_busy_machine_is_told_before_anything_is_measured(
    workbench: Command,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OtherWork, "sentence", lambda self: "Other work keeps 1.5 of 2 cores busy")
    outcome = workbench("bench")
    assert outcome.out.index("Other work keeps 1.5 of 2 cores busy.") < outcome.out.index("said by a library")
    assert "Other work keeps" in workbench("bench", "--json").err


def test_json_is_one_object_whatever_is_printed(workbench: Command) -> None:  # noqa: F811
    outcome = workbench("bench", "long", "quick", "--rounds", 9, "--json")
    answers = json.loads(outcome.out)["answers"]
    assert [answer["name"] for answer in answers] == ["long", "quick"]
    assert answers[0]["findings"][0]["rounds"] == 9
    assert [found["verdict"] for found in answers[0]["findings"]] == ["met", "missed", ""]
    assert "said by a library" in outcome.err


def test_out_writes_a_file_per_benchmark(workbench: Command, here: Path) -> None:  # noqa: F811
    assert workbench("bench", "all", "--out", "made/result").code == 0
    files = sorted((here / "made" / "result").iterdir())
    assert [file.name for file in files] == ["long.json", "quick.json", "results.md"]
    written = json.loads(files[1].read_text())
    assert written["command"] == "workbench bench quick --rounds 4"
    assert written["findings"][0]["value"] == 1.01
    assert written["environment"]["versions"]


def test_list_names_every_benchmark_and_measures_nothing(workbench: Command) -> None:  # noqa: F811
    outcome = workbench("bench", "--list")
    assert outcome.code == 0
    assert [line.split()[:2] for line in outcome.out.splitlines()[2:]] == [["quick", "yes"], ["long", "no"]]
    assert "said by a library" not in outcome.out
    listed = json.loads(workbench("bench", "--list", "--json").out)["benchmarks"]
    assert listed[1] == {"name": "long", "question": "And this?", "quick": False}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("slow",), "workbench: no benchmark is called 'slow'; there are quick, long, or 'all'"),
        (("quick", "--rounds", 0), "workbench: '--rounds' must be at least 1, got 0; see `workbench bench --help`"),
    ],
)
def test_bad_input_is_one_sentence(workbench: Command, arguments: tuple[object, ...], sentence: str) -> None:  # noqa: F811
    outcome = workbench("bench", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.sentence.startswith(sentence[:50])


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_measured(
    workbench: Command,  # noqa: F811
    here: Path,  # noqa: F811
) -> None:
    (here / "taken").write_text("")
    outcome = workbench("bench", "--out", "taken")
    assert outcome.code == 2
    assert "taken" in outcome.sentence
    assert "said by a library" not in outcome.out


def test_a_peer_that_is_not_installed_is_said_to_be_absent(workbench: Command, here: Path) -> None:  # noqa: F811
    outcome = workbench("bench", "quick", "--peers", "--device", "cpu", "--out", "made")
    rows = {line.split("  ")[0]: " ".join(line.split()) for line in outcome.out.splitlines()}
    assert rows["e / b"] == "e / b - - - absent not installed"
    told = json.loads((here / "made" / "quick.json").read_text())
    assert told["findings"][-1]["value"] is None
    assert told["command"] == "workbench bench quick --rounds 4 --peers --device cpu"
