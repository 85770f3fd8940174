"""The whole way of a study with a fake in the place of training: resume, kill -9, edits, verdicts, files."""

from __future__ import annotations

import errno
import itertools
import json
import math
import random
import shutil
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from optuna.trial import TrialState
from sqlalchemy import Engine, event

from tests.kit.database import without_seals
from tests.kit.fake_runner import (
    SEARCH,
    SHORT,
    STUDY,
    calls,
    make_fake,
    make_slow_fake,
    making,
    stored_trials,
    tuned,
    write_study,
)
from tests.kit.processes import kill, start, wait_until
from tests.tuning.ended_study import Ended, ended
from workbench.config import BoostConfig
from workbench.core.files import DiskFullError
from workbench.core.other_work import OtherWork
from workbench.core.records import Verdict
from workbench.runs import TelemetryError
from workbench.study import (
    StudyBusyError,
    StudyChangedError,
    StudyError,
    StudyFailedError,
    StudyStoppedError,
    TuneProgress,
    export_study,
    read_result,
    tune,
)
from workbench.study.ask.study_file import read_study
from workbench.study.run.experimenter import MakeExperimenter
from workbench.study.run.job import Job, Trained, TrainJob
from workbench.study.store.storage import beside_others, default_storage, holding_study, open_storage
from workbench.study.store.stored_records import keep_candidates

UNCONFIRMED = STUDY.replace("[confirm]", "[confirm]\nenabled = false")


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return ended(tmp_path_factory.mktemp("short") / "s", SHORT)


@pytest.fixture(scope="module")
def two_trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two trials") / "s"
    tuned(folder, SEARCH, trials=2)
    return folder


@pytest.fixture
def begun(two_trials: Path, tmp_path: Path) -> Path:
    """Return the folder of a study that has run two of its four trials, the test's own copy."""
    return shutil.copytree(two_trials, tmp_path / "s")


@pytest.fixture
def finished(short: Ended, tmp_path: Path) -> Path:
    """Return the folder of a study of four trials that has run to its end, the test's own copy."""
    return shutil.copytree(short[0], tmp_path / "s")


def test_the_sampler_learns_from_the_trials_before(whole: Ended) -> None:
    # Optuna's TPE leaves a mark where it has modelled; one that sees no finished trial draws at random for ever.
    modelled = [any(key.startswith("tpe:") for key in one.system_attrs) for one in stored_trials(whole[0])]
    assert modelled == [number >= modelled.index(True) for number in range(len(modelled))]
    assert modelled.index(True) <= 5


def test_a_study_ends_with_two_valid_files_a_table_and_sentences(whole: Ended) -> None:
    directory, result, progress = whole
    assert len(result.trials) == 10
    assert result.trials[0].level == "O0"
    assert result.trials[0].relative_step_time == 1.0
    assert {"o1", "o2"} == set(result.exports)
    for target, level in (("o1", "O1"), ("o2", "O2")):
        told = result.exports[target]
        assert (told["label"], told["path"]) == (result.chosen[target], result.exported[target])
        assert told["sentence"] == result.choices[target].sentence
        config = BoostConfig.from_json(result.exported[target])
        assert config.boost.mode == "manual"
        assert config.provenance is not None
        assert config.provenance["candidate"] == result.chosen[target]
        assert config.provenance["sentence"] == result.choices[target].sentence
        if result.chosen[target] == "O0":
            continue
        chosen = [one for one in result.candidates if one.target == target and one.label == result.chosen[target]]
        assert config.resolve(level).key() == BoostConfig.from_dict(chosen[0].config).resolve(level).key()
        assert chosen[0].sentence in config.provenance["sentence"]
        assert f'boost_level="{level}"' in config.provenance["mindspore"]
    assert set(result.chosen.values()) != {"O0"}
    table = (directory / "result" / "candidates.csv").read_text(encoding="utf-8")
    assert table.count("\n") == 1 + len(result.candidates)
    environment = json.loads((directory / "result" / "environment.json").read_text(encoding="utf-8"))
    assert environment["versions"] == {"fake": "1"}
    phases = [one.phase for one in progress]
    assert [phase for phase, _ in itertools.groupby(phases)] == ["search", "confirm", "export"]
    assert all(0.0 <= one.done <= one.total for one in progress)
    assert 0.5 in [one.done for one in progress]  # steps of a run move it
    assert progress[-1].done == progress[-1].total
    searching = [one.best for one in progress if one.phase == "search" and one.best]
    assert searching[-1].startswith(f"o1: {result.candidates[0].label}, ")
    assert {one.best for one in progress if one.phase in {"confirm", "export"}} == {""}, "the confirmation decides"


