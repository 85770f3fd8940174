"""Recorded runs are sent to mirrors once, and anew where they were not whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mirrors.fake_mirror import SUMMARY, FakeMirror, record_run, values_of
from workbench.runs import RunError
from workbench.runs.mirrors import MirrorError, MirrorFailedError, mirror_runs
from workbench.runs.mirrors import recorded as recorded_module


def test_a_recorded_run_arrives_as_a_live_one_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_module, "_BLOCK", 7)
    mirror = FakeMirror()
    path = record_run(tmp_path)
    assert mirror_runs(path, [mirror]) == {path: ["a fake"]}
    assert [step for step, _ in values_of(mirror.points, "training/loss")] == list(range(40))
    assert [accuracy for _, accuracy in values_of(mirror.points, "evaluation/accuracy")] == [0.75, 0.875]
    assert [event.step for event in mirror.events] == [9]
    assert mirror.points[-2].values["loss_scale/overflows"] == 4.0
    assert mirror.summaries[0]["metric"] == SUMMARY["metric"]
    assert mirror.runs[0].parameters["grad_freeze.freeze_p"] == 0.7
    assert "dim_reduce.rho" not in mirror.runs[0].parameters


def test_of_a_folder_what_is_new_or_was_going_on_is_sent(tmp_path: Path) -> None:
    mirror = FakeMirror()
    first = record_run(tmp_path, "first")
    assert mirror_runs(tmp_path, [mirror]) == {first: ["a fake"]}
    second = record_run(tmp_path, "second", finished=False)
    for _ in range(2):
        assert mirror_runs(tmp_path, [mirror]) == {first: [], second: ["a fake"]}


def test_runs_of_a_study_are_below_its_name(tmp_path: Path) -> None:
    study = tmp_path / "tiny"
    record_run(study / "runs", "trial_0001")
    (study / "study.toml").touch()
    mirror = FakeMirror()
    mirror_runs(study, [mirror])
    assert mirror.runs[0].name == "tiny/trial_0001"


def test_a_mirror_that_fails_says_which_run_and_no_password(tmp_path: Path) -> None:
    path = record_run(tmp_path)
    with pytest.raises(MirrorFailedError, match=r"could not be mirrored to a fake as a whole: https://me:\*\*\*@"):
        mirror_runs(path, [FakeMirror(fails_at=1)])


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        mirror_runs(tmp_path / "missing", [FakeMirror()])
    with pytest.raises(MirrorError, match="holds no runs"):
        mirror_runs(tmp_path, [FakeMirror()])
