"""Where a gain comes from in the terminal, and what tune and status say of the fastest set-up."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.cli.test_output import terminal
from tests.reports.synthetic_study import PARTS, candidate, fastest_study
from workbench import study as tuning
from workbench.cli import app
from workbench.cli.study_commands import _print_result
from workbench.cli.waterfall import waterfall_rows
from workbench.core.records import GainPart
from workbench.study.store import status_file
from workbench.study.store.status_file import KeptStatus

TAKEN = candidate(label="trial 7", speedup=2.0, speedup_low=1.8, speedup_high=2.25)


def test_bars_follow_each_other_on_a_logarithmic_scale() -> None:
    parts = [GainPart("a", 2.0, 1.9, 2.1), GainPart("b", 2.0), GainPart("c", 0.25, 0.2, 0.3, note="Slower.")]
    # Alone, too, it may have no effect.
    rows = waterfall_rows([*parts, GainPart("d", 1.0, 0.9, 1.1, 1.02), GainPart("e", 1.0, 0.9, 1.1, 2.78)])
    assert [row[0] for row in rows] == ["█" * 12, " " * 12 + "░" * 12, "█" * 24, "█", "█", "█"]
    assert [row[1:] for row in rows] == [
        ("2.00 x", "1.90 to 2.10", "a"),
        ("2.00 x", "not by itself", "b"),
        ("0.25 x", "0.20 to 0.30", "c: Slower."),
        ("1.00 x", "0.90 to 1.10", "d: no sure effect: its interval includes 1"),
        ("1.00 x", "0.90 to 1.10", "e: no sure effect in this order, but 2.78 x where it alone is left out"),
        ("1.00 x", "", "all together"),
    ]


def test_the_whole_is_what_was_measured() -> None:
    assert waterfall_rows(PARTS, TAKEN)[-1][1:] == ("2.00 x", "1.80 to 2.25", "all together")
    unknown = candidate(speedup=float("nan"))
    assert waterfall_rows(PARTS, unknown)[-1][1:3] == ("2.00 x", "")


def test_a_terminal_without_blocks_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    rows = waterfall_rows(PARTS, TAKEN)
    assert all(row[0].isascii() for row in rows)
    assert "." in rows[1][0]


def test_tune_says_headline_candidates_parts_and_tuned_plain(capsys: pytest.CaptureFixture[str]) -> None:
    study = fastest_study()
    _print_result(study, json=False)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == f"o1: {study.headlines['o1']}"
    assert "speed per run" in lines[1]
    (plain_row,) = [line for line in lines if "tuned plain" in line and "reference" in line]
    assert "1.25 x" in plain_row
    assert "where the gain of o1 comes from, 1 x being the task as given:" in lines
    assert "not by itself batch x 4: Its runs do not bound the factor." in " ".join(out.split())
    assert all(len(line) <= 80 for line in lines[1:-1] if not line.startswith("o1: "))
    assert "the parts multiply" not in out


def test_a_row_of_the_waterfall_fits_into_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(monkeypatch, 80)
    _print_result(fastest_study(), json=False)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith("LessBN")]
    assert row.strip().startswith("█")
    assert len(row) <= 80


def status(*options: str) -> str:
    """Return what ``workbench status fastest`` prints."""
    return CliRunner().invoke(app, ["status", "fastest", *options], catch_exceptions=False).output


def test_status_says_who_is_at_work_and_in_which_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KeptStatus(fastest_study(), process=4711, phase="attribution", age_seconds=3.0)
    monkeypatch.setattr(status_file, "read_status", lambda _: known)
    assert "process 4711 is working on it (attribution); this is what it wrote 3 s ago" in status()
    at_work = json.loads(status("--json"))["at_work"]
    assert at_work == {"process": 4711, "phase": "attribution", "age_seconds": 3.0}


def test_status_says_what_its_speeds_are_of_and_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    study = replace(fastest_study(), messages=["Measured beside other work."])
    monkeypatch.setattr(tuning, "read_result", lambda *_, **__: study)
    out = status()
    assert "2 trials finished" in out
    assert "speed per run" in out
    assert "per step" not in out
    assert out.count(study.left_out[0]) == 1
    assert f"o1: {study.headlines['o1']}" in out
    told = json.loads(status("--json"))
    assert told["exports"]["o1"]["tuned_plain"]["speedup"] == 1.6
    assert [part["part"] for part in told["exports"]["o1"]["attribution"]] == [part.part for part in PARTS]


def test_the_next_command_names_the_storage_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it that command would begin the study again, in the folder; of the environment's it knows."""
    study = replace(fastest_study(), exported={})
    monkeypatch.setattr(tuning, "read_result", lambda *_, **__: study)
    where = "postgresql://me:secret@server/studies"
    assert "next: workbench tune fastest --storage 'postgresql://me:***@server/studies'" in status("--storage", where)
    monkeypatch.setenv("WORKBENCH_STORAGE", where)
    assert status().splitlines()[-1] == "next: workbench tune fastest"
