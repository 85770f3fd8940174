"""What a running trial gathers is buffered, and then stored as Optuna would have stored it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import event

from workbench.study.store.storage import open_storage
from workbench.study.store.study_storage import StudyStorage
from workbench.study.store.trial_reader import SEAL


def new_study(folder: Path) -> tuple[StudyStorage, optuna.Study]:
    storage = open_storage(f"sqlite:///{folder / 'study.db'}")
    sampler = optuna.samplers.RandomSampler(seed=0)
    return storage, optuna.create_study(study_name="study", storage=storage, sampler=sampler)


def as_read_anew(folder: Path, number: int = 0) -> FrozenTrial:
    storage = open_storage(f"sqlite:///{folder / 'study.db'}")
    return optuna.load_study(study_name="study", storage=storage).trials[number]


def work(trial: optuna.Trial) -> None:
    trial.suggest_float("x", 1e-3, 1.0, log=True)
    trial.suggest_categorical("kind", ("a", "b"))
    trial.suggest_int("n", 1, 9)
    trial.set_user_attr("config", {"a": [1, None, 0.5]})
    trial.set_user_attr("config", {"a": [2]})
    trial.report(0.25, 10)
    trial.report(float("inf"), 20)
    trial.set_constraint("deficit", -0.5)


@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.PRUNED])
def test_a_buffered_trial_is_stored_as_optuna_stores_it(tmp_path: Path, state: TrialState) -> None:
    value = 1.5 if state == TrialState.COMPLETE else None
    plain = optuna.create_study(study_name="study", storage=f"sqlite:///{tmp_path / 'plain.db'}")
    plain.sampler = optuna.samplers.RandomSampler(seed=0)
    trial = plain.ask()
    work(trial)
    plain.tell(trial, value, state=state)
    _, study = new_study(tmp_path)
    trial = study.ask()
    work(trial)
    study.tell(trial, value, state=state)
    stored = []
    for read in (plain.trials[0], as_read_anew(tmp_path)):
        attributes = {key: value for key, value in read.user_attrs.items() if key != "process"}
        system = {key: value for key, value in read.system_attrs.items() if key != SEAL}  # ours, besides
        stored.append((read.params, read.distributions, attributes, system, read.intermediate_values, read.values))
    assert stored[0] == stored[1]
    assert stored[0][0].keys() == {"x", "kind", "n"}


def test_everything_drawn_is_written_in_one_transaction(tmp_path: Path) -> None:
    storage, study = new_study(tmp_path)
    trial, commits = study.ask(), list[Any]()
    event.listen(storage.engine, "commit", commits.append)
    work(trial)
    storage.write(trial._trial_id, every=60.0)  # not yet
    assert not commits
    storage.write(trial._trial_id)
    assert len(commits) == 1
    storage.write(trial._trial_id)
    assert len(commits) == 1  # nothing was left to write
    assert as_read_anew(tmp_path).params == trial.params
    trial.set_user_attr("last", 1)
    study.tell(trial, 0.5)  # writes what was left
    assert as_read_anew(tmp_path).user_attrs["last"] == 1


def test_what_was_measured_is_kept_of_a_trial_that_is_handed_back(tmp_path: Path) -> None:
    storage, study = new_study(tmp_path)
    trial = study.ask()
    trial.set_user_attr("speed", 0.5)
    storage.hand_back(trial._trial_id)
    kept = as_read_anew(tmp_path)
    assert (kept.state, kept.user_attrs["speed"]) == (TrialState.WAITING, 0.5)


def test_a_trial_that_another_process_has_finished_is_not_written_to(tmp_path: Path) -> None:
    storage, study = new_study(tmp_path)
    trial = study.ask()
    theirs = optuna.load_study(study_name="study", storage=f"sqlite:///{tmp_path / 'study.db'}")
    trial.set_user_attr("speed", 0.5)
    theirs.tell(trial.number, state=TrialState.FAIL)
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        storage.write(trial._trial_id)
    assert "speed" not in as_read_anew(tmp_path).user_attrs


def test_the_own_trial_is_seen_as_it_stands_and_others_see_what_is_written_of_it(tmp_path: Path) -> None:
    _, study = new_study(tmp_path)
    study.tell(study.ask(), 1.0)
    trial = study.ask()
    work(trial)
    seen = study.get_trials(deepcopy=False)
    with ThreadPoolExecutor(1) as other:  # which would iterate over dictionaries that this one changes
        by_another = other.submit(study.get_trials, deepcopy=False).result()
    for stored in (by_another[1], as_read_anew(tmp_path, 1)):
        assert (stored.state, stored.params, stored.intermediate_values) == (TrialState.RUNNING, {}, {})
    assert [one.state for one in seen] == [TrialState.COMPLETE, TrialState.RUNNING]
    assert seen[1].intermediate_values[10] == 0.25
    assert seen[1].params == trial.params
