"""A study explains itself in optuna-dashboard: notes, constraints and names, whether or not it is installed here."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import optuna
import pytest
from optuna.storages import RDBStorage
from sqlalchemy import event

from tests.kit.fake_runner import tuned, write_study
from workbench.study import StudyError, read_result, read_study, trials_of, write_note
from workbench.study.answer.notes import Notes
from workbench.study.store.storage import default_storage, open_storage
from workbench.study.store.study_storage import StudyStorage

TEXT = """
[study]
name = "tiny"
task = "fake"
budget_steps = 20
n_trials = 2
[baseline.loss_scale]
kind = "none"
[sampler]
name = "random"
[allowed_drop]
o1 = 0.02
o2 = 0.05
[confirm]
enabled = false
[space]
level = ["O1"]
"boost.grad_freeze" = [true]
"grad_freeze.freeze_p" = { low = 0.5, high = 0.9 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_study(tmp_path_factory.mktemp("study"), TEXT)
    tuned(folder)
    return folder


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    """Return a copy for a test that changes notes; others look at them as they were."""
    return Path(shutil.copytree(folder, tmp_path / "own"))


def opened(folder: Path) -> optuna.Study:
    return optuna.load_study(study_name="tiny", storage=open_storage(default_storage(folder)))


def attributes(folder: Path) -> Mapping[str, Any]:
    study = opened(folder)
    return study._storage.get_study_system_attrs(study._study_id)


def test_a_study_s_note_says_question_baseline_drop_command_and_answer(folder: Path) -> None:
    note = attributes(folder)["dashboard:note_str:0"]
    assert "trains fake fastest with accuracy within the allowed drop?" in note
    assert 'trial 0 is O0, everything off, with `loss_scale.kind` = "none"; it reached accuracy 0.' in note
    assert "0.02 for o1, 0.05 for o2" in note
    assert "`boost.grad_freeze`, `grad_freeze.freeze_p`" in note
    assert "`workbench tune`" in note
    assert note.partition("### Answer")[2].strip().startswith("* o1: ")


def test_a_trial_s_note_says_what_was_in_effect_and_the_verdict(folder: Path) -> None:
    study, stored = opened(folder), attributes(folder)
    trials = study.get_trials(deepcopy=False)
    assert len(trials) == 2
    for trial in trials:
        note = stored[f"dashboard:{trial._trial_id}:note_str:0"]
        assert stored[f"dashboard:{trial._trial_id}:note_ver"] == 1
        assert f": {trial.user_attrs['summary']}" in note
        feasible = trial.constraints["metric_deficit"] <= 0.0
        outcome = "O0" if trial.number == 0 else "within the allowed drop" if feasible else "beyond the allowed drop"
        assert f"**{outcome}**" in note
        assert ("**not within the allowed drop**" in note) is not feasible
    assert "freezing" in stored[f"dashboard:{trials[1]._trial_id}:note_str:0"]


def test_the_objective_is_named_in_words(folder: Path) -> None:
    assert attributes(folder)["study:metric_names"] == ["Time to target (O0 steps)"]


def test_a_note_that_somebody_edited_stays_and_ours_follows_the_study(own: Path) -> None:
    folder, study = own, opened(own)
    trial = study.get_trials(deepcopy=False)[1]
    key = f"dashboard:{trial._trial_id}:note_str:0"
    storage, study_id = study._storage, study._study_id
    ours = attributes(folder)
    storage.set_study_system_attr(study_id, key, "mine")
    Notes(study, read_study(folder)).write(trials_of(study), ["o1: a new answer from postgresql://me:secret@db/x"])
    now = attributes(folder)
    assert now[key] == "mine"
    assert now["dashboard:note_str:0"].endswith("* o1: a new answer from postgresql://me:***@db/x")
    assert now["dashboard:note_ver"] == ours["dashboard:note_ver"] + 1
    Notes(study, read_study(folder)).write(trials_of(study))  # a search that goes on has no answer yet
    assert attributes(folder)["dashboard:note_str:0"] == now["dashboard:note_str:0"]
    storage.set_study_system_attr(study_id, "dashboard:note_str:0", "mine, too")
    Notes(study, read_study(folder)).write(trials_of(study), ["o1: another answer"])
    assert attributes(folder)["dashboard:note_str:0"] == "mine, too"


def test_all_new_notes_take_one_commit(own: Path) -> None:
    storage = open_storage(default_storage(own))
    study = optuna.load_study(study_name="tiny", storage=storage)
    for _ in range(3):
        study.tell(study.ask(), state=optuna.trial.TrialState.FAIL)
    trials = trials_of(study)
    written: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith(("INSERT", "UPDATE")):
            written.append(statement)

    event.listen(storage.engine, "before_cursor_execute", note)
    event.listen(storage.engine, "commit", lambda connection: written.append("COMMIT"))
    Notes(study, read_study(own)).write(trials)
    first = next(i for i, statement in enumerate(written) if statement != "COMMIT")
    assert not [statement for statement in written[written.index("COMMIT", first) :] if statement != "COMMIT"]
    stored = study._storage.get_study_system_attrs(study._study_id)
    assert sum(key.endswith("note_ver") for key in stored) == 1 + len(trials) == 6


def test_notes_that_are_there_are_not_read_again(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(default_storage(own))
    study = optuna.load_study(study_name="tiny", storage=storage)
    notes = Notes(study, read_study(own))
    asked: list[str] = []
    event.listen(storage.engine, "before_cursor_execute", lambda *given: asked.extend(map(str, given[3])))
    notes.write(trials_of(study))
    of_trials = re.compile(r"dashboard:\d+:note_ver")
    assert len([one for one in asked if of_trials.fullmatch(one)]) == 2
    asked.clear()
    for kind in (RDBStorage, StudyStorage):
        monkeypatch.setattr(kind, "get_study_system_attrs", lambda *_: pytest.fail("all notes were read"))
    notes.write(trials_of(study), ["o1: another answer"])
    assert asked, "the study's own note is looked at"
    assert not [one for one in asked if of_trials.fullmatch(one)]


@pytest.mark.optional
def test_the_dashboard_s_own_interface_returns_notes_and_constraints(folder: Path) -> None:
    dashboard = pytest.importorskip(
        "optuna_dashboard", reason='optuna-dashboard is not installed; pip install "boost-workbench[dashboard]"'
    )
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    environ |= {"PATH_INFO": "/api/studies/1", "QUERY_STRING": "after=0"}
    body = b"".join(dashboard.wsgi(default_storage(folder))(environ, lambda *_: None))
    found = json.loads(body)
    assert found["note"]["body"]
    assert found["objective_names"] == ["Time to target (O0 steps)"]
    for trial, stored in zip(found["trials"], opened(folder).get_trials(deepcopy=False), strict=True):
        assert trial["note"]["body"]
        assert trial["constraints"] == [stored.constraints["metric_deficit"]]
    assert {one["name"] for one in found["trials"][1]["params"]} >= {"level", "grad_freeze.freeze_p"}


@pytest.mark.optional
def test_what_a_person_writes_stands_below_our_note_is_read_by_the_dashboard_and_found_again(own: Path) -> None:
    folder = own
    assert [trial.note for trial in read_result(folder).trials] == ["", ""]
    long = "worth a run\n" * 400  # more than the dashboard puts into one attribute
    for text in (long, "try it with more data"):
        write_note(folder, 1, text)
        assert [trial.note for trial in read_result(folder).trials] == ["", text.strip()]
        trial, stored = opened(folder).get_trials()[1], attributes(folder)
        parts = [stored.get(f"dashboard:{trial._trial_id}:note_str:{number}", "") for number in range(4)]
        assert "".join(parts).startswith("**In effect** (")
        assert "".join(parts).endswith(text.strip())
        dashboard = pytest.importorskip("optuna_dashboard")
        assert dashboard.get_note(optuna.trial.Trial(opened(folder), trial._trial_id)) == "".join(parts)
    assert stored[f"dashboard:{trial._trial_id}:note_ver"] == 3
    write_note(folder, 1, " ")
    assert read_result(folder).trials[1].note == ""

    study = opened(folder)  # as a person changes every word of it in the dashboard
    for key, value in {"note_ver": 5, "note_str:0": "my own words"}.items():
        study._storage.set_study_system_attr(study._study_id, f"dashboard:{trial._trial_id}:{key}", value)
    assert read_result(folder).trials[1].note == "my own words"
    with pytest.raises(StudyError, match="there is no trial 7"):
        write_note(folder, 7, "anything")
