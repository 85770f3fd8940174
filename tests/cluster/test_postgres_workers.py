"""Workers on one PostgreSQL: each trial once, whoever dies; a database that goes away; passwords that stay inside."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState

from studies.reliability.postgres import PASSWORD, PostgresServer
from tests.cli.conftest import STUDY as WINE_STUDY
from tests.cli.conftest import TASK
from tests.cluster import kills
from tests.kit.fake_runner import calls, make_slow_fake
from tests.kit.processes import start, wait_until
from workbench.study import join_study

pytestmark = pytest.mark.cluster

_PATIENCE_SECONDS = 200.0


@pytest.fixture(autouse=True)
def _no_open_databases() -> Iterator[None]:
    yield
    kills.opened.cache_clear()


@pytest.fixture
def wine(tmp_path: Path) -> Path:
    """Return the folder of a study of a real, small task, beside the task."""
    (tmp_path / "wine.py").write_text(TASK)
    (tmp_path / "study").mkdir()
    text = WINE_STUDY.replace("n_trials = 3", "n_trials = 4").replace('"../wine.py"', '"wine.py"')
    text = text.replace("[2, 4]", "[2, 3, 4]")  # on a net this small nothing but accumulation acts
    (tmp_path / "study" / "study.toml").write_text(text)
    return tmp_path / "study"


def command(wine: Path, url: str, *arguments: str) -> subprocess.Popen[str]:
    """Start `workbench ...` with the database in the environment, where no list of processes shows it."""
    return subprocess.Popen(
        [sys.executable, "-m", "workbench", *arguments],
        cwd=wine.parent,
        env={**os.environ, "WORKBENCH_STORAGE": url, "WORKBENCH_GRACE_SECONDS": "20"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_workers_finish_a_study_although_one_is_killed_and_no_password_is_told(
    postgres: PostgresServer, wine: Path
) -> None:
    url = postgres.new_database()
    first = command(wine, url, "worker", "study", "--storage", url)
    second = command(wine, url, "worker", "study")
    killed = command(wine, url, "worker", "study", "--json")
    try:
        wait_until(lambda: any(_running(url)) or any(one.poll() is not None for one in (first, second, killed)))
        killed.kill()
        told = [one.communicate(timeout=_PATIENCE_SECONDS) for one in (first, second, killed)]
    finally:
        for one in (first, second, killed):
            one.kill()
    assert [first.returncode, second.returncode] == [0, 0], told
    trials = kills.stored(url)
    finished = {TrialState.COMPLETE, TrialState.PRUNED}
    assert {trial.state for trial in trials} <= finished | ({TrialState.FAIL} if len(trials) > 4 else set())
    counted = [one for one in trials if one.state in finished and "repeats" not in one.user_attrs]
    assert len(counted) == 4
    asked = f"next: workbench tune study --storage '{url.replace(PASSWORD, '***')}' confirms the best and exports"
    assert asked in told[0][0]
    assert "4 of 4 trials finished" in told[1][0]
    assert "next: workbench tune study confirms" in told[1][0]
    tuned = command(wine, url, "tune", "study")
    told.append(tuned.communicate(timeout=_PATIENCE_SECONDS))
    assert tuned.returncode == 0, told[-1]
    assert json.loads((wine / "result" / "boost_config.o1.json").read_text())
    _see_no_password("".join(out + err for out, err in told), wine.parent)


def test_ctrl_c_puts_the_trial_back(postgres: PostgresServer, wine: Path) -> None:
    file = wine / "study.toml"
    file.write_text(file.read_text().replace("budget_steps = 12", "budget_steps = 300000"))
    url = postgres.new_database()
    worker = command(wine, url, "worker", "study")
    try:
        wait_until(lambda: any(path.stat().st_size for path in wine.rglob("steps.jsonl")) or worker.poll() is not None)
        worker.send_signal(random.Random(0).choice([signal.SIGINT, signal.SIGTERM]))
        out, err = worker.communicate(timeout=_PATIENCE_SECONDS)
    finally:
        worker.kill()
    assert worker.returncode == 130, err
    assert "the trial that was running is put back" in err
    assert out == ""
    assert [trial.state for trial in kills.stored(url)] == [TrialState.WAITING]
    _see_no_password(out + err, wine.parent)


def test_a_database_that_is_restarted_is_waited_for(
    postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = kills.write_killed_study(tmp_path / "s", 1)
    url = postgres.new_database()

    def restart() -> None:
        wait_until(lambda: "trained" in "".join(calls(directory)))
        postgres.stop()
        time.sleep(2.0)  # away, as long as a restart takes
        postgres.start()

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        result = join_study(directory, url, make_experimenter=make_slow_fake)
    finally:
        thread.join()
    assert result.complete
    kills.Witness(directory, url).judge()
    told = caplog.text
    assert "the study's database does not answer" in told
    assert "answers again after" in told
    assert PASSWORD not in told


def test_a_database_that_stays_away_ends_the_worker_with_its_trial_recoverable(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_PATIENCE_SECONDS", "1")
    directory = kills.write_killed_study(tmp_path / "s", 1)
    url = postgres.new_database()
    worker = start(kills.work, directory, url)
    wait_until(lambda: "trained" in "".join(calls(directory)))
    postgres.stop()
    try:
        worker.join(_PATIENCE_SECONDS)
    finally:
        postgres.start()
    assert worker.exitcode == 1
    monkeypatch.setenv("WORKBENCH_PATIENCE_SECONDS", "60")
    assert join_study(directory, url, make_experimenter=make_slow_fake).complete
    kills.Witness(directory, url, kills=1).judge()  # what had been trained could not be stored


def _running(url: str) -> list[int]:
    return [trial.number for trial in kills.stored(url) if trial.number > 0]


def _see_no_password(told: str, folder: Path) -> None:
    assert PASSWORD not in told
    for path in folder.rglob("*"):
        if path.is_file():
            assert PASSWORD.encode() not in path.read_bytes(), path
