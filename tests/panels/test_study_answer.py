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


@pytest.mark.parametrize(
    ("objective", "relative_step_time", "end"), [("time_to_quality", 0.25 * 100 / 20, 20), ("speed", 0.25, 100)]
)
def test_a_whole_run_ends_at_its_share_of_the_baselines_time_and_another_step_is_as_long_as_it_was_measured(
    tmp_path: Path, objective: str, relative_step_time: float, end: int
) -> None:
    recorded_run(tmp_path, 20)  # steps of its own, for the 100 of the task
    curve = curve_of(TRIAL, tmp_path, objective)
    assert curve.relative_step_time == pytest.approx(relative_step_time)
    assert curve.evaluations == ((end, 0.9),)
