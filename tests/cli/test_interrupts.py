"""Ctrl-C: exit code 130, everything finished is saved, and the message says which command continues."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.kit.processes import start_command
from workbench.cli.interrupts import stop_on_ctrl_c
from workbench.core.signals import Handler, handling_signals
from workbench.runs import find_runs, read_run

_PATIENCE_SECONDS = 60.0


def _interrupted(
    command: list[str], ready: Callable[[], bool], by: signal.Signals = signal.SIGINT
) -> tuple[int | None, str, str]:
    """Run a command, press Ctrl-C or send another signal once it is at work; return exit code, stdout and stderr."""
    said = Path("said")
    process = start_command(command, said)
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (at_work := ready()) and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert at_work, "it was never at work"
        assert process.pid is not None
        os.kill(process.pid, by)
        process.join(_PATIENCE_SECONDS)
    finally:
        process.kill()
    return process.exitcode, *(said.with_suffix(ending).read_text() for ending in (".out", ".err"))


def _recording(folder: Path) -> bool:
    """Return whether a run below the folder has steps on the disk."""
    return any(path.stat().st_size for path in folder.rglob("steps.jsonl"))


@pytest.mark.slow
def test_ctrl_c_ends_a_training_with_its_steps_recorded(here: Path) -> None:
    command = ["train", "--task", "wine.py", "--steps", "10000000", "--device", "cpu", "--evaluate-every", "500"]
    code, out, err = _interrupted(command, lambda: _recording(here))
    assert code == 130, err
    assert "Traceback" not in err
    (path,) = find_runs(here / "runs")
    run = read_run(path)
    assert run.finished
    assert run.summary["state"] == "stopped"
    assert len(run.steps) == run.summary["steps"] > 0
    assert f"interrupted; the {len(run.steps)} steps so far are recorded in runs/{path.name}" in err
    assert f"recorded in runs/{path.name}" in out


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_ctrl_c_ends_a_study_that_the_same_command_continues(
    by: signal.Signals, here: Path, study: Path, workbench: Command
) -> None:
    file = study / "study.toml"
    file.write_text(file.read_text().replace("budget_steps = 12", "budget_steps = 3000"))
    code, out, err = _interrupted(["tune", str(study)], lambda: _recording(study), by)
    assert code == 130, err
    assert "Traceback" not in err
    assert "interrupted; everything finished is saved, `workbench tune study` continues" in err
    assert out == ""
    status = workbench("status", study)
    assert "running" not in status.out
    assert "next: workbench tune study" in status.out


def test_a_first_ctrl_c_asks_for_a_stop_and_a_second_raises(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_ctrl_c() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        assert "Ctrl-C again stops at once" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_while_comparing_says_what_is_kept(
    workbench: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench import api

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "compare", interrupted)
    outcome = workbench("compare", "a.json", "--task", "wine.py", "--out", "kept")
    assert outcome.code == 130
    assert "the runs so far are recorded in kept" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.skipif(os.name == "nt", reason="no such signals")
@pytest.mark.parametrize(
    ("number", "on_ctrl_c"),
    [
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_IGN),  # so a shell starts its background jobs
        (signal.SIGHUP, signal.default_int_handler),
    ],
)
def test_whatever_ends_a_command_is_ctrl_c_to_every_one_although_it_expects_none(
    number: signal.Signals, on_ctrl_c: Handler, workbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.core import doctor

    monkeypatch.setattr(doctor, "examine", lambda: signal.raise_signal(number))
    handlers = {number: signal.SIG_DFL, signal.SIGINT: on_ctrl_c}  # SIGHUP is ignored under nohup, and stays so
    with handling_signals(handlers):
        outcome = workbench("doctor")
    assert outcome.code == 130
    assert outcome.err.startswith("interrupted; ")