def test_the_repeat_of_an_equal_plan_is_neither_trained_nor_counted_nor_shown(whole: Ended) -> None:
    directory, result, _ = whole
    searched = [line.split()[1] for line in calls(directory) if line.startswith("trained") and "trial_" in line]
    assert len(searched) == len(set(searched))
    repeated = [trial for trial in stored_trials(directory) if "repeats" in trial.user_attrs]
    assert repeated  # with a level and two switches among ten trials there are always some
    assert len(result.trials) == 10
    assert not {trial.number for trial in result.trials} & {trial.number for trial in repeated}


def test_all_trials_are_scored_at_one_target_whatever_their_level(tmp_path: Path) -> None:
    text = SEARCH.replace('"O0", "O1", "O2"', '"O1", "O2"').replace('"boost.grad_freeze" = [false, true]', "")
    text = text.replace('"grad_freeze.freeze_p" = { low = 0.3, high = 0.9 }', '"grad_freeze.freeze_p" = [0.6]')
    result = tuned(tmp_path, text)
    by_plan: dict[str, set[float]] = {}
    levels = set()
    for trial in stored_trials(tmp_path):
        levels.add(trial.user_attrs["level"])
        by_plan.setdefault(trial.user_attrs["plan_key"], set()).add(round(trial.values[0], 9))
        assert trial.user_attrs["allowed_drop"] == 0.02
    assert levels == {"O0", "O1", "O2"}
    assert all(len(values) == 1 for values in by_plan.values())  # an equal plan is worth the same at O1 and O2
    assert {trial.allowed_drop for trial in result.trials} == {0.02}


def test_the_export_with_another_drop_asks_its_question_of_the_same_trials(tmp_path: Path) -> None:
    text = SEARCH.replace("o1 = 0.02\no2 = 0.05", "o2 = 0.05")
    result = tuned(tmp_path, text, trials=2)
    assert result.allowed_drops == {"o1": 0.005, "o2": 0.05}
    assert {trial.allowed_drop for trial in result.trials} == {0.05}  # the search aims at the drop that is named
    assert {one.allowed_drop for one in result.candidates if one.target == "o1"} <= {0.005}


def test_a_study_whose_trials_were_scored_at_two_drops_is_refused_but_read_anew(finished: Path) -> None:
    study = optuna.load_study(study_name=read_study(finished).study.name, storage=default_storage(finished))
    before = read_result(finished)
    at_o2 = next(trial for trial in study.trials if trial.user_attrs.get("level") == "O2")
    without_seals(finished)
    with sqlite3.connect(finished / "study.db") as database:
        database.execute(
            "UPDATE trial_user_attributes SET value_json = '0.05' WHERE key = 'allowed_drop' AND trial_id = ?",
            (at_o2._trial_id,),
        )
        database.execute("UPDATE trial_values SET value = 1.0 WHERE trial_id = ?", (at_o2._trial_id,))
    with pytest.raises(StudyChangedError, match=rf"one trial was scored at another .* trial {at_o2.number}\)"):
        tuned(finished)
    assert read_result(finished).trials == before.trials  # scored from what was measured


