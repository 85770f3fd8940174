"""A study on a real Ray cluster: the same trials as without, and nothing lost when a worker or the driver is killed."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState

from studies.reliability.ray_cluster import cluster, environment
from tests.cluster.ray_fakes import DIES_ONCE, make_mortal, make_together, make_very_slow_fake, processes
from tests.kit.fake_runner import STUDY, calls, make_fake, stored_trials, write_study
from tests.kit.processes import kill, wait_until
from workbench.study import RayEngine, StudyError, tune

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(580)]

NO_CONFIRMATION = STUDY + "enabled = false\n"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Start a cluster; this process joins it once."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip('needs Ray: pip install "boost-workbench[cluster]"')
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        import ray  # it reads its variables as it is imported

        patch.syspath_prepend(str(Path(__file__).parents[2]))  # workers import the fakes
        with cluster() as where:
            ray.init(address=where, log_to_driver=False, configure_logging=False)
            yield where
            ray.shutdown()


def test_one_place_runs_the_same_trials_as_one_process(address: str, tmp_path: Path) -> None:
    here, there = write_study(tmp_path / "a" / "s"), write_study(tmp_path / "b" / "s")
    expected = tune(here, make_experimenter=make_fake)
    found = tune(there, make_experimenter=make_fake, ray=RayEngine("CPU=1", address, jobs=1))
    for mine, its in zip(stored_trials(there), stored_trials(here), strict=True):
        assert (mine.number, mine.state, mine.params, mine.values) == (its.number, its.state, its.params, its.values)
        assert mine.intermediate_values == its.intermediate_values
    assert calls(there) == calls(here)
    assert found.chosen == expected.chosen
    assert not (there / ".ray-driver").exists()


def test_a_killed_worker_costs_no_trial_and_two_share_what_allows_two(address: str, tmp_path: Path) -> None:
    directory = write_study(tmp_path / "s", NO_CONFIRMATION)
    tune(directory, make_experimenter=make_mortal, ray=RayEngine("CPU=0.5, slot=0.5", address))
    trials, lines = stored_trials(directory), calls(directory)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}
    ran = [trial for trial in trials if "trained" in trial.user_attrs and "repeats" not in trial.user_attrs]
    assert len(ran) == 10
    begun = [line.split()[-1] for line in lines if line.startswith("train ")]
    assert begun.count(DIES_ONCE) == 2
    assert all(begun.count(name) == 1 for name in set(begun) - {DIES_ONCE})
    assert len(processes(directory)) == 3, "two places, and one more for the dead"


def drive(directory: Path, address: str) -> None:
    engine = RayEngine("CPU=1", address, jobs=2)
    tune(directory, make_experimenter=make_very_slow_fake, ray=engine)


def test_a_killed_driver_loses_nothing(address: str, tmp_path: Path) -> None:
    directory = write_study(tmp_path / "s", NO_CONFIRMATION)
    driver = multiprocessing.get_context("spawn").Process(target=drive, args=(directory, address))
    driver.start()
    wait_until(lambda: sum(line.startswith("trained") for line in calls(directory)) >= 3 or not driver.is_alive())
    kill(driver)
    finished = {trial.number: trial for trial in stored_trials(directory) if trial.state.is_finished()}
    tune(directory, make_experimenter=make_fake, ray=RayEngine("CPU=1", address, jobs=1))
    trials = stored_trials(directory)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert all(trial.state.is_finished() for trial in trials)
    assert finished
    assert all(trials[number].datetime_complete == trial.datetime_complete for number, trial in finished.items())
    ran = [trial for trial in trials if "trained" in trial.user_attrs and "repeats" not in trial.user_attrs]
    assert len(ran) == 10


def test_pairs_are_confirmed_in_all_places(address: str, tmp_path: Path) -> None:
    directory = write_study(tmp_path / "s")
    result = tune(directory, make_experimenter=make_mortal, ray=RayEngine("CPU=0.5, slot=0.5", address), trials=5)
    assert result.candidates[0].n_seeds > 0
    assert len(processes(directory)) == 3, "two places, kept for the pairs, and one more for the dead"
    assert len(processes(directory, first_seed=1000)) == 2


def test_two_ranks_train_a_trial_together(address: str, tmp_path: Path) -> None:
    text = NO_CONFIRMATION.replace("n_trials = 10", 'n_trials = 3\nranks = 2\ndevice = "cpu"')
    directory = write_study(tmp_path / "s", text)
    tune(directory, make_experimenter=make_together, ray=RayEngine("CPU=0.5", address))
    lines = calls(directory)
    trained = sum("trained" in t.user_attrs and "repeats" not in t.user_attrs for t in stored_trials(directory))
    assert trained == 3
    for rank in range(2):
        assert lines.count(f"rank {rank} of 2") == trained
    assert lines.count("sum 1") == 2 * trained
    assert {trial.state for trial in stored_trials(directory)} <= {TrialState.COMPLETE, TrialState.PRUNED}


def test_what_no_node_has_is_said_at_once(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_RAY_WAIT", "0")
    directory = write_study(tmp_path / "s")
    with pytest.raises(StudyError, match=r"a trial needs CPU=1, GPU=1, and no node .*1 node with CPU=2, slot=1 in all"):
        tune(directory, make_experimenter=make_fake, ray=RayEngine("GPU=1", address))
    assert sorted(path.name for path in directory.iterdir()) == ["study.db.lock", "study.toml"]


LISTENERS = """
import psutil
from workbench.study.run.ray_engine import joined_cluster

with joined_cluster("local") as ray:
    ray.get(ray.remote(lambda: None).remote())
    here = psutil.Process()
    for process in [here, *here.children(recursive=True)]:
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                print(connection.laddr.ip, process.name())
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
def test_a_cluster_that_a_study_starts_listens_on_this_machine_alone() -> None:
    """No other user of the network can reach what runs any code that it is sent."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", LISTENERS]
    printed = subprocess.run(command, env=variables, check=True, capture_output=True, text=True, timeout=300).stdout
    listening = [line.split(maxsplit=1) for line in printed.splitlines()]
    assert {"gcs_server", "raylet"} <= {name for _, name in listening}
    assert {address.removeprefix("::ffff:") for address, _ in listening} <= {"127.0.0.1", "::1"}, printed
