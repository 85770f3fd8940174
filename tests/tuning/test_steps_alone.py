"""Where a training is too long for a search of whole runs, what makes steps faster is timed, tested and exported."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.set_up_search import run, taken_of
from tests.kit.surface_runner import SurfaceRunner, scaled
from workbench.config import BoostConfig
from workbench.study import StudyError, StudyResult, TuneProgress, parse_study, read_result
from workbench.study.run.job import Agreement, AgreementJob, Job, SpeedJob, SpeedMeasured
from workbench.study.set_up.runtime_choice import steps_timed

STUDY = """
[study]
task = "fake"
budget_steps = 200
n_trials = 2
objective = "speed"
device = "cpu"
[allowed_drop]
o1 = 0.005
[baseline]
"boost.mode" = "disable_all"
"amp.dtype" = "bfloat16"
[pruner]
name = "none"
[set_up]
todays_steps = 50000
[set_up.runtime]
"amp.level" = ["O0", "O2"]
"runtime.memory_format" = ["contiguous", "channels_last"]
"runtime.compile" = ["off", "default"]
[confirm]
seeds_min = 10
seeds_max = 10
"""


def lowered_by(drop: float) -> Callable[[BoostConfig], float]:
    """Return a truth where amp O2, which takes 0.8 of the time, ends so much lower."""
    return lambda config: 0.9 - drop * (config.amp.level == "O2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "long").mkdir()
    (tmp_path / "long" / "study.toml").write_text(STUDY)
    return tmp_path / "long"


def searched(folder: Path, drop: float = 0.0, noise: float = 0.0005) -> tuple[StudyResult, SurfaceRunner]:
    runner = SurfaceRunner(folder, noise=noise, truth=lowered_by(drop))
    return run(folder, runner), runner


def test_the_fastest_of_what_was_timed_is_tested_and_exported(folder: Path) -> None:
    result, runner = searched(folder)
    taken, config = taken_of(result)
    assert (taken.verdict, config.amp.level) == ("confirmed", "O2")
    assert taken.speedup == pytest.approx(1.0 / 0.8, rel=0.05)
    assert "per step" in taken.sentence
    assert "Losses and first gradient agree with O0's within rounding" in taken.sentence
    assert "All this in runs of 200 of today's 50000 batches." in taken.sentence
    assert [one.number for one in result.trials] == [0, 1]
    assert read_result(folder).messages == result.messages
    timed = [job.candidate[0].leaves() for job in runner.jobs if isinstance(job, SpeedJob)]
    assert {one["batch.factor"] for one in timed} == {1.0}
    compiled = [one["runtime.compile"] != "off" for one in timed[:7]]  # then the trial's own
    assert compiled == sorted(compiled), "compiling takes longest"


def test_progress_counts_what_was_timed(folder: Path) -> None:
    told, seen = list[TuneProgress](), list[TuneProgress]()

    def before(job: Job[Any]) -> None:
        if isinstance(job, SpeedJob) and told[-1].phase == "timing":
            seen.append(told[-1])

    run(folder, SurfaceRunner(folder, truth=lowered_by(0.0), before=before), on_progress=told.append)
    assert [(one.done, one.total) for one in seen] == [(float(done), 7.0) for done in range(7)]
    phases = [phase for phase, _ in itertools.groupby(told, key=lambda one: one.phase)]
    assert phases == ["search", "timing", "search", "confirm", "export"]


def test_what_was_timed_is_told_fastest_first(folder: Path) -> None:
    (told,) = [one for one in searched(folder)[0].messages if "shares of O0's" in one]
    assert told.startswith("Mean steps that were timed, as shares of O0's: 0.80 amp O2 bfloat16")
    assert told.count(";") == 6, "seven besides O0"


def test_a_study_that_did_not_store_what_is_done_once_is_still_told() -> None:
    row = {"values": {"amp.level": "O2"}, "ratios": [0.8], "message": ""}
    laid_out = {"values": {"runtime.memory_format": "channels_last"}, "ratios": [0.9], "message": ""}
    told = steps_timed(parse_study(STUDY), {"runtime_choice": {"values": {}, "measured": [row, laid_out]}})
    assert told == "Mean steps that were timed, as shares of O0's: 0.80 amp O2 bfloat16; 0.90 channels_last."


@pytest.mark.parametrize(("seconds", "compiles"), [(10.0, True), (200.0, False)])
def test_compiling_is_chosen_where_today_s_training_saves_what_it_takes(
    folder: Path, seconds: float, compiles: bool
) -> None:
    """It takes a tenth off 50,000 steps of 20 ms."""

    def timed(job: SpeedJob, speed: SpeedMeasured) -> SpeedMeasured:
        is_compiled = job.candidate[0].leaves()["runtime.compile"] == "default"
        return replace(scaled(speed, 0.9), cold_ms=1e3 * seconds) if is_compiled else speed

    runner = SurfaceRunner(folder, noise=0.0005, truth=lowered_by(0.0), timed=timed)
    taken, config = taken_of(run(folder, runner))
    assert (config.leaves()["runtime.compile"] == "default") is compiles
    assert ("A training compiles for 10 s at its start." in taken.sentence) is compiles


def test_a_drop_by_luck_in_so_short_runs_keeps_nothing_from_being_exported(folder: Path) -> None:
    """Runs differ by far more than may be lost."""
    result, _ = searched(folder, noise=0.2)
    taken, config = taken_of(result)
    assert taken.drop > taken.allowed_drop
    assert (taken.verdict, config.amp.level) == ("undecided", "O2")


def test_what_surely_loses_too_much_is_not_exported(folder: Path) -> None:
    result, _ = searched(folder, drop=0.1)
    assert result.chosen == {"o1": "O0"}
    assert result.candidates[0].verdict == "refuted"


def test_what_computes_something_else_is_not_trained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = SurfaceRunner(folder, truth=lowered_by(0.0))
    usual = runner.run
    other = Agreement("its losses differ")
    monkeypatch.setattr(runner, "run", lambda job, *on: other if isinstance(job, AgreementJob) else usual(job, *on))
    result = run(folder, runner)
    assert result.chosen == {"o1": "O0"}
    assert "nothing that was timed makes its steps faster" in result.choice_sentences[0]
    assert len(result.trials) == 1


def test_the_same_command_times_nothing_again_and_another_choice_is_another_question(folder: Path) -> None:
    first, _ = searched(folder)
    again, runner = searched(folder)
    assert runner.jobs == []
    assert again.choices == first.choices
    text = (folder / "study.toml").read_text()
    (folder / "study.toml").write_text(text.replace('["off", "default"]', '["off"]'))
    with pytest.raises(StudyError, match="set_up"):
        searched(folder)


def test_of_an_earlier_version_such_a_study_still_draws_its_trials() -> None:
    """Version 0.6 and some after it searched for faster steps in the space of a study."""
    space: dict[str, Any] = {"amp.level": ["O0", "O2"]}
    earlier = parse_study(STUDY.split("[set_up.runtime]")[0] + '[space]\n"amp.level" = ["O0", "O2"]\n')
    assert (earlier.space, earlier.finds_steps_alone) == (space, False)
    assert "set_up" not in earlier.canonical()
