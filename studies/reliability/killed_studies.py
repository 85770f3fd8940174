"""Studies whose processes are killed: a driver alone or with two workers, workers on PostgreSQL, a Ray cluster.

One study after the other, each of another seed, until there have been enough kills; the last one goes on to its end.
A quarter of the kills come at any moment from the start of a process on, the others after one has been seen to run a
trial, or to confirm once all trials have finished.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from ledger import DEATHS_THAT_FAIL, Findings, Ledger, Trials, finished, process_of
from optuna.trial import FrozenTrial, TrialState
from postgres import PostgresServer, find_binaries
from processes import Command, wait_until, workers_of
from ray_cluster import cluster, environment
from strikes import Strike, Strikes

HERE = Path(__file__).resolve().parent
STUDY = """
[study]
task = "task.py:task"
device = "cpu"
threads = 1
seed = {seed}
budget_steps = 32
evaluate_every = 8
n_trials = {n_trials}
objective = "speed"

[allowed_drop]
o1 = 0.5
o2 = 0.5

[sampler]
name = "random"

[pruner]
name = "none"

[speed]
rounds = 2
steps_per_block = 1

[space]
level = ["O1"]
"optimizer.lr" = {{ low = 0.01, high = 0.3, log = true }}
"boost.grad_freeze" = [true, false]
"grad_freeze.param_groups" = [2]
"grad_freeze.freeze_p" = {{ low = 0.4, high = 0.9 }}

[confirm]
enabled = {confirms}
seeds_min = 2
seeds_max = 2
candidates = 1
"""
N_TRIALS, SPARE_TRIALS = 12, 4
_KILLS_AFTERWARDS = 3
_BUSY = 2
"""Exit code of a command whose predecessor's workers have not ended yet: it says so, and is started again."""


@dataclass
class KilledStudy:
    """A study, the database it is in, and what is seen of it."""

    directory: Path
    trials: Trials
    ledger: Ledger
    kills_afterwards: int = 0
    """Kills after all trials had finished."""

    @classmethod
    def write(cls, directory: Path, seed: int, url: str | None = None, n_trials: int = N_TRIALS) -> KilledStudy:
        """Write a study that has not begun."""
        write_study(directory, seed, n_trials, confirms=True)
        trials = Trials(url or f"sqlite:///{directory / 'study.db'}")
        return cls(directory, trials, Ledger(directory, trials))

    def running(self, *processes: int) -> list[FrozenTrial]:
        """Return the trials that these processes run, as far as the database can be read now."""
        return [one for one in self.trials.look(TrialState.RUNNING) if process_of(one) in processes]

    def is_searched(self) -> bool:
        """Return whether all trials have finished."""
        return len(finished(self.trials.look(TrialState.COMPLETE, TrialState.PRUNED))) >= N_TRIALS


def write_study(directory: Path, seed: int, n_trials: int, *, confirms: bool) -> None:
    """Write a study's folder."""
    directory.mkdir(parents=True)
    text = STUDY.format(seed=seed, n_trials=n_trials, confirms=str(confirms).lower())
    (directory / "study.toml").write_text(text, encoding="utf-8")
    shutil.copy(HERE / "task.py", directory)