def test_diverged_trials_are_finite_infeasible_and_never_chosen(tmp_path: Path) -> None:
    text = SHORT.replace("low = 0.3, high = 0.9", "low = 0.3, high = 0.349")
    text = text.replace('"boost.grad_freeze" = [false, true]', '"boost.grad_freeze" = [true]')
    result = tuned(tmp_path / "s", text)
    diverged = [trial for trial in result.trials if "NaN" in trial.message]
    assert diverged
    for trial in diverged:
        assert trial.state == "complete"
        assert math.isfinite(trial.value)
        assert not trial.feasible
    for trial in stored_trials(tmp_path / "s"):
        assert math.isfinite(trial.constraints["metric_deficit"])
    assert result.chosen == {"o1": "O0", "o2": "O0"}
    told = "o1: O0 is exported: no set-up was faster than O0 within the allowed accuracy drop "
    assert result.messages[0].startswith(told)
    assert not any(BoostConfig.from_json(result.exported["o2"]).resolve("O2").in_effect())


def test_the_same_command_continues_and_trains_nothing_twice(begun: Path) -> None:
    first, before = read_result(begun), calls(begun)
    second = tuned(begun)
    assert second.trials[: len(first.trials)] == first.trials
    assert len(second.trials) == 4
    after = calls(begun)
    tuned(begun)
    assert calls(begun) == after
    trained = [line for line in after if line.startswith("trained")]
    assert len(set(trained)) == len(trained)  # no plan and seed was ever trained twice
    assert after[: len(before)] == before


def test_a_folder_that_was_moved_and_renamed_goes_on(finished: Path, tmp_path: Path) -> None:
    before = [(one.number, one.params, one.values) for one in stored_trials(finished)]
    there = tmp_path / "elsewhere" / "renamed"
    there.parent.mkdir()
    finished.rename(there)
    trained = len(calls(there))
    tuned(there)
    assert len(calls(there)) == trained, "all of it was there"
    tuned(there, trials=5)
    assert len(calls(there)) > trained
    after = [(one.number, one.params, one.values) for one in stored_trials(there)]
    assert len(after) > len(before)
    assert after[: len(before)] == before
    assert len(optuna.get_all_study_names(default_storage(there))) == 1


def test_a_study_may_lie_in_a_folder_of_any_name(tmp_path: Path) -> None:
    name = "50%25 {a} a#b &c=ü why?"
    directory = write_study(tmp_path / name / "s", SHORT)
    assert len(tuned(directory, trials=1).trials) == 1
    assert len(read_result(directory).trials) == 1
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing is written beside it"


def test_an_edited_study_is_refused_and_says_what_changed(finished: Path) -> None:
    with pytest.raises(StudyChangedError, match=r"`space\.grad_freeze\.freeze_p\.high` was 0\.9, is 0\.8.*--fresh"):
        tuned(finished, SEARCH.replace("high = 0.9", "high = 0.8") + "# remark\n")
    result = tuned(finished, fresh=True)
    (archive,) = (finished / "archive").iterdir()
    assert {path.name for path in archive.iterdir()} >= {"study.db", "result"}
    assert sum("repeats" not in one.user_attrs for one in stored_trials(archive)) == 4
    assert len(result.trials) == 4


def test_a_study_is_read_after_its_file_was_edited_except_for_another_objective(finished: Path) -> None:
    before = read_result(finished).trials
    write_study(finished, SHORT.replace("high = 0.9", "high = 0.8"))
    assert read_result(finished).trials == before
    write_study(finished, SHORT.replace("time_to_target", "time_to_quality"))
    for read in (read_result, export_study):
        with pytest.raises(StudyChangedError, match="begun with the objective 'time_to_target'"):
            read(finished)


def test_more_trials_are_asked_for_by_an_option_or_by_an_edit(finished: Path) -> None:
    assert len(tuned(finished, trials=5).trials) == 5
    assert len(tuned(finished, SHORT.replace("n_trials = 4", "n_trials = 6")).trials) == 6


EDITED = SHORT.replace(
    "n_trials = 4", 'name = "renamed"\nn_trials = 4\ntimeout_seconds = 500.0\ndevice_hours = 9.0\npatience = 99'
).replace("[confirm]", "[confirm]\ntime_share = 0.2")


