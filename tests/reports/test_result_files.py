"""The files of a result folder: every figure of the page is one of the records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd

from tests.reports.synthetic_study import fastest_study
from workbench.core.records import CandidateRecord, Choice, StudyResult, TrialRecord, Verdict
from workbench.report.result_files import results_page, write_result_files

BASE = TrialRecord(
    0, "complete", summary="nothing switched on", metric=0.98, metric_deficit=0.0, relative_step_time=1.0,
    relative_low=1.0, relative_high=1.0, steps_to_target=100.0, seconds=3.0, feasible=True, value=100.0,
)  # fmt: skip
FASTER = replace(
    BASE, number=1, parameters={"grad_freeze.freeze_p": 0.25, "level": "O1"}, summary="freezing",
    metric=0.97, metric_deficit=0.01, relative_step_time=0.8, relative_low=0.5, relative_high=1.0, value=80.0,
)  # fmt: skip
WORSE = replace(FASTER, number=3, parameters={"grad_freeze.freeze_p": 0.5, "level": "O1"}, feasible=False, overflows=7)
CANDIDATE = CandidateRecord(
    "trial 1", 1, "o1", "freezing", {}, 1.25, 1.0, 2.0, 0.0123, 0.02, 0.03, 5, Verdict.CONFIRMED, "Confirmed."
)
POLICY: dict[str, Any] = {
    "kind": "dynamic", "init": 1024.0, "factor": 2.0, "window": 20, "overflows": 9, "overflows_low": 8,
    "overflows_high": 11, "observed": 12, "underflow_share": 0.5, "metric": 0.9, "diverged": False,
}  # fmt: skip
FREEZING: dict[str, Any] = {
    "trial": 1, "freeze_type": 1, "freeze_p": 0.25, "param_groups": 4, "frozen_share": 0.75,
    "realised": 1.2, "realised_low": 1.1, "realised_high": 1.3, "limit": 1.5, "limit_low": 1.4, "limit_high": 1.6,
    "reached": 0.5, "reached_low": 0.4, "reached_high": 0.6,
}  # fmt: skip


def _study(**changes: Any) -> StudyResult:
    told: dict[str, Any] = {
        "name": "mine", "directory": Path("mine"), "task": "digits", "metric_name": "accuracy",
        "higher_is_better": True, "objective": "time_to_target", "n_trials": 3,
        "trials": [BASE, FASTER, WORSE], "candidates": [CANDIDATE],
        "choices": {
            "o1": Choice("o1", CANDIDATE, "trial 1 (freezing)."), "o2": Choice("o2", None, "O0 is exported: nothing."),
        },
    }  # fmt: skip
    return StudyResult(**{**told, **changes})


def test_a_candidate_stands_with_interval_drop_and_verdict() -> None:
    page = results_page(_study())
    measured = "1.25 (1.00 to 2.00) | 1.23 points worse | 2 points worse | 3 points | 5 | confirmed | yes"
    for told in (f"| o1 | trial 1 | freezing | {measured} |", "* o1: trial 1 (freezing).", "* o2: O0 is exported: no"):
        assert told in page
    for absent in ("Where the gain", "What was left out"):  # of another objective there are no parts
        assert absent not in page


def test_speed_is_the_inverse_of_the_step_time_ends_exchanged() -> None:
    page = results_page(_study())
    measured = "1.25 (1.00 to 2.00) | 97.00 % | 1 point | 100"
    assert f"| 1 | freezing | 0.25 | {measured} | 0 | within the allowed drop |" in page
    assert f"| 3 | freezing | 0.5 | {measured} | 7 | beyond the allowed drop |" in page


def test_what_never_differs_is_no_column() -> None:
    page = results_page(_study())
    assert "| trial | in effect | grad_freeze.freeze_p | speed per step, x O0 (95 %) |" in page
    assert "Written by `workbench tune mine`" in page


def test_a_table_of_trials_says_what_their_drops_are_of() -> None:
    assert "## Trials (one run each)\n" in results_page(_study())
    several = results_page(_study(objective="time_to_quality"))
    assert "## Trials (drop: the mean over a trial's seeds, each beside O0 on that seed)\n" in several


def test_of_many_trials_those_that_may_keep_the_quality_come_before_faster_ones_that_do_not() -> None:
    beyond = [replace(WORSE, number=2 + at, metric_deficit=0.9, chance=0.0, value=1.0) for at in range(60)]
    unsure = replace(WORSE, number=99, summary="nearly", chance=0.5, allowed_drop=0.02)
    page = results_page(_study(trials=[BASE, *beyond, unsure]))
    assert "| 99 | nearly |" in page
    assert "within the drop, but not surely |" in page


def test_a_prediction_outside_its_range_is_called_so() -> None:
    checked = [POLICY, {**POLICY, "observed": 11}]
    page = results_page(_study(loss_scale_policy={"sentence": "Chosen.", "checked": checked}))
    assert "| dynamic | 2^10 | 2 | 20 | 9 (8 to 11) | 12 | no | 0.5 | 0.9 |" in page
    assert "| 9 (8 to 11) | 11 | yes |" in page


def test_no_text_of_a_file_becomes_markup_or_steers_a_terminal() -> None:
    evil = "<script>alert(1)</script>\x1b[2J"
    told = replace(CANDIDATE, summary=evil)
    page = results_page(
        _study(name=evil, task=evil, left_out=[evil], candidates=[told], choices={"o1": Choice("o1", told, evil)})
    )
    assert "<script" not in page
    assert "\x1b" not in page
    assert page.count("&lt;script>alert(1)&lt;/script>\\x1b[2J") >= 5


def test_freezing_stands_beside_its_limit() -> None:
    page = results_page(_study(freezing_limits=[FREEZING, {**FREEZING, "reached": None}]))
    assert "| 75 % | 1.20 (1.10 to 1.30) | 1.50 (1.40 to 1.60) | 0.50 (0.40 to 0.60) |" in page
    assert "| unknown |" in page


def test_files_are_whole_and_those_of_an_earlier_question_go(tmp_path: Path) -> None:
    trials = [BASE, FASTER, replace(BASE, number=2, state="failed"), WORSE]
    beside: dict[str, Any] = {"freezing_limits": [FREEZING], "loss_scale_policy": {"checked": [POLICY]}}
    write_result_files(tmp_path, _study(trials=trials, **beside))
    for picture in ("speed_accuracy", "freezing_limit", "replay_check"):
        ElementTree.fromstring((tmp_path / f"{picture}.svg").read_text())
    assert list(pd.read_csv(tmp_path / "trials.csv")["number"]) == [0, 1, 3]
    write_result_files(tmp_path, _study())
    assert {path.name for path in tmp_path.iterdir()} == {"results.md", "trials.csv", "speed_accuracy.svg"}


def test_a_study_without_candidates_says_why_and_has_no_empty_table() -> None:
    choices = {"o1": Choice("o1", None, "O0 is exported: 3 set-ups were tried.")}
    page = results_page(_study(candidates=[], choices=choices))
    assert "* o1: O0 is exported: 3 set-ups were tried." in page
    assert "## Candidates" not in page


def test_the_fastest_set_up_is_told_with_its_parts_and_its_references() -> None:
    study = fastest_study()
    page = results_page(study)
    assert "per step" not in page
    for told in (
        f"**o1: {study.headlines['o1']}**",
        "speed per run, x O0 (95 %)",
        "| o1 | tuned plain | length 0.8 | 1.25 | 0.2 points worse |",
        "| schedule x 0.5 | 2.00 | 1.80 to 2.20 | 1.90 |  |",
        "| batch x 4 | 1.25 | not measured by itself |  | Its runs do not bound the factor. |",
        "| all parts together | 2.00 |",
        "| whole runs of trial 7, measured | 2.00 | 1.80 to 2.25 |",
        "* torch.compile: it does not pay for itself within the time.",
    ):
        assert told in page


def test_the_still_picture_says_what_its_speed_is_of(tmp_path: Path) -> None:
    write_result_files(tmp_path, fastest_study())
    picture = (tmp_path / "speed_accuracy.svg").read_text()
    assert "speed per run, x O0" in picture
    assert "tuned plain: length 0.8" in picture