class Reference:
    """The same study, which nobody disturbs; it runs beside the other from now on.

    Args:
        folder: Where it lies, or an earlier setting has left it.
        seed: The study's.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.directory = folder / f"undisturbed-{seed}"
        self._command: Command | None = None
        if not (self.directory / "result").exists():
            shutil.rmtree(self.directory, ignore_errors=True)
            write_study(self.directory, seed, N_TRIALS + SPARE_TRIALS, confirms=False)
            said = folder / f"undisturbed-{seed}.log"
            self._command = Command(["workbench", "tune", str(self.directory)], said, real=False)

    def finished(self) -> dict[int, FrozenTrial]:
        """Wait for it, and return its trials."""
        if self._command is not None and self._command.wait() != 0:
            raise RuntimeError(f"the undisturbed study failed: {self._command.said()}")
        trials = Trials(f"sqlite:///{self.directory / 'study.db'}")
        found = finished(trials.read())
        trials.close()
        return found


def kill_studies(setting: str, folder: Path, kills: int, seed: int, strikes: Strikes) -> Iterator[Findings]:
    """Yield what each study of a setting has come to, until there have been so many kills."""
    with contextlib.ExitStack() as leaving:
        server = leaving.enter_context(_server()) if setting == "postgresql" else None
        if setting == "ray":
            os.environ.update(environment())
        address = leaving.enter_context(cluster()) if setting == "ray" else ""
        for here in itertools.count(seed):
            if strikes.count >= kills:
                return
            reference = Reference(folder, here)
            url = None if server is None else server.new_database()
            study = KilledStudy.write(folder / f"{setting}-{here}", here, url)
            match setting:
                case "sqlite":
                    kill_driver(study, kills, strikes)
                case "jobs":
                    kill_workers_and_driver(study, kills, strikes, "--jobs", "2")
                case "ray":
                    cluster_of = ("--engine", "ray", "--address", address, "--resources-per-trial", "CPU=1")
                    kill_workers_and_driver(study, kills, strikes, *cluster_of, "--jobs", "2")
                case "postgresql":
                    assert server is not None
                    kill_server_and_workers(study, kills, strikes, server)
            yield study.ledger.judge(N_TRIALS, reference.finished(), reference.directory)
            study.trials.close()


def _server() -> PostgresServer:
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("PostgreSQL is not installed; apt-get install postgresql")
    return PostgresServer(binaries)


def kill_driver(study: KilledStudy, kills: int, strikes: Strikes) -> None:
    """Kill ``workbench tune`` and start it again, until it has ended or there have been enough kills."""
    while True:
        command = _tune(study, strikes)
        if strikes.count < kills and _moment(study, [command], strikes.draw):
            command.kill()
            _struck(study, strikes, "driver", study.running(command.pid), real=command.real)
        elif _ended(command):
            return


def kill_workers_and_driver(study: KilledStudy, kills: int, strikes: Strikes, *options: str) -> None:
    """Kill a worker of ``workbench tune``, or the command itself and with it both; until it has ended."""
    of = ray_workers if "ray" in options else workers_of
    while True:
        command, alive = _tune(study, strikes, *options), True
        while alive:
            if strikes.count >= kills or not _moment(study, [command], strikes.draw):
                if _ended(command):
                    return
                break
            workers = of(command.pid)
            if workers and strikes.draw.random() < 2 / 3:
                _kill_worker(study, command, workers, strikes)
            else:
                ran = study.running(command.pid, *(one.pid for one in workers))
                command.kill()
                _struck(study, strikes, "driver", ran, real=command.real)
                alive = False


def kill_server_and_workers(study: KilledStudy, kills: int, strikes: Strikes, server: PostgresServer) -> None:
    """Kill all processes of the database server and start it again, or one of two ``workbench worker``."""
    said, url = study.directory.with_suffix(".log"), {"WORKBENCH_STORAGE": study.trials.url}

    def join() -> Command:
        return Command(["workbench", "worker", str(study.directory)], said, real=strikes.draw_real(), variables=url)

    workers = [join(), join()]
    while strikes.count < kills and _moment(study, workers, strikes.draw):
        ran = study.running(*(one.pid for one in workers))
        if strikes.draw.random() < 2 / 3:
            server.kill()
            study.trials.close()
            time.sleep(strikes.draw.uniform(0.0, 1.0))
            server.start()
            _struck(study, strikes, "server", ran, real=True)
        else:
            victim = strikes.draw.randrange(2)
            its = [one for one in ran if process_of(one) == workers[victim].pid]
            if any(study.ledger.killed_workers[one.number] == DEATHS_THAT_FAIL - 1 for one in its):
                continue
            workers[victim].kill()
            _struck(study, strikes, "worker", its, real=workers[victim].real)
            workers[victim] = join()
    for one in workers:
        _ended(one)
    confirming = Command(["workbench", "tune", str(study.directory)], said, real=True, variables=url)
    _ended(confirming)


def _kill_worker(study: KilledStudy, command: Command, workers: list[psutil.Process], strikes: Strikes) -> None:
    """Kill a worker that runs a trial if there is one; a trial that has lost two is spared, since a third fails it."""
    running = study.running(command.pid, *(one.pid for one in workers))
    lost_two = [one for one in running if study.ledger.killed_workers[one.number] == DEATHS_THAT_FAIL - 1]
    # Ray's are the driver's: which of them runs which trial is not known.
    spared = workers if any(process_of(one) == command.pid for one in lost_two) else []
    able = [one for one in workers if one not in spared and one.pid not in map(process_of, lost_two)]
    busy = [one for one in able if one.pid in map(process_of, running)]
    if not able:
        return
    victim = strikes.draw.choice(busy or able)
    try:
        victim.kill()
        victim.wait(10)
    except psutil.Error:  # it has ended meanwhile
        return
    hit = [one for one in running if process_of(one) in (victim.pid, command.pid)]
    _struck(study, strikes, "worker", hit, real=True)


def ray_workers(driver: int) -> list[psutil.Process]:
    """Return the processes in which Ray runs trials of the only driver."""
    return [one for one in psutil.process_iter() if "ray::RayWorker" in " ".join(_words(one))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _tune(study: KilledStudy, strikes: Strikes, *options: str) -> Command:
    real = strikes.draw_real()
    said = study.directory.with_suffix(".log")
    return Command(["workbench", "tune", str(study.directory), *options], said, real=real)


def _moment(study: KilledStudy, commands: list[Command], draw: random.Random) -> bool:
    """Wait for a moment at which to kill; return False when a command has ended before."""

    def over() -> bool:
        return any(one.code is not None for one in commands)

    def at_work() -> bool:
        pids = [one.pid for one in commands]
        pids += [worker.pid for pid in pids for worker in workers_of(pid)]
        return over() or bool(study.running(*pids)) or study.is_searched()

    anywhere, seconds = draw.random() < 0.25, draw.random()
    if study.is_searched():
        study.kills_afterwards += 1
        if study.kills_afterwards > _KILLS_AFTERWARDS:
            commands[0].wait()
    elif not anywhere:
        wait_until(at_work, every=0.2)
    wait_until(over, seconds * (6.0 if anywhere else 4.0))
    if not anywhere and not study.is_searched():  # between two trials: in the next one
        wait_until(at_work, seconds=10.0)
    return not over()


def _ended(command: Command) -> bool:
    """Wait for a command, and return whether it has done its work; False when it has to be started again."""
    code = command.wait()
    if code not in (0, _BUSY):
        raise RuntimeError(f"a command that nobody killed ended with exit code {code}: {command.said()}")
    if code == _BUSY and "tuned" not in command.said():
        raise RuntimeError(f"a command was refused: {command.said()}")
    return code == 0


def _struck(study: KilledStudy, strikes: Strikes, victim: str, ran: list[Any], *, real: bool) -> None:
    study.ledger.killed(ran, worker=victim == "worker")
    study.ledger.look()
    strikes.note(Strike(victim, real, [one.number for one in ran], study.directory.name))
