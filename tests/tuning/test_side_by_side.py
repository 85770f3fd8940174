"""Runs that do not wait for each other are trained side by side, in processes that end with the study."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psutil
import pytest

from tests.kit.fake_runner import SHORT, FakeRunner, calls, tuned, write_study
from tests.kit.set_up_search import stored_trials, write
from tests.kit.surface_runner import SurfaceRunner
from workbench.config import BoostConfig
from workbench.core import devices
from workbench.core.error_place import origin_of
from workbench.study import tune
from workbench.study.ask.study_file import StudyFile, read_study
from workbench.study.errors import OutOfTimeError, StudyStoppedError
from workbench.study.run import silence
from workbench.study.run.job import UNMONITORED, Job, Monitor, Trained, TrainJob
from workbench.study.run.process_trainer import ProcessCrew, ProcessTrainer
from workbench.study.run.progress import TuneProgress
from workbench.study.run.room import AnyRoom, Room
from workbench.study.run.runner import Limits, LostTrialError, StoppableExperimenter, StuckError
from workbench.study.run.side_by_side import train_rounds
from workbench.study.set_up.tuned_plain import PLAIN


def job(seed: int) -> TrainJob:
    return TrainJob(BoostConfig(), "O0", seed=seed, steps=10, evaluate_every=10)


class Meeting(FakeRunner):
    """Waits in each run until as many others are in theirs, and keeps what it trained."""

    def __init__(self, directory: Path, barrier: threading.Barrier) -> None:
        super().__init__(directory)
        self.barrier, self.seeds = barrier, list[int]()

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        assert isinstance(job, TrainJob)
        self.barrier.wait(60.0)
        self.seeds.append(job.seed)
        return Trained(float(job.seed), (), 0.0)


def test_each_round_is_trained_by_one_and_several_at_a_time(tmp_path: Path) -> None:
    trainers = [Meeting(tmp_path, barrier) for barrier in [threading.Barrier(2)] * 2]  # alone each would wait in vain
    ended = dict(train_rounds(trainers, [(at, [job(2 * at), job(2 * at + 1)]) for at in range(6)]))
    assert [[trained.metric for trained in ended[at]] for at in range(6)] == [
        [2.0 * at, 2.0 * at + 1.0] for at in range(6)
    ]
    assert all(trainer.seeds[1::2] == [seed + 1 for seed in trainer.seeds[::2]] for trainer in trainers)


def test_after_an_error_no_round_is_begun_and_those_that_run_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(FakeRunner):
        def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
            assert isinstance(job, TrainJob)
            if job.seed == 0:
                raise ValueError("no such layer")
            assert failed.wait(60.0)
            return Trained(0.5, (), 0.0)

    failed, ended, asked, fail = threading.Event(), list[int](), list[int](), Future.set_exception

    def tell(future: Future[Any], error: BaseException) -> None:
        fail(future, error)
        failed.set()

    monkeypatch.setattr(Future, "set_exception", tell)

    def rounds() -> Iterator[tuple[int, list[TrainJob]]]:
        for seed in range(4):
            asked.append(seed)
            yield seed, [job(seed)]

    with pytest.raises(ValueError, match="no such layer"):
        ended.extend(number for number, _ in train_rounds([Failing(tmp_path), Failing(tmp_path)], rounds()))
    assert (ended, asked) == ([1], [0, 1])


def test_where_no_time_is_left_for_a_round_those_that_run_end_first(tmp_path: Path) -> None:
    def rounds() -> Iterator[tuple[int, list[TrainJob]]]:
        yield 0, [job(0)]
        raise OutOfTimeError("the time limit ended it")

    ended = list[int]()
    with pytest.raises(OutOfTimeError):
        ended.extend(number for number, _ in train_rounds([FakeRunner(tmp_path), FakeRunner(tmp_path)], rounds()))
    assert ended == [0]


class OutOfMemoryError(RuntimeError):
    """Takes more arguments than it keeps, so that it cannot be unpickled."""

    def __init__(self, where: str, size: int) -> None:
        super().__init__(f"{size} GiB on the {where}")


class Mortal(FakeRunner):
    """Dies of seed 13 once, as if killed by the system, and of seed 14 each time; fails with seeds 15, 18 and 21.

    With seed 16 it notes how a process of its own would begin, with seed 17 it warns.
    With seed 19 it leaves a process running, as a loader does that keeps its workers. A step of seed 20 never ends.
    """

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if not isinstance(job, TrainJob):
            return super().run(job, monitor)
        self.log(f"process {os.getpid()} {job.seed}")
        if job.seed == 14 or (job.seed == 13 and sum(line.endswith(" 13") for line in calls(self.directory)) == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if job.seed == 15:
            raise OutOfMemoryError("device", 3)
        if job.seed == 16:
            self.log(f"begins by {multiprocessing.get_start_method()}")
        if job.seed == 17:
            warnings.warn("an unlucky number", FutureWarning, stacklevel=1)
        if job.seed == 18:
            raise ValueError("an odd batch")
        if job.seed == 21:
            raise KeyError(lambda x: x)  # as from a table of functions
        if job.seed == 19:
            worker = multiprocessing.Process(target=time.sleep, args=(60.0,), daemon=True)
            worker.start()
            self.log(f"worker {worker.pid}")
        while job.seed == 20:
            time.sleep(0.01)
        return super().run(job, monitor)


def make_mortal(file: StudyFile, directory: Path) -> FakeRunner:
    return Mortal(directory, seconds=0.02)


@pytest.mark.slow
def test_a_process_trains_fails_stops_and_is_replaced_if_it_dies_or_gets_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_study(tmp_path, SHORT)
    here = FakeRunner(tmp_path)
    with ProcessCrew(AnyRoom(2), tmp_path, make_mortal, here) as crew:
        trainer, other = crew.trainers()
        assert crew.experimenter.run(job(3)).to_json() == here.run(job(3)).to_json()
        assert len(processes_of(tmp_path, range(3, 4)) - {os.getpid()}) == 1, "a process of its own, not the one here"
        # The start of the processes is no part of the time of the run that waits for it.
        assert StoppableExperimenter(trainer, Limits()).run(job(3)).to_json() == here.run(job(3)).to_json()
        assert trainer.run(job(13)).to_json() == here.run(job(13)).to_json()
        with pytest.raises(LostTrialError, match="3 processes died during one run, the last by SIGKILL"):
            trainer.run(job(14))
        with pytest.raises(RuntimeError, match="OutOfMemoryError: 3 GiB on the device"):
            trainer.run(job(15))
        with pytest.raises(ValueError, match="an odd batch") as failed:
            trainer.run(job(18))
        origin = origin_of(failed.value)  # there, and not where it is raised again
        assert not origin.is_ours
        assert "test_side_by_side.py" in origin.line
        assert 'raise ValueError("an odd batch")' in origin.text
        with pytest.raises(RuntimeError, match="KeyError: <function"):
            trainer.run(job(21))
        asked = itertools.chain([False, False], itertools.repeat(True))
        with pytest.raises(StudyStoppedError):
            StoppableExperimenter(trainer, Limits(lambda: next(asked))).run(replace(job(4), steps=10_000))
        assert trainer.run(job(5)).to_json() == here.run(job(5)).to_json()  # the stop was that run's alone
        with pytest.warns(FutureWarning, match="an unlucky number"):
            assert trainer.run(job(17)).to_json() == here.run(job(17)).to_json()
        monkeypatch.setattr(silence, "LEAST_SECONDS", 0.5)
        with pytest.raises(
            StuckError, match=r"^no step ended within \d+ s, where none took longer than 0\.\d s before"
        ):
            trainer.run(job(20))
        compiled = replace(job(20), config=BoostConfig.from_dict({"runtime": {"compile": "default"}}))
        over = Limits(deadline=time.monotonic() + 2.0)  # a compiler has that long, and as long again
        with pytest.raises(OutOfTimeError):
            StoppableExperimenter(trainer, over).run(compiled)
        assert trainer.run(job(5)).to_json() == here.run(job(5)).to_json()
        trainer.run(job(16))
        assert f"begins by {multiprocessing.get_start_method()}" in calls(tmp_path)
        assert isinstance(trainer, ProcessTrainer)
        assert isinstance(other, ProcessTrainer)
        trainer.run(job(19))
        processes = [trainer.process, other.process]
    assert not any(process is None or process.is_alive() for process in processes)
    (worker,) = (int(line.split()[1]) for line in calls(tmp_path) if line.startswith("worker"))
    assert not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE


IS_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.kit.fake_runner import FakeRunner
from tests.tuning.test_side_by_side import job, make_mortal
from workbench.study.run.process_trainer import ProcessCrew
from workbench.study.run.room import AnyRoom

folder = Path(sys.argv[1])
with ProcessCrew(AnyRoom(2), folder, make_mortal, FakeRunner(folder)) as crew:
    trainer, _ = crew.trainers()
    trainer.run(job(3))
    trainer._connection.send((job(4), False))
    assert trainer._connection.poll(60.0)  # an answer that nobody reads
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_the_processes_of_a_command_that_is_killed_end_without_a_word(tmp_path: Path) -> None:
    write_study(tmp_path, SHORT)
    program = [sys.executable, "-c", IS_KILLED, str(tmp_path)]
    # The output ends when the last of all processes does.
    done = subprocess.run(
        program, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


@pytest.mark.slow
def test_ctrl_c_while_the_processes_begin_ends_those_that_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, begin, begun = write_study(tmp_path / "s", SHORT), BaseProcess.start, list[BaseProcess]()

    def start(process: BaseProcess) -> None:
        if not begun:
            os.kill(os.getpid(), signal.SIGINT)
        begin(process)
        begun.append(process)

    monkeypatch.setattr(BaseProcess, "start", start)
    with (
        pytest.raises(KeyboardInterrupt),
        ProcessCrew(AnyRoom(2), folder, make_mortal, FakeRunner(folder)) as crew,
    ):
        crew.trainers()[0].run(job(3))
    assert [one.is_alive() for one in begun] == [False, False]


@pytest.mark.slow
def test_ctrl_c_in_the_terminal_is_not_heard_by_what_loads_torch(tmp_path: Path) -> None:
    write_study(tmp_path, SHORT)
    script = f"""
