"""What has ended is checked against its checksum when it is read, and shares its equal parts in memory."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from workbench.study.errors import StudyFailedError
from workbench.study.store.storage import open_storage
from workbench.study.store.study_storage import StudyStorage
from workbench.study.store.trial_reader import TrialReader, seal_of

CONFIG = {
    "boost": {"mode": "manual", "less_bn": False},
    "grad_freeze": {"freeze_type": 1, "param_groups": [1, 1.0, True]},
}


def finished(folder: Path, count: int = 3) -> tuple[StudyStorage, optuna.Study]:
    storage = open_storage(f"sqlite:///{folder / 'study.db'}")
    study = optuna.create_study(study_name="s", storage=storage, sampler=optuna.samplers.RandomSampler(seed=0))
    study.set_user_attr("target", {"o1": 0.005})
    for number in range(count):
        trial = study.ask()
        value = trial.suggest_float("x", 0.0, 1.0)
        trial.set_user_attr("config", CONFIG | {"name": f"trial {number}"})
        trial.report(value, 10)
        study.tell(trial, value)
    return storage, study


def read_anew(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    study = optuna.load_study(study_name="s", storage=open_storage(f"sqlite:///{folder / 'study.db'}"))
    return study.get_trials(deepcopy=False), study.user_attrs


CHANGES = {
    "value": "UPDATE trial_values SET value = value + 1 WHERE trial_id = 2",
    "no value": "DELETE FROM trial_values WHERE trial_id = 2",
    "parameter": "UPDATE trial_params SET param_value = param_value / 2 WHERE trial_id = 2",
    "report": "UPDATE trial_intermediate_values SET intermediate_value = 0.25 WHERE trial_id = 2",
    "attribute": "UPDATE trial_user_attributes SET value_json = replace(value_json, 'manual', 'auto')",
    "name that is no text": "UPDATE trial_user_attributes SET key = x'ff' WHERE trial_user_attribute_id = 2",
    "state": "UPDATE trials SET state = 'PRUNED' WHERE trial_id = 2",
    "number": "UPDATE trials SET number = 7 WHERE trial_id = 2",
    "study": """UPDATE study_user_attributes SET value_json = '{"o1": 0.05}' WHERE key = 'target'""",
    "name of an attribute": "UPDATE study_user_attributes SET key = 'tarfet' WHERE key = 'target'",
    "name of a checksum": "UPDATE study_user_attributes SET key = 'crc32 og target' WHERE key = 'crc32 of target'",
    "name in a checksum": "UPDATE study_user_attributes SET key = 'crc32 of tardet' WHERE key = 'crc32 of target'",
    "trial of no study": "UPDATE trials SET study_id = 33 WHERE trial_id = 3",
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    finished(folder)[0].engine.dispose()
    trials, attributes = read_anew(folder)
    assert [one.number for one in trials] == [0, 1, 2]
    assert attributes == {"target": {"o1": 0.005}}
    return folder


def damage(stored: Path, folder: Path, what: str) -> None:
    shutil.copy(stored / "study.db", folder)
    with closing(sqlite3.connect(folder / "study.db")) as database, database:
        assert database.execute(CHANGES[what]).rowcount


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_not_what_was_stored_is_damaged(what: str, stored: Path, tmp_path: Path) -> None:
    damage(stored, tmp_path, what)
    for _ in range(2):  # it stays damaged
        with pytest.raises(StudyFailedError, match=r"database is damaged .*put a copy of it back, or .*--fresh"):
            read_anew(tmp_path)


def test_a_damaged_trial_is_told_each_time_it_is_read(stored: Path, tmp_path: Path) -> None:
    damage(stored, tmp_path, "value")
    study = optuna.load_study(study_name="s", storage=open_storage(f"sqlite:///{tmp_path / 'study.db'}"))
    for states in (None, (TrialState.COMPLETE,), None):
        with pytest.raises(StudyFailedError, match="trial 1 is not what its checksum says"):
            study.get_trials(deepcopy=False, states=states)


def test_trials_of_an_earlier_version_are_read_without_checksums(tmp_path: Path) -> None:
    plain = optuna.create_study(study_name="s", storage=f"sqlite:///{tmp_path / 'study.db'}")
    plain.set_user_attr("target", 1)
    plain.tell(plain.ask(), 0.5)
    trials, attributes = read_anew(tmp_path)
    assert ([one.value for one in trials], attributes) == ([0.5], {"target": 1})


def test_equal_parts_of_trials_are_in_memory_once_and_types_stay(stored: Path) -> None:
    storage = open_storage(f"sqlite:///{stored / 'study.db'}")
    trials = TrialReader(storage._backend, "s").read()
    first, second = (one.user_attrs["config"] for one in trials[:2])
    assert first["grad_freeze"] is second["grad_freeze"]
    assert first["boost"] is second["boost"]
    assert first["name"] != second["name"]
    for each in ("params", "distributions", "user_attrs", "system_attrs"):
        names = [list(getattr(one, each)) for one in trials[:2]]
        assert all(one is other for one, other in zip(*names, strict=True)), each
    assert trials[0].distributions
    assert all(one is trials[1].distributions[name] for name, one in trials[0].distributions.items())
    assert json.dumps(first["grad_freeze"]) == json.dumps(CONFIG["grad_freeze"]), "1, 1.0 and true are not the same"
    assert [seal_of(one) for one in trials] == [one.system_attrs["crc32"] for one in trials]
