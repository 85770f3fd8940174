"""Progress: a bar on a terminal, a line now and then in a log, nothing in the way of a message."""

from __future__ import annotations

import itertools
import re
import sys

import pytest

from workbench.cli import progress
from workbench.cli.progress import progress_bar


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every look at the clock take one second."""
    seconds = itertools.count()
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(seconds)))


def shown(text: str) -> str:
    """Return what the last line of a terminal shows: colours and moves of the cursor are no text."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.rstrip("\n").split("\r")[-1]).strip("\n")


@pytest.mark.usefixtures("ticking")
def test_a_log_gets_a_line_now_and_then_and_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(100, "training") as bar:
        for step in range(1, 101):
            bar.update(step, note=f"loss {step}")
    lines = capsys.readouterr().err.splitlines()
    assert 5 <= len(lines) <= 11
    assert lines[0].startswith("training: ")
    assert " left, loss " in lines[0]
    assert lines[-1] == "training: 100 of 100, loss 100"


def test_the_time_left_leaves_out_what_was_waited_for_the_first_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress_bar(100, "loading") as bar:
        for clock[0], step in ((60.0, 10), (70.0, 20), (80.0, 30)):
            bar.update(step, text="training")
    assert capsys.readouterr().err.splitlines() == [
        "training: 10 of 100",
        "training: 20 of 100, 80 s left",
        "training: 30 of 100, 70 s left",
    ]


def test_a_new_phase_is_told_at_once_with_its_own_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(1, "loading") as bar:
        bar.update(2.9, 16, "search", "best trial 3", eta=75)
    assert capsys.readouterr().err == "search: 2 of 16, 75 s left, best trial 3\n"


def test_a_terminal_shows_done_time_left_and_best(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    with progress_bar(1, "loading") as bar:
        bar.update(2.9, 16, "search", "best trial 3", eta=75)
    last = shown(capsys.readouterr().err)
    assert last.startswith("search |")
    assert " 2/16 [" in last
    assert ", 75 s left, best trial 3]" in last


def test_a_bar_that_fails_makes_room_for_the_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(ValueError, match="wrong"), progress_bar(1, "loading"):
        raise ValueError("wrong")
    err = capsys.readouterr().err
    assert "loading |" in err
    assert shown(err) == ""
