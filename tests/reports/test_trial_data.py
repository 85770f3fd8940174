"""What the table of trials shows is the study's answer, as plain values."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from tests.reports.synthetic_study import candidate, fastest_study, full_study
from workbench.config import BoostConfig
from workbench.core.records import Choice, StudyResult, TrialRecord
from workbench.report.trial_data import reference_of, trial_data

OFF = BoostConfig().to_dict()
FREEZES = BoostConfig.from_dict(
    {"boost": {"mode": "manual", "grad_freeze": True, "less_bn": False}, "batch": {"factor": 4.0}}
).to_dict()


def study_of(*trials: TrialRecord, **changed: Any) -> StudyResult:
    return replace(full_study(), trials=list(trials), choices={}, candidates=[], **changed)


def configured() -> StudyResult:
    """Return O0 and one trial that freezes and merges batches."""
    return study_of(
        TrialRecord(0, "complete", metric=0.97, metric_deficit=0.0, value=1.0, config=OFF, relative_step_time=1.0),
        TrialRecord(1, "complete", "O1", metric=0.96, metric_deficit=0.01, value=0.5, config=FREEZES, feasible=True,
                    relative_step_time=0.5, relative_low=0.4, relative_high=0.8, run_path="runs/a",
                    parameters={"grad_freeze.freeze_p": 0.3, "level": "O1", "batch.factor": 4.0}),
    )  # fmt: skip


def test_a_row_has_its_numbers_its_parts_and_what_it_changes() -> None:
    data = trial_data(configured())
    base, row = data["trials"]
    assert (row["speed"], row["speed_low"], row["speed_high"]) == (2.0, 1.25, 2.5)
    assert (row["metric"], row["drop"], row["feasible"], row["run"]) == (0.96, 0.01, True, "runs/a")
    assert row["changes"]["batch.factor"] == 4.0
    assert "batch.factor" not in row["idle"]
    assert "boost.mode" in row["idle"]  # how a switch is said is no difference
    assert row["parts"] == ("Batch", "Gradient freezing")
    assert (base["parts"], base["changes"], base["feasible"]) == ((), {}, True)


def test_the_changes_and_the_base_are_the_whole_configuration() -> None:
    data = trial_data(configured())
    paths = {**data["base"], **data["trials"][1]["changes"]}
    again = BoostConfig().with_values({path: value for path, value in paths.items() if value is not None})
    assert again == BoostConfig.from_dict(FREEZES)


def test_freeze_p_is_shown_as_frozen_steps() -> None:
    data = trial_data(configured())
    column = next(one for one in data["columns"] if one["key"] == "grad_freeze.freeze_p")
    assert (column["title"], column["unit"], column["factor"]) == ("frozen steps", "%", 100)
    assert data["trials"][1]["grad_freeze.freeze_p"] == pytest.approx(0.7)  # 0.3 is the share of full steps
    keys = [one["key"] for one in data["columns"]]
    assert keys.count("level") == 1  # a column already


def test_what_is_not_known_is_null_in_valid_json() -> None:
    failed = TrialRecord(3, "failed", message="the loss became NaN", value=math.inf)
    data = trial_data(study_of(TrialRecord(0, "waiting"), failed))
    text = json.dumps(data, allow_nan=False)
    row = json.loads(text)["trials"][1]
    assert (row["state"], row["speed"], row["metric"], row["value"]) == ("failed", None, None, None)
    assert row["notes"] == ["the loss became NaN"]
    assert data["reference"] is None


def test_others_are_compared_with_the_exported_trial_else_the_best_that_keeps_the_quality() -> None:
    assert reference_of(fastest_study()) == 7
    data = trial_data(full_study())
    assert data["exported"] == {"o1": 1, "o2": 1}  # the synthetic candidates share a number
    assert reference_of(replace(full_study(), choices={})) == 7  # of those within the drop the lowest value
    taken = candidate(label="trial 3", trial_number=3)
    assert reference_of(replace(full_study(), choices={"o1": Choice("o1", taken, "Taken.")})) == 3


def test_many_configurations_are_rounded_where_one_file_has_to_hold_them() -> None:
    exact = BoostConfig.from_dict({"loss_scale": {"init": 1234567.0}}).to_dict()
    study = study_of(TrialRecord(0, "complete", config=OFF), TrialRecord(1, "complete", config=exact))
    assert trial_data(study)["trials"][1]["changes"]["loss_scale.init"] == 1234567.0
    assert trial_data(study, rounded=True)["trials"][1]["changes"]["loss_scale.init"] == 1234600.0


def test_a_long_curve_keeps_its_ends() -> None:
    curve = tuple((step, float(step)) for step in range(1, 2001))
    row = trial_data(study_of(TrialRecord(0, "complete", curve=curve)))["trials"][0]
    assert len(row["curve"]) == 100
    assert (row["curve"][0][0], row["curve"][-1][0]) == (1, 2000)