def test_what_cannot_change_a_trial_may_be_edited_while_the_study_goes_on(finished: Path) -> None:
    before = calls(finished)
    result = tuned(finished, EDITED)
    assert result.name == "renamed"
    assert calls(finished) == before  # it is the same study: nothing is trained again
    assert len(read_result(finished).trials) == len(result.trials)
    write_study(finished, EDITED.replace("high = 0.9", "high = 0.8"))
    with pytest.raises(StudyChangedError, match=r"high` was 0\.9, is 0\.8") as caught:
        tuned(finished)
    assert "timeout" not in str(caught.value)


def test_a_further_drop_may_be_edited_and_the_target_s_may_not(finished: Path) -> None:
    before = calls(finished)
    result = tuned(finished, SHORT.replace("o2 = 0.05", "o2 = 0.06"), confirm_seeds=2)
    assert result.allowed_drops == {"o1": 0.02, "o2": 0.06}
    assert not any("trial_" in line for line in calls(finished)[len(before) :])  # asked of the same trials
    with pytest.raises(StudyChangedError, match=r"`allowed_drop\.o1` was 0\.02, is 0\.03"):
        tuned(finished, SHORT.replace("o1 = 0.02", "o1 = 0.03"))


def test_a_study_that_an_earlier_version_stored_with_such_keys_may_be_edited_too(finished: Path) -> None:
    without_seals(finished)
    storage = default_storage(finished)
    study = optuna.load_study(study_name=optuna.get_all_study_names(storage)[0], storage=storage)
    asked = study.user_attrs["study_file"]
    old = {"name": "s", "n_trials": 4, "timeout_seconds": None}
    confirm = {"enabled": True, "seeds_min": 3, "seeds_max": 3, "candidates": 2, "steps": None, "time_share": 0.4}
    speed = {"rounds": 8, "steps_per_block": 6}  # its defaults then
    study.set_user_attr("study_file", {**asked, "study": {**asked["study"], **old}, "confirm": confirm, "speed": speed})
    before = calls(finished)
    tuned(finished, EDITED)
    assert calls(finished) == before


def test_other_data_are_refused(finished: Path) -> None:
    with pytest.raises(StudyChangedError, match=r"data changed .*\(they were 'abc' and are 'xyz'\); put them back"):
        tuned(finished, make_experimenter=making(data_hash="xyz"))


def test_data_without_a_version_are_told_in_words(tmp_path: Path) -> None:
    first, other = (making(data_hash=f"first 8 batches sha256:{digest}") for digest in ("abc", "abd"))
    tuned(tmp_path, SEARCH, trials=1, make_experimenter=first)
    with pytest.raises(StudyChangedError, match=r"began \(the first 8 batches are not what they were\)"):
        tuned(tmp_path, trials=2, make_experimenter=other)


NO_SPACE = OSError(errno.ENOSPC, "No space left on device", "steps.jsonl")
NOT_WRITTEN = TelemetryError("cannot write steps.jsonl: no space left on the disk")  # how a run says it


@pytest.mark.parametrize("error", [NO_SPACE, NOT_WRITTEN], ids=["as a disk says it", "as a run says it"])
def test_a_full_disk_puts_the_running_trial_back(tmp_path: Path, error: Exception) -> None:
    def find_no_room(job: Job[Any]) -> None:
        if isinstance(job, TrainJob) and job.run_id == "trial_0001":
            raise error

    with pytest.raises(type(error), match=r"[Nn]o space|disk is full"):
        tuned(tmp_path, SEARCH, make_experimenter=making(before=find_no_room))
    assert [one.state.name for one in stored_trials(tmp_path)] == ["COMPLETE", "WAITING"]
    assert {one.state for one in tuned(tmp_path, trials=2).trials} <= {"complete", "pruned"}


@pytest.mark.parametrize("objective", ["time_to_target", "speed"])
def test_a_drop_may_be_a_share_of_the_baseline(tmp_path: Path, objective: str) -> None:
    text = SEARCH.replace("o1 = 0.02", 'o1 = "2 %"').replace("time_to_target", objective)
    result = tuned(tmp_path / "s", text, trials=2)
    assert result.allowed_drops["o1"] == pytest.approx(0.02 * result.trials[0].metric)
    assert all(trial.allowed_drop == result.allowed_drops["o1"] for trial in result.trials)


