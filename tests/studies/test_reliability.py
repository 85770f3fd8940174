"""The campaign of kills counts what it says it counts, and a small one runs."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

STUDY = Path(__file__).parents[2] / "studies" / "reliability"
Change = Callable[[list[FrozenTrial]], object]


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(STUDY)
    return importlib.import_module("ledger")


def trial(number: int, rate: float, state: TrialState = TrialState.COMPLETE, **attributes: Any) -> FrozenTrial:
    trained = {"metric": rate, "curve": [[8, rate]], "steps": 32, "diverged": False, "overflows": 0}
    told = {"config": {"rate": rate}, "level": "O1", "trained": trained, "baseline": number == 0} | attributes
    values = [1.0] if state == TrialState.COMPLETE else None
    space = {"rate": FloatDistribution(0.0, 10.0)}
    made = create_trial(state=state, values=values, params={"rate": rate}, distributions=space, user_attrs=told)
    made.number = number
    return made


class Database:
    """The trials of a study, without a study."""

    def __init__(self) -> None:
        self.trials = [trial(number, float(number)) for number in range(4)]

    def read(self) -> list[FrozenTrial]:
        return self.trials

    look = read


@pytest.mark.parametrize(
    ("change", "harm"),
    [
        pytest.param(lambda trials: None, {}, id="nothing"),
        pytest.param(list.pop, {"lost": 1, "left": 1}, id="one is gone"),
        pytest.param(lambda trials: trials.insert(4, trial(4, 3.0)), {"doubled": 2}, id="a plan twice, one too many"),
        pytest.param(lambda trials: trials.insert(4, trial(4, 9.0, TrialState.RUNNING)), {"left": 1}, id="still runs"),
        pytest.param(
            lambda trials: trials.insert(4, trial(4, 9.0, TrialState.FAIL, message="no")),
            {"failed_wrongly": 1},
            id="failed",
        ),
        pytest.param(
            lambda trials: trials.insert(4, trial(4, 9.0, TrialState.FAIL, surplus=True)),
            {},
            id="failed as one too many",
        ),
        pytest.param(
            lambda trials: trials.__setitem__(2, trial(2, 2.5)), {"lost": 1, "different": 1}, id="drawn otherwise"
        ),
        pytest.param(
            lambda trials: trials[2].user_attrs["trained"].update(curve=[[8, 0.0]]), {"different": 1}, id="a curve"
        ),
        pytest.param(lambda trials: trials[2].user_attrs.update(baseline=True), {"doubled": 1}, id="a second O0"),
    ],
)
def test_harm_is_counted(change: Change, harm: dict[str, int], ledger: ModuleType, tmp_path: Path) -> None:
    database = Database()
    kept = ledger.Ledger(tmp_path, database)
    kept.look()
    undisturbed = ledger.finished(Database().trials)
    change(database.trials)
    found = kept.judge(4, undisturbed, tmp_path)
    names = ("lost", "doubled", "left", "failed_wrongly", "different")
    assert {name: getattr(found, name) for name in names if getattr(found, name)} == harm, found.sentences
    assert found.harm == sum(harm.values())


def test_a_trial_that_lost_three_workers_has_failed_rightly(ledger: ModuleType, tmp_path: Path) -> None:
    database = Database()
    failed = trial(2, 2.0, TrialState.FAIL, message="its worker died 3 times")
    database.trials[2] = failed
    kept = ledger.Ledger(tmp_path, database)
    for _ in range(3):
        kept.killed([failed], worker=True)
    found = kept.judge(3, {}, tmp_path)
    assert (found.kills, found.inside, found.harm) == (3, 3, 0)


def test_the_answer_is_there_and_says_what_was_killed() -> None:
    answers = [json.loads(path.read_text()) for path in (STUDY / "result").glob("*.json")]
    counted = {one["setting"]: one for one in answers if "setting" in one}
    assert {"sqlite", "jobs"} <= set(counted)
    for one in counted.values():
        assert sum(one["of"].values()) == one["kills"]
        rows = (STUDY / "result" / "kills" / f"{one['setting']}.csv").read_text().splitlines()
        assert len(rows) - 1 == one["kills"]
        assert one["versions"]["torch"]
    page = (STUDY.parents[1] / "docs" / "guide" / "reliability.md").read_text()
    for table in ("kills", "conditions", "damage", "soak"):
        assert (STUDY / "result" / f"{table}.md").read_text().startswith("| what")
        assert f"studies/reliability/result/{table}.md" in page


def test_the_tables_are_those_of_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(STUDY)
    for module, name in (("campaign", "kills"), ("soak", "soak")):
        written = (STUDY / "result" / f"{name}.md").read_text()
        assert importlib.import_module(module).table() == written, f"{name}.md is an earlier table"


@pytest.mark.long
def test_a_small_campaign_finds_no_harm(tmp_path: Path) -> None:
    script = "import sys, campaign, pathlib; campaign.RESULT = pathlib.Path(sys.argv.pop()); campaign.main()"
    for setting in ("sqlite", "train"):
        command = [sys.executable, "-c", script, setting, "--kills", "2", str(tmp_path)]
        done = subprocess.run(command, cwd=STUDY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads((tmp_path / f"{setting}.json").read_text())["kills"] == 2
