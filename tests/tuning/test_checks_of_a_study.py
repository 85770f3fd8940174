"""What a study measures beside its trials: policies that are trained to check a replay, and the limit of freezing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.fake_runner import LIMIT, STUDY, FakeRunner, calls, making, tuned, write_study
from workbench.study import export_study, tune
from workbench.study.ask.study_file import parse_study
from workbench.study.errors import StudyError
from workbench.study.run.job import UNMONITORED, FreezingLimitJob, Job, Monitor

SHORT = STUDY.replace("n_trials = 10", "n_trials = 4").split("[confirm]")[0] + "[confirm]\nenabled = false\n"
CHECK = (
    "\n[loss_scale_replay]\nsteps = 30\ninit_choices = [65536.0, 1048576.0]\nfactor_choices = [2.0]\n"
    "window_choices = [10, 20]\nfixed_choices = [67108864.0]\ncheck_policies = 5\n"
)


class Timed(FakeRunner):
    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if not isinstance(job, FreezingLimitJob):
            return super().run(job, monitor)
        config, level = job.candidate
        self.log(f"limit {job.rounds} {job.steps_per_block} {config.resolve(level).grad_freeze}")
        return LIMIT


def test_every_checked_policy_is_trained_once_and_stands_beside_its_prediction(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    policy = tuned(directory, SHORT + CHECK, trials=1, make_experimenter=making(Timed)).loss_scale_policy
    assert policy is not None
    checked: list[dict[str, Any]] = policy["checked"]
    assert [one["init"] for one in checked] == [2.0**16, 2.0**16, 2.0**20, 2.0**20, 2.0**26]
    assert {one["observed"] for one in checked} == {3}  # what the stand-in always wastes
    assert "Of 5 policies that were trained, 5 overflowed as often as their range says." in policy["sentence"]
    before = calls(directory)
    assert sum(line.startswith("trained") and "loss_scale_check" in line for line in before) == 5
    tune(directory, trials=1, make_experimenter=making(Timed))
    assert calls(directory) == before
    assert (directory / "result" / "boost_config.o1.json").exists()


def test_why_no_policy_was_chosen_is_said_by_tune_and_by_export(tmp_path: Path) -> None:
    """Of its float16 run nothing is recorded."""
    unrecorded = making(trained=lambda _, run: replace(run, path=""))
    result = tuned(tmp_path, SHORT + CHECK, trials=1, make_experimenter=unrecorded)
    assert result.loss_scale_policy is not None
    assert "nothing was recorded" in result.loss_scale_policy["failed"]
    assert result.loss_scale_policy["failed"] in result.messages
    assert export_study(tmp_path).messages == result.messages


def test_freezing_trials_alone_are_timed_beside_their_limit_and_once(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "s", SHORT + "\n[freezing_limit]\nrounds = 5\nsteps_per_block = 3\n")
    result = tune(directory, trials=3, make_experimenter=making(Timed))
    freezing = [t for t in result.trials if t.state == "complete" and t.seconds and "freezing" in t.summary]
    assert freezing
    assert [row["trial"] for row in result.freezing_limits] == [trial.number for trial in freezing]
    assert all(row["limit"] == 1.2 for row in result.freezing_limits)
    timed = [line for line in calls(directory) if line.startswith("limit")]
    assert timed == ["limit 5 3 True"] * len(freezing)
    tune(directory, trials=3, make_experimenter=making(Timed))
    assert [line for line in calls(directory) if line.startswith("limit")] == timed


def test_studies_begun_before_there_were_checks_ask_the_same() -> None:
    plain = parse_study(SHORT).canonical()
    assert "freezing_limit" not in plain
    unchecked = parse_study(SHORT + "\n[loss_scale_replay]\nsteps = 30\n").canonical()
    assert "check_policies" not in unchecked["loss_scale_replay"]
    assert parse_study(SHORT + CHECK).canonical()["loss_scale_replay"]["check_policies"] == 5


def test_a_limit_over_ranks_is_refused() -> None:
    text = SHORT.replace('task = "fake"', 'task = "fake"\nranks = 2') + "\n[freezing_limit]\n"
    with pytest.raises(StudyError, match="measured in one process"):
        parse_study(text)