def of_code(**sources: str) -> MakeExperimenter:
    return making(environment=lambda: {"sources": {f"{name}.py": digests for name, digests in sources.items()}})


def test_a_task_whose_code_has_changed_is_refused_and_named(tmp_path: Path) -> None:
    tuned(tmp_path, SEARCH, trials=1, make_experimenter=of_code(my_task="a", layers="b"))
    # What it imports besides is another matter.
    tune(tmp_path, trials=1, make_experimenter=of_code(my_task="a", plots="c"))
    # A comment, or another version of Python: one of the two digests is the same.
    tune(tmp_path, trials=1, make_experimenter=of_code(my_task="a other", layers="b"))
    with pytest.raises(StudyChangedError, match=r"task has changed since the study began \(layers.py\)"):
        tune(tmp_path, trials=1, make_experimenter=of_code(my_task="a", layers="d"))


def test_a_task_may_change_its_metric_before_anything_is_measured(tmp_path: Path) -> None:
    write_study(tmp_path, SEARCH)
    named = {"metric_name": "accuray", "environment": lambda: {"sources": {"my_task.py": "a"}}}
    with pytest.raises(StudyStoppedError):
        tune(tmp_path, trials=1, stop=iter([False] * 3 + [True] * 9).__next__, make_experimenter=making(**named))
    assert stored_trials(tmp_path)
    result = tune(tmp_path, trials=1, make_experimenter=of_code(my_task="b"))
    assert result.metric_name == "accuracy"


def test_a_metric_that_is_turned_round_is_no_longer_the_same_task(begun: Path) -> None:
    """The task has no sources that are known."""
    with pytest.raises(StudyChangedError, match=r"the task has changed .*\(which way its metric is better\)"):
        tune(begun, trials=2, make_experimenter=making(higher_is_better=False))


def test_a_study_of_two_objectives_cannot_turn_its_metric_round(tmp_path: Path) -> None:
    write_study(tmp_path, SEARCH.replace("time_to_target", "pareto"))
    named = {"higher_is_better": False, "environment": lambda: {"sources": {"my_task.py": "a"}}}
    with pytest.raises(StudyStoppedError):
        tune(tmp_path, trials=1, stop=iter([False] * 3 + [True] * 9).__next__, make_experimenter=making(**named))
    with pytest.raises(StudyChangedError, match=r"\(my_task.py, which way its metric is better\)"):
        tune(tmp_path, trials=1, make_experimenter=of_code(my_task="b"))


def test_a_changed_task_goes_on_under_a_new_baseline_when_told_so(tmp_path: Path) -> None:
    first = tuned(tmp_path, SEARCH, trials=2, make_experimenter=of_code(my_task="a"))
    with pytest.raises(StudyChangedError, match=r"\(my_task.py\).*continue under a new baseline with --new-baseline"):
        tune(tmp_path, trials=2, make_experimenter=of_code(my_task="b"))
    second = tune(tmp_path, new_baseline=True, trials=2, make_experimenter=of_code(my_task="b"))
    [archived] = (tmp_path / "archive").iterdir()
    assert [one.number for one in read_result(archived).trials] == [one.number for one in first.trials], "kept whole"
    assert len(first.trials) == len(second.trials)
    trials = stored_trials(tmp_path)
    assert trials[0].user_attrs["baseline"]
    taken = [one.user_attrs["warm_start"] for one in trials if "warm_start" in one.user_attrs]
    assert taken, "the best plans so far come first"
    assert all(archived.name in label for label in taken)
    assert [one.number for one in trials if "warm_start" in one.user_attrs] == list(range(1, len(taken) + 1))
    again = tune(tmp_path, trials=2, make_experimenter=of_code(my_task="b"))
    assert len(again.trials) == len(second.trials)


