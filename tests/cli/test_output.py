"""Tables are never cut off; JSON is one object that any reader accepts."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from workbench.cli.output import only_result_on_stdout, plain, print_json, print_table
from workbench.core.records import TrialRecord

COLUMNS = ("trial", "state", "in effect")
ROWS = [(0, "complete", "nothing switched on"), (1, "pruned", "LessBN + freezing (frozen steps: 30 %) [sic]")]


def terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Make stdout look like a terminal; not in a fixture, since pytest gives the test another stdout."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))


def test_a_file_has_a_line_per_row_and_what_does_not_fit_into_80_characters_beneath(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2
    assert lines[3].endswith("LessBN + freezing (frozen steps: 30 %) [sic]")
    words = " ".join(f"word{i}" for i in range(20))
    print_table(("trial", "x" * 60, "in effect"), [(0, "short", "nothing"), (1, "long", words)])
    head, under, rule, *rows = capsys.readouterr().out.splitlines()
    assert (head.split()[0], under, set(rule)) == ("trial", "    in effect", {"─"})
    assert [row.split() for row in rows[:3]] == [["0", "short"], ["nothing"], ["1", "long"]]
    assert " ".join(" ".join(rows[3:]).split()) == words
    assert all(len(line) <= 80 and line == line.rstrip() for line in (head, under, rule, *rows))


def test_a_file_keeps_a_row_together_where_its_first_columns_alone_do_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("run", "task", "finished"), [("r" * 60, "t" * 60, "yes"), ("r", "t", "no")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2
    assert lines[3].endswith("  no")
    words = " ".join(f"word{i}" for i in range(20))
    print_table(("run", "task", "in effect"), [("r" * 60, "t" * 60, words)])
    row, *beneath = capsys.readouterr().out.splitlines()[3:]
    assert row == f"{'r' * 60}  {'t' * 60}"
    assert " ".join(" ".join(beneath).split()) == words
    assert all(len(line) <= 80 for line in beneath)


def test_a_terminal_wraps_the_last_column(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(monkeypatch, 50)
    print_table(COLUMNS, ROWS)
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 50
    assert "…" not in out
    assert all(word in out for word in ("freezing", "30 %)", "[sic]"))


def test_a_narrow_terminal_gets_paragraphs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(monkeypatch, 14)
    print_table(COLUMNS, ROWS)
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.splitlines() == ["trial      0", "state      complete", "in effect  nothing switched on"]
    assert "in effect  LessBN + freezing (frozen steps: 30 %) [sic]" in second


def test_numbers_align_and_unknown_ones_are_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("metric", "x"), [(0.123456789, "a"), (math.nan, "b"), (None, "c")])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split()[0] for row in rows] == ["0.12346", "-", "-"]
    assert len({row.index(letter) for row, letter in zip(rows, "abc", strict=True)}) == 1


def test_json_has_no_nan_and_no_foreign_types(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"record": TrialRecord(0, "complete"), "path": Path("a/b"), "n": np.int64(3), "x": np.float32("inf")})
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told["path"] == "a/b"
    assert list(plain({2: (1, 2), 1: {"b": None}}).items()) == [("2", [1, 2]), ("1", {"b": None})]
    assert (told["n"], told["x"], told["record"]["metric"]) == (3, None, None)


def test_what_others_print_goes_to_stderr_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with only_result_on_stdout(True):
        print("noise")
    with only_result_on_stdout(False):
        print("speech")
    assert tuple(capsys.readouterr()) == ("speech\n", "noise\n")
