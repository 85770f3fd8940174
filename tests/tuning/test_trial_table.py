"""Trials as a table: what each column says, that files give it back, and that they appear as a whole."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Command
from tests.kit.fake_runner import FakeRunner, tuned, write_study
from workbench.study import TRIAL_COLUMNS, read_study, trial_table, write_trial_table
from workbench.study.store.storage import default_storage, open_storage, open_study

N_TRIALS = 4
TEXT = f"""
[study]
task = "fake"
budget_steps = 20
n_trials = {N_TRIALS}
[sampler]
name = "random"
[allowed_drop]
o1 = 0.02
o2 = 0.05
[confirm]
enabled = false
[space]
level = ["O1", "O2"]
"boost.less_bn" = [false, true]
"boost.grad_freeze" = [true, false]
"grad_freeze.freeze_p" = {{ low = 0.36, high = 0.9 }}
"grad_freeze.param_groups" = {{ low = 3, high = 9 }}
"optimizer.name" = ["SGD", "Adam"]
"""
FREEZING = ("grad_freeze.freeze_p", "grad_freeze.param_groups")
SEARCHED = {"boost.less_bn", "boost.grad_freeze", "optimizer.name", *FREEZING}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_study(tmp_path_factory.mktemp("study"), TEXT)
    tuned(folder)
    return folder


@pytest.fixture(scope="module")
def table(study: Path) -> pd.DataFrame:
    return trial_table(study)


def test_every_trial_is_a_row_with_its_speed_metric_and_drop(study: Path, table: pd.DataFrame) -> None:
    assert list(table.columns[: len(TRIAL_COLUMNS)]) == list(TRIAL_COLUMNS)
    assert set(table.columns[len(TRIAL_COLUMNS) :]) == SEARCHED
    assert table["trial"].tolist() == list(range(len(table)))
    assert len(table) == N_TRIALS
    base = table.iloc[0]
    assert (base["level"], base["speed"], base["drop"], base["metric_name"]) == ("O0", 1.0, 0.0, "accuracy")
    for row in table[table["state"] == "complete"].itertuples():
        assert row.drop == pytest.approx(base["metric"] - row.metric)
        assert row.feasible == (row.drop <= row.allowed_drop)
        assert row.speed_low <= row.speed <= row.speed_high
        assert row.seconds >= 0.0
        assert row.ended >= row.started


def test_a_value_that_was_not_in_effect_is_empty(table: pd.DataFrame) -> None:
    frozen = table["boost.grad_freeze"].fillna(False).astype(bool)
    assert frozen.any()
    assert not frozen.all()
    for path in FREEZING:
        assert table[path].notna().equals(frozen.rename(path))


def test_a_repeat_is_no_trial(study: Path, table: pd.DataFrame) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    opened = optuna.load_study(study_name=study.name, storage=default_storage(study))
    trial = opened.ask()
    trial.set_user_attr("repeats", 2)
    opened.tell(trial, state=optuna.trial.TrialState.PRUNED)
    pd.testing.assert_frame_equal(trial_table(study), table)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_file_gives_the_table_back(table: pd.DataFrame, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"trials{suffix}"
    write_trial_table(table, path)
    if suffix == ".parquet":
        back = pd.read_parquet(path)
        pd.testing.assert_frame_equal(back, table)
    else:
        empty_ones = {name: str(kind) for name, kind in table.dtypes.items() if str(kind) in ("boolean", "Int64")}
        back = pd.read_csv(path, parse_dates=["started", "ended"], dtype=empty_ones)
        assert list(back.columns) == list(table.columns)
        words = [name for name in table.columns if table[name].dtype == "str"]  # a CSV knows no empty one
        back[words] = back[words].astype("str").fillna("")
        expected = table.assign(**{name: table[name].fillna("") for name in words})
        pd.testing.assert_frame_equal(back, expected, check_dtype=False)


def test_a_parquet_file_says_the_unit_of_each_column(table: pd.DataFrame, tmp_path: Path) -> None:
    write_trial_table(table, tmp_path / "trials.parquet")
    schema = pq.read_schema(tmp_path / "trials.parquet")
    about = {field.name: field.metadata for field in schema}
    assert about["speed"][b"unit"] == b"times O0"
    assert about["seconds"][b"unit"] == b"s"
    assert b"grad_freeze.freeze_p" in about["grad_freeze.freeze_p"][b"description"]
    kinds = {field.name: str(field.type) for field in schema}
    assert kinds["grad_freeze.param_groups"] == "int64"
    assert kinds["boost.less_bn"] == "bool"
    assert kinds["started"] == "timestamp[us, tz=UTC]"


def test_a_study_without_a_trial_gives_an_empty_table_of_the_same_columns(table: pd.DataFrame, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "young", TEXT)
    opened = open_study(open_storage(default_storage(folder)), read_study(folder), FakeRunner(folder))
    waiting = trial_table(folder)
    assert waiting["state"].tolist() == ["waiting"]
    assert waiting.dtypes.astype(str).equals(table.dtypes.astype(str))
    for suffix, read in ((".parquet", pd.read_parquet), (".csv", pd.read_csv)):
        write_trial_table(waiting.iloc[:0], tmp_path / f"none{suffix}")
        assert list(read(tmp_path / f"none{suffix}").columns) == list(table.columns)
    assert len(opened.get_trials(deepcopy=False)) == 1


def test_an_old_file_survives_a_table_that_could_not_be_written(
    table: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trials.csv"
    path.write_text("old", encoding="utf-8")

    def half_a_table(self: pd.DataFrame, target: Path, **options: Any) -> None:
        Path(target).write_text("trial,st", encoding="utf-8")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", half_a_table)
    with pytest.raises(OSError, match="space"):
        write_trial_table(table, path)
    assert path.read_text(encoding="utf-8") == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["trials.csv"]


def test_a_password_in_a_trial_s_message_stays_out_of_the_table(study: Path) -> None:
    opened = optuna.load_study(study_name=study.name, storage=default_storage(study))
    trial = opened.ask()
    trial.set_user_attr("message", "OperationalError: no route to postgresql://me:hunter2@db/studies")
    opened.tell(trial, state=optuna.trial.TrialState.FAIL)
    row = trial_table(study).iloc[-1]
    assert row["message"] == "OperationalError: no route to postgresql://me:***@db/studies"


def test_the_command_writes_the_table_from_any_storage_and_no_configuration(
    study: Path, tmp_path: Path, workbench: Command
) -> None:
    path = tmp_path / "trials.csv"
    outcome = workbench("export", study, "--trials", path, "--storage", default_storage(study))
    assert outcome.code == 0
    assert f"wrote {path}" in outcome.out
    assert len(pd.read_csv(path)) == len(trial_table(study))
    assert {one.name for one in tmp_path.iterdir()} == {"trials.csv", "wine.py"}


@pytest.mark.parametrize(
    ("folder", "name", "said"),
    [
        ("", "trials.xlsx", "must be a file named *.parquet or *.csv, got "),
        ("", "missing/trials.csv", "missing"),
        ("new", "trials.csv", "has not been started"),
    ],
)
def test_a_table_that_cannot_be_written_is_one_sentence(
    folder: str, name: str, said: str, study: Path, tmp_path: Path, workbench: Command
) -> None:
    asked = write_study(tmp_path / folder, TEXT) if folder else study
    outcome = workbench("export", asked, "--trials", tmp_path / name)
    assert outcome.code == 2
    assert said in outcome.sentence