def test_an_answer_measured_with_fewer_threads_than_cores_says_so(tmp_path: Path) -> None:
    cores = {"cpu": "a CPU", "cpu_cores_usable": 2, "device": "a CPU", "torch_threads": 1}
    result = tuned(tmp_path, SHORT, make_experimenter=making(environment=lambda: {"device": cores}))
    assert result.taken
    said = "O0 was trained with one thread, on a machine with 2 cores: "
    assert any(one.startswith(said) for one in result.remarks)
    study = optuna.load_study(study_name=result.name, storage=open_storage(default_storage(tmp_path)))
    for other in ({"torch_threads": 2}, {"device": "a GPU"}):
        study.set_user_attr("environment", {"device": cores | other})
        assert not any("on a machine with 2 cores" in one for one in read_result(tmp_path).remarks)


def test_ctrl_c_saves_the_state_and_runs_the_trial_again(begun: Path) -> None:
    def interrupt(progress: TuneProgress) -> None:
        if progress.phase == "search" and progress.done > 2.4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(begun, on_progress=interrupt)
    states = [trial.state for trial in stored_trials(begun)]
    assert states.count(TrialState.WAITING) == 1
    assert TrialState.RUNNING not in states
    result = tuned(begun)
    assert {trial.state for trial in result.trials} <= {"complete", "pruned"}
    assert len(result.trials) == 4


def test_trials_that_keep_failing_end_the_study_with_their_message(tmp_path: Path) -> None:
    def fail(job: Job[Any]) -> None:
        if isinstance(job, TrainJob) and job.config.resolve(job.level).in_effect():
            raise RuntimeError("out of memory")

    text = SEARCH.replace('"boost.less_bn" = [false, true]', '"boost.less_bn" = [true]').replace('"O0", ', "")
    with pytest.raises(StudyFailedError, match="3 trials in a row failed, the last with: RuntimeError: out of memory"):
        tuned(tmp_path, text, make_experimenter=making(before=fail))
    assert [trial.state for trial in stored_trials(tmp_path)] == [TrialState.COMPLETE] + [TrialState.FAIL] * 3
    assert len(tuned(tmp_path, trials=2).trials) == 5  # failed trials do not count


def test_o0_that_does_not_train_is_a_failure_of_the_work(tmp_path: Path) -> None:
    broken = Trained(math.nan, (), 0.0, diverged=True, message="the loss became NaN at step 3")
    with pytest.raises(StudyFailedError, match=r"O0 itself does not train, .*: the loss became NaN at step 3"):
        tuned(tmp_path, SEARCH, make_experimenter=making(trained=lambda *_: broken))
    assert tuned(tmp_path, trials=1).trials[0].state == "complete"


def test_a_full_disk_is_one_sentence_and_loses_nothing_finished(begun: Path) -> None:
    done = read_result(begun)

    def fill_up(connection: Any, _: Any) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages + 1}")

    event.listen(Engine, "connect", fill_up)
    try:
        with pytest.raises(DiskFullError, match="the disk is full"):
            tuned(begun)
    finally:
        event.remove(Engine, "connect", fill_up)
    result = tuned(begun)
    assert result.trials[: len(done.trials)] == done.trials
    assert len(result.trials) == 4


def test_a_fresh_study_whose_task_cannot_be_loaded_archives_nothing(finished: Path) -> None:
    with pytest.raises(ValueError, match="fake"):
        tune(finished, fresh=True)  # the real experimenter knows no task "fake"
    assert (finished / "study.db").exists()
    assert not (finished / "archive").exists()


def test_a_study_that_is_being_tuned_is_refused(tmp_path: Path) -> None:
    write_study(tmp_path, SHORT)
    with holding_study(tmp_path), pytest.raises(StudyBusyError, match="tuned by this program already"):
        tuned(tmp_path)


def test_a_study_is_not_archived_under_its_workers(finished: Path) -> None:
    with beside_others(finished), pytest.raises(StudyBusyError, match="a `workbench worker` is running trials"):
        tuned(finished, fresh=True)
    assert (finished / "study.db").exists()
    assert tuned(finished, fresh=True).n_trials


