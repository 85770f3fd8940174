"""What a study has found, in the panel's words and curves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.panels.recorded_runs import recorded_run
from workbench.core.records import TrialRecord
from workbench.panels.study_answer import curve_of

TRIAL = TrialRecord(
    3, "complete", relative_step_time=0.25, curve=((100, 0.9),), run_path="run", metric=0.9, summary="batch x 4"
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the folder of a study whose trial took 20 steps of its own, for the 100 of the task."""
    recorded_run(tmp_path, 20)
    return tmp_path


def test_a_whole_run_ends_at_its_share_of_the_baselines_time(directory: Path) -> None:
    curve = curve_of(TRIAL, directory, "time_to_quality")
    assert curve.relative_step_time * 20 == pytest.approx(0.25 * 100)
    assert curve.evaluations == ((20, 0.9),)


def test_a_step_of_another_objective_is_as_long_as_it_was_measured(directory: Path) -> None:
    curve = curve_of(TRIAL, directory, "speed")
    assert (curve.relative_step_time, curve.evaluations) == (0.25, ((100, 0.9),))
