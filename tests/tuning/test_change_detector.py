"""A study is read again when it has changed, and only then."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage
from sqlalchemy import create_engine, event

from workbench.study.run.patience import Patience
from workbench.study.store.change_detector import ChangeDetector
from workbench.study.store.study_storage import StudyStorage
from workbench.study.store.write_ahead import writing_ahead


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "what #1.db"  # as addresses do not have it


@pytest.fixture
def storage(path: Path) -> Iterator[StudyStorage]:
    made = StudyStorage(f"sqlite:///{path}", patience=Patience(0.0))
    yield made
    made.engine.dispose()


@pytest.mark.parametrize("ahead", [False, True])
def test_every_commit_is_noticed_whoever_made_it(storage: StudyStorage, path: Path, ahead: bool) -> None:
    detector = ChangeDetector(storage.engine)
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA journal_mode={'WAL' if ahead else 'DELETE'}")
        other.execute("CREATE TABLE kept (value INTEGER)")
        state = detector.state()
        assert detector.state() == state
        other.execute("INSERT INTO kept VALUES (1)")
        other.commit()
        assert state != detector.state()
    state = detector.state()
    with storage.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO kept VALUES (2)")
        assert state == detector.state() or not ahead  # who reads in the usual mode would have to wait
    assert state != detector.state() == detector.state()


def test_a_file_in_the_place_of_another_is_another_state(storage: StudyStorage, path: Path, tmp_path: Path) -> None:
    detector = ChangeDetector(storage.engine)
    state = detector.state()
    shutil.copy(path, tmp_path / "copy")
    (tmp_path / "copy").replace(path)
    assert state != detector.state() == detector.state()
    path.unlink()
    assert detector.state() != detector.state()
    assert not path.exists()


def test_of_what_is_no_file_nothing_is_known() -> None:
    detector = ChangeDetector(create_engine("sqlite://"))
    assert detector.state() != detector.state()


def test_what_has_not_changed_is_not_read_again(storage: StudyStorage, path: Path) -> None:
    study = optuna.create_study(storage=storage)
    study.set_user_attr("seen", [1])
    study.add_trial(optuna.create_trial(value=0.5))
    study.get_trials(), study.user_attrs
    asked: list[str] = []
    event.listen(storage.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    assert len(study.get_trials()) == 1
    study.user_attrs["seen"].append(2)
    assert not asked
    elsewhere = RDBStorage(f"sqlite:///{path}")
    optuna.load_study(study_name=study.study_name, storage=elsewhere).add_trial(optuna.create_trial(value=0.25))
    elsewhere.engine.dispose()
    assert [one.value for one in study.get_trials()] == [0.5, 0.25]
    assert study.user_attrs["seen"] == [1]


def test_its_connection_does_not_keep_the_file_in_write_ahead_mode(storage: StudyStorage, path: Path) -> None:
    study = optuna.create_study(storage=storage)
    with writing_ahead(storage.engine):
        study.set_user_attr("seen", 1)
        assert study.user_attrs["seen"] == 1
    assert [one.name for one in path.parent.iterdir()] == [path.name]