@pytest.mark.parametrize(
    "options", [{"trials": 0}, {"timeout": 0.0}, {"timeout": math.nan}, {"confirm_seeds": 1}, {"jobs": 0}]
)
def test_senseless_arguments_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match="must be"):
        tune(write_study(tmp_path / "s"), make_experimenter=make_fake, **options)


def test_when_time_is_over_verdicts_stay_open_and_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="too short for O0 itself"):
        tuned(tmp_path, SHORT, timeout=1e-3)
    assert len(stored_trials(tmp_path)) == 1
    tuned(tmp_path, trials=2, confirm_seeds=2, timeout=1000.0)
    result = tuned(tmp_path, trials=2, confirm_seeds=40, timeout=1e-3)
    assert {one.n_seeds for one in result.candidates} <= {0, 2}  # of 40 no further one was begun
    assert result.candidates[0].n_seeds == 2


def test_only_confirmed_candidates_are_taken_when_asked(begun: Path) -> None:
    open_result = read_result(begun)
    assert {one.verdict for one in open_result.candidates} == {Verdict.UNDECIDED}
    assert open_result.chosen["o2"] != "O0"
    strict = tuned(begun, trials=2, require_confirmed=True)
    assert strict.chosen == {"o1": "O0", "o2": "O0"}
    n_candidates = sum(one.target == "o1" for one in open_result.candidates)
    assert f"none of the {n_candidates} candidates is confirmed" in strict.messages[0]
    assert read_result(begun).chosen == strict.chosen  # as the files were written


def test_the_choice_is_the_same_wherever_it_is_read(finished: Path) -> None:
    file, result = read_study(finished), read_result(finished)
    study = optuna.load_study(study_name=file.study.name, storage=open_storage(default_storage(finished)))
    mine = [one for one in result.candidates if one.target == "o2"]
    assert len(mine) > 1
    # The search ranked the first candidate first; over the seeds another is faster.
    confirmed: dict[str, Any] = {"verdict": Verdict.CONFIRMED, "speedup_low": 1.05}
    judged = [replace(one, speedup=1.1 + 0.1 * i, **confirmed) for i, one in enumerate(mine)]
    keep_candidates(study, judged)
    exported, read = export_study(finished), read_result(finished)
    config = BoostConfig.from_json(exported.exported["o2"])
    assert config.provenance is not None
    labels = {exported.chosen["o2"], read.chosen["o2"], config.provenance["candidate"]}
    assert labels == {judged[-1].label}
    assert read.choices["o2"].label == judged[-1].label
    table = pd.read_csv(finished / "result" / "candidates.csv")
    assert list(table.loc[table["exported"], "candidate"]) == [judged[-1].label]
    assert read.messages[1] == f"o2: {read.choices['o2'].sentence}"
    assert any(f"not {judged[0].label}" in why for why in read.choices["o2"].others)


def test_pareto_has_two_values_and_prunes_nothing(tmp_path: Path) -> None:
    result = tuned(tmp_path, SEARCH.replace("time_to_target", "pareto"))
    assert {trial.state for trial in result.trials} == {"complete"}
    assert all(len(trial.values) == 2 for trial in stored_trials(tmp_path))
    assert result.chosen["o2"] != "O0"


def test_the_state_of_a_study_is_read_without_training(short: Ended, finished: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="has not been started"):
        read_result(write_study(tmp_path / "new", SHORT))
    done, before, state = short[1], calls(finished), read_result(finished)
    assert (state.trials, state.candidates, state.chosen) == (done.trials, done.candidates, done.chosen)
    again = export_study(finished, tmp_path / "elsewhere")
    names = {"boost_config.o1.json", "boost_config.o2.json", "candidates.csv", "environment.json"}
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == names
    assert again.chosen == done.chosen
    assert calls(finished) == before


REPLAY = "\n[loss_scale_replay]\nsteps = 30\nmax_underflow_share = 0.01\n"