from tests.kit.fake_runner import make_fake
from workbench.study import tune
try:
    tune({str(tmp_path)!r}, jobs=2, make_experimenter=make_fake)
except KeyboardInterrupt:
    print("interrupted")
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True) as running:
        parent = psutil.Process(running.pid)
        while not any("multiprocessing.forkserver" in " ".join(one.cmdline()) for one in parent.children()):
            time.sleep(0.02)
        time.sleep(0.5)
        os.killpg(running.pid, signal.SIGINT)
        assert running.communicate(timeout=60.0) == ("interrupted\n", "")


def test_where_nothing_can_be_forked_processes_are_spawned() -> None:
    script = """
import multiprocessing.connection, sys, workbench.study.run.searching
del multiprocessing.context.ForkServerProcess
sys.platform = "win32"
from workbench.study.run.process_trainer import ProcessTrainer
print(ProcessTrainer((), None)._context.get_start_method())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout.strip() == "spawn", ended.stderr


def make_slow_to_load(file: StudyFile, directory: Path) -> FakeRunner:
    """Load at once in the first of two processes, and after a second in the other."""
    if multiprocessing.parent_process() is not None:
        FakeRunner(directory).log(f"loading {os.getpid()}")
        while len(both := [int(line.split()[1]) for line in calls(directory) if line.startswith("loading")]) < 2:
            time.sleep(0.05)
        time.sleep(1.0 * (os.getpid() == max(both)))
        FakeRunner(directory).log("loaded")
    return make_mortal(file, directory)


def processes_of(folder: Path, seeds: range) -> set[int]:
    runs = [line.split()[1:] for line in calls(folder) if line.startswith("process")]
    return {int(process) for process, seed in runs if int(seed) in seeds}


@pytest.mark.slow
def test_search_and_confirmation_train_in_all_processes_once_these_have_loaded(tmp_path: Path) -> None:
    result = tuned(tmp_path, SHORT.replace("n_trials = 4", "n_trials = 6"), jobs=2, make_experimenter=make_slow_to_load)
    lines = [line.split()[0] for line in calls(tmp_path) if line.startswith(("process", "loaded"))]
    assert lines[:3] == ["loaded", "loaded", "process"], "nothing is trained while another process loads"
    assert lines.count("loaded") == 2  # once for all stages
    assert sum(trial.state in {"complete", "pruned"} for trial in result.trials) == 6
    assert result.candidates[0].n_seeds > 0
    for seeds in (range(1), range(1000, 1100)):  # the search's, and the confirmation's
        assert len(processes_of(tmp_path, seeds) - {os.getpid()}) == len(processes_of(tmp_path, seeds)) == 2


class Surface(SurfaceRunner):
    """Notes which process trains."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if isinstance(job, TrainJob):
            FakeRunner(self.directory).log(f"process {os.getpid()} {job.seed}")
        return super().run(job, monitor)


