"""``workbench tune TASK``: what it asks for, what it refuses, and one whole search of a real task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from workbench.study.ask.study_file import read_study

FOLDER = Path("studies/wine")


def test_a_task_that_does_not_say_how_long_it_is_trained_asks_for_it(workbench: Command) -> None:
    assert "how long is wine trained today? Say --steps N" in workbench("tune", "wine.py:task").refused()
    assert not FOLDER.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("tune no-such-task --steps 10", "unknown task 'no-such-task'"),
        ("tune digits-lenett --steps 10", "did you mean 'digits-lenet'?"),
        ("tune wine.py:nothing --steps 10", "nothing"),
        ("tune wine.py:task --steps 10 --allowed-drop x", "--allowed-drop must be a number or a share"),
        ("tune wine.py:task --steps 10 --allowed-drop=-1", "must be a number of at least 0 or a share"),
        ("tune wine.py:task --steps 10 --allowed-drop nan", "must be a number of at least 0 or a share"),
        ("tune wine.py:task --steps 10 --allowed-drop inf", "must be a number of at least 0 or a share"),
        ("tune wine.py:task --steps 10 --allowed-drop=-2%", "must be a number of at least 0 or a share"),
        ("tune wine.py:task --steps 10 --allowed-drop %", "must be a number of at least 0 or a share"),
        ("tune wine.py:task --steps 10 --epochs 2", "give only one of them"),
        ("tune wine.py:task --steps 10 --minutes 1 --timeout 60", "give only one of them"),
        ("tune wine.py:task --steps 1000000000 --minutes 0.1", "6 s is too short a time"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_sentence_before_anything_is_written(
    workbench: Command, arguments: str, sentence: str
) -> None:
    assert sentence in workbench(*arguments.split()).refused()
    assert not FOLDER.exists()


def test_what_is_for_a_task_is_not_for_a_study(workbench: Command, study: Path) -> None:
    assert "are for a task" in workbench("tune", study, "--steps", 5).refused()
    assert not (study / "study.db").exists()


@pytest.mark.slow
def test_a_task_is_searched_gone_on_with_and_asked_nothing_else(workbench: Command) -> None:
    asked = ("tune", "wine.py:task", "--steps", 24, "--allowed-drop", "0.02", "--minutes", 10, "--jobs", 1)
    first = workbench(*asked, "--trials", 2, "--confirm-seeds", 4)
    assert first.code == 0, first.err
    file = read_study(FOLDER)
    assert file.study.task.endswith("wine.py:task")
    assert (file.study.budget_steps, file.allowed_drop.o1) == (24, 0.02)
    for told in file.set_up.left_out:
        assert told in first.err + first.out
    assert (FOLDER / "result" / "boost_config.o1.json").exists()
    assert not (FOLDER / "result" / "boost_config.o2.json").exists()
    assert (FOLDER / "result" / "report.html").exists()
    status = json.loads(workbench("status", FOLDER, "--json").out)
    again = json.loads(workbench(*asked, "--trials", 3, "--json").out)
    assert len(again["trials"]) > len(status["trials"])
    assert again["trials"][0] == status["trials"][0], "the baseline is not trained again"
    for other in (("--steps", 12), ("--steps", 48), ("--epochs", 1), ("--allowed-drop", "0.5")):
        assert "--fresh starts a new one" in workbench("tune", "wine.py:task", *other).refused()