def test_the_loss_scale_policy_is_chosen_once_verified_and_exported(tmp_path: Path) -> None:
    result = tuned(tmp_path, SEARCH + REPLAY, trials=2)
    policy = result.loss_scale_policy
    assert policy is not None
    assert (policy["init"], policy["wasted_share"]) == (2.0**16, 0.0)  # the largest scale that never overflows
    assert policy["rerun_steps"] == 30
    assert policy["sentence"] in result.messages
    for path in result.exported.values():
        config = BoostConfig.from_json(path)
        assert config.loss_scale.init == 2.0**16
        assert config.loss_scale.kind is None  # in float32 it changes nothing; with amp O2 it is ready
    before = calls(tmp_path)
    assert sum("loss_scale" in line for line in before) == 4
    tuned(tmp_path, trials=2)
    assert calls(tmp_path) == before


def test_ctrl_c_in_the_confirmation_loses_no_finished_run(tmp_path: Path) -> None:
    write_study(tmp_path, SHORT.replace("n_trials = 4", "n_trials = 2"))

    def interrupt(progress: TuneProgress) -> None:
        if progress.phase == "confirm" and progress.done > 3.0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, on_progress=interrupt)
    finished = [line for line in calls(tmp_path) if line.startswith("trained") and line.endswith(" ")]
    assert len(finished) == 3
    tuned(tmp_path)
    trained = [line for line in calls(tmp_path) if line.startswith("trained")]
    assert len(trained) == len(set(trained))


@pytest.mark.parametrize("n_kills", [pytest.param(4, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.long)])
def test_kill_minus_nine_at_any_moment_loses_nothing_finished(tmp_path: Path, n_kills: int) -> None:
    write_study(tmp_path, STUDY.replace("seeds_max = 8", "seeds_max = 6"))
    moments = random.Random(n_kills)
    finished: dict[int, Any] = {}
    for _ in range(n_kills):
        begun = len(calls(tmp_path))
        process = start(tune, tmp_path, make_experimenter=make_slow_fake)
        wait_until(lambda begun=begun, process=process: len(calls(tmp_path)) > begun or not process.is_alive())
        time.sleep(moments.uniform(0.0, 0.3))
        kill(process)
        now = {
            trial.number: (trial.params, trial.values)
            for trial in (stored_trials(tmp_path) if (tmp_path / "study.db").exists() else [])
            if trial.state.is_finished()
        }
        assert {number: now[number] for number in finished} == finished
        finished = now
    result = tune(tmp_path, make_experimenter=make_slow_fake)
    trials = stored_trials(tmp_path)
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert sum("repeats" not in one.user_attrs for one in trials) == 10
    assert {number: (trials[number].params, trials[number].values) for number in finished} == finished
    assert set(result.exported) == {"o1", "o2"}
    # Trained to the end twice is only what was killed between its end and its record: at most one run per kill.
    ended = [line for line in calls(tmp_path) if line.startswith("trained")]
    assert len(ended) - len(set(ended)) <= n_kills


@pytest.mark.slow
def test_time_left_is_never_more_than_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def take_time(job: Job[Any]) -> None:
        now[0] += 100.0 * isinstance(job, TrainJob)

    def longest(name: str, **options: Any) -> float:
        seen: list[TuneProgress] = []
        text, slow = STUDY.replace("n_trials = 10", "n_trials = 4"), making(before=take_time)
        tuned(tmp_path / name, text, make_experimenter=slow, on_progress=seen.append, **options)
        return max(one.eta_seconds for one in seen if math.isfinite(one.eta_seconds))

    assert longest("free") > 1300.0  # three trials and twenty runs or so are left after O0
    assert 0.0 < longest("limited", timeout=1000.0) <= 1000.0


def test_other_work_is_told_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OtherWork, "sentence", lambda self, threads: "Other work keeps 1.5 of 2 cores busy")
    told: list[TuneProgress] = []
    tuned(tmp_path, SEARCH, trials=2, on_progress=told.append)
    assert next(one.trials for one in told if one.note == "Other work keeps 1.5 of 2 cores busy.") <= 1