def make_surface(file: StudyFile, directory: Path) -> Surface:
    return Surface(directory)


@pytest.mark.slow
def test_the_baseline_and_tuned_plain_of_a_set_up_train_in_all_processes(tmp_path: Path) -> None:
    folder = write(tmp_path / "study", plain_runs=3)
    told = list[TuneProgress]()
    tune(folder, jobs=2, trials=1, make_experimenter=make_surface, on_progress=told.append)
    assert os.getpid() not in processes_of(folder, range(1000))
    assert len(processes_of(folder, range(5))) >= 2
    plain = [one for one in stored_trials(folder) if one.user_attrs.get(PLAIN)]
    assert [len(one.user_attrs["deficits"]) for one in plain] == [2, 2, 2]
    done = [one.done for one in told if one.phase == "O0"]
    assert done == sorted(done)
    assert {*range(6)} <= {*done}


@pytest.mark.parametrize(
    ("asked", "jobs", "in_file", "told"),
    [
        (None, 2, True, "Trains 2 runs at a time, on cores that were idle; --jobs 1 (jobs=1 in Python, "),
        (1, 1, True, "There is room to train 4 runs at a time here; --jobs 4 (jobs=4 in Python, "),
        (1, 1, False, "There is room to train 4 runs at a time here; a task in a file (my_task.py:task) could use it"),
        (4, 4, True, ""),
    ],
    ids=["idle cores", "room", "room in memory", "no room"],
)
def test_how_many_are_trained_at_a_time_is_told_to_whoever_asks_wherever_they_ask(
    asked: int | None, jobs: int, in_file: bool, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "places_to_train", lambda *_, **__: 4)
    monkeypatch.setattr(devices, "idle_places_to_train", lambda *_, **__: 2)
    room = Room(read_study(write(tmp_path)), asked)
    assert room.in_search() == jobs
    sentence = room.sentence(in_file=in_file)
    assert sentence.startswith(told)
    assert bool(sentence) == bool(told)
