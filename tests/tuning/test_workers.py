"""Several worker processes of one `tune`: where each trains, and what happens when one dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.kit import set_up_search
from tests.kit.fake_runner import STUDY, FakeRunner, calls, write_study
from tests.kit.surface_runner import SurfaceRunner
from workbench.study import StudyError, join_study, read_result, tune
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import UNMONITORED, Job, Monitor, TrainJob
from workbench.study.run.process_trainer import core_share, take_device

TEXT = STUDY.replace("n_trials = 10", "n_trials = 5").replace("[confirm]", "[confirm]\nenabled = false")


class DeadlyOnce(FakeRunner):
    """A task that is killed, as by the system when memory is short, the first time it trains with LessBN."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        was_killed = any(line.startswith("killed") for line in calls(self.directory))
        if isinstance(job, TrainJob) and job.config.resolve(job.level).less_bn and not was_killed:
            self.log(f"killed {job.run_id}")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(job, monitor)


def make_deadly_once(file: StudyFile, directory: Path) -> FakeRunner:
    return DeadlyOnce(directory)


@pytest.mark.parametrize("n_cores", [1, 2, 5, 8])
@pytest.mark.parametrize("places", [1, 2, 3, 8])
def test_every_core_is_in_one_share_and_shares_are_as_equal_as_can_be(n_cores: int, places: int) -> None:
    cores = list(range(10, 10 + n_cores))
    shares = [core_share(cores, place, places) for place in range(places)]
    assert all(shares)
    if places <= n_cores:
        assert sorted(core for share in shares for core in share) == cores
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    else:
        assert {core for share in shares for core in share} == set(cores)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux pins processes to cores")
def test_a_worker_on_the_cpu_is_pinned_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Any] = []
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("os.sched_setaffinity", lambda pid, cores: pinned.append(list(cores)))
    assert take_device(1, 2, "cpu", trains=False) is None
    assert take_device(1, 2, "cuda:0", trains=False) is None  # what the study names is not second-guessed
    assert pinned == [[2, 3]]


def test_workers_join_and_finish_a_study_that_nobody_began(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "s", TEXT)
    first = join_study(directory, make_experimenter=lambda file, folder: FakeRunner(folder), trials=2)
    assert (first.finished, first.n_trials, first.complete) == (2, 2, True)
    second = join_study(directory, make_experimenter=lambda file, folder: FakeRunner(folder))
    assert (second.finished, second.complete) == (5, True)
    assert read_result(directory).trials[0].level == "O0"
    begun = [line for line in calls(directory) if line.startswith("train ")]
    assert len(begun) == len(set(begun)) == 5


def test_a_worker_begins_a_search_for_the_fastest_set_up(tmp_path: Path) -> None:
    folder = set_up_search.write(tmp_path / "s", **set_up_search.SEARCH_ALONE, n_trials=3, plain_runs=2)
    assert join_study(folder, make_experimenter=lambda _file, _folder: SurfaceRunner(folder)).complete
    assert len(read_result(folder).trials) >= 3


@pytest.mark.parametrize("options", [{"trials": 0}, {"timeout": 0.0}, {"grace_seconds": -1.0}])
def test_senseless_arguments_of_a_worker_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match="must be"):
        join_study(write_study(tmp_path / "s", TEXT), **options)


def test_a_study_of_several_ranks_has_no_workers(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "s", TEXT.replace("n_trials", "ranks = 2\nn_trials"))
    with pytest.raises(StudyError, match=r"`study.ranks` is 2, .* run such a study with `workbench tune`"):
        join_study(directory)


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_its_trial_run_again(tmp_path: Path) -> None:
    text = TEXT.replace('"boost.less_bn" = [false, true]', '"boost.less_bn" = [true]').replace('"O0", ', "")
    directory = write_study(tmp_path / "s", text)
    result = tune(directory, jobs=2, make_experimenter=make_deadly_once)
    assert [trial for trial in result.trials if trial.state not in {"complete", "pruned"}] == []
    killed = {line.split()[1] for line in calls(directory) if line.startswith("killed")}  # two may die at one moment
    assert killed
    for trial in killed:
        # None where the other worker has trained an equal plan meanwhile.
        assert sum(line.startswith("trained") and line.endswith(trial) for line in calls(directory)) <= 1
