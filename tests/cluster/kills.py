"""Kill processes of a study at random moments, and see afterwards that nothing was lost and nothing counts twice."""

from __future__ import annotations

import functools
import json
import math
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from tests.kit.fake_runner import calls, make_fake, make_slow_fake, write_study
from tests.kit.processes import kill, start, wait_until
from workbench.config import BoostConfig
from workbench.study import StudyBusyError, join_study, read_study, tune
from workbench.study.store.storage import StudyStorage, open_storage

STUDY = """
[study]
task = "fake"
budget_steps = 100
evaluate_every = 10
n_trials = {n_trials}
objective = "speed"

[allowed_drop]
o1 = 0.02
o2 = 0.05

[sampler]
name = "random"

[space]
level = ["O0", "O1", "O2"]
"boost.less_bn" = [false, true]
"boost.grad_freeze" = [true]
"grad_freeze.freeze_p" = { low = 0.4, high = 0.9 }

[confirm]
seeds_min = 2
seeds_max = 2
candidates = 1
"""

_PATIENCE_SECONDS = 240.0
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


def write_killed_study(directory: Path, repetitions: int) -> Path:
    """Write a study that is long enough for so many kills: three that hit one trial are no chance any more."""
    return write_study(directory, STUDY.replace("{n_trials}", str(max(6, 2 * repetitions))))


def drive(directory: Path, url: str | None, jobs: int) -> None:
    """Tune; a predecessor that was killed a moment ago may still have workers that end."""
    while True:
        try:
            tune(directory, storage=url, jobs=jobs, make_experimenter=make_slow_fake)
        except StudyBusyError:
            time.sleep(0.2)
        else:
            return


def work(directory: Path, url: str | None) -> None:
    """Work as `workbench worker` does."""
    join_study(directory, url, make_experimenter=make_slow_fake)


@functools.cache
def opened(url: str) -> StudyStorage:
    """Open a database once: that takes longer than all the questions to it."""
    return open_storage(url, role="worker")


def stored(url: str) -> list[FrozenTrial]:
    """Return the trials as the database has them now."""
    return [trial for study in opened(url).get_all_studies() for trial in opened(url).get_all_trials(study._study_id)]


@dataclass
class Witness:
    """What was seen finished between the kills, and has to stay as it was seen.

    Args:
        directory: Folder of the study.
        url: Its database.
        kills: Kills so far.
    """

    directory: Path
    url: str
    kills: int = 0
    _seen: dict[int, Any] = field(default_factory=dict)

    def look(self) -> None:
        """See that all that had finished is as it was, and that exported files are whole."""
        trials = stored(self.url)
        now = {one.number: (one.state, one.params, one.values) for one in trials if one.state in _FINISHED}
        lost = {number: was for number, was in self._seen.items() if now.get(number) != was}
        assert not lost, f"finished and then changed: {lost}"
        self._seen = now
        for path in (self.directory / "result").glob("*.json"):
            json.loads(path.read_text(encoding="utf-8"))
        for path in (self.directory / "result").glob("boost_config*.json"):
            BoostConfig.from_json(path)

    def judge(self) -> None:
        """See that the study is complete: every trial once, none running, none lost, files exported."""
        self.look()
        trials = stored(self.url)
        assert [one.number for one in trials] == list(range(len(trials)))
        assert {one.state for one in trials} & {TrialState.RUNNING, TrialState.WAITING} == set(), trials
        failed = [one for one in trials if one.state == TrialState.FAIL]
        given_up = [one for one in failed if one.user_attrs.get("worker_deaths", 0) >= 3]
        surplus = [one for one in failed if "surplus" in one.user_attrs]
        assert len(failed) == len(given_up) + len(surplus), [one.user_attrs.get("message") for one in failed]
        counted = [one for one in trials if one.state in _FINISHED and "repeats" not in one.user_attrs]
        assert len(counted) == read_study(self.directory).study.n_trials, [
            (one.number, one.state.name) for one in trials
        ]
        assert sum(bool(one.user_attrs.get("baseline")) for one in counted) == 1
        assert all(math.isfinite(value) for one in counted for value in one.values)
        # Trained to its end more than once is only what was killed between its end and its record.
        ended = [line for line in calls(self.directory) if line.startswith("trained")]
        assert len(ended) - len(set(ended)) <= self.kills, ended

    def export(self) -> None:
        """Confirm and export, and see that both files are there."""
        result = tune(self.directory, storage=self.url, make_experimenter=make_fake)
        assert set(result.exported) == {"o1", "o2"}
        self.look()


def kill_and_replace(witness: Witness, repetitions: int, seed: int, n_processes: int, *process: Any) -> None:
    """Start a process so many times; kill one of them at a random moment, again and again, and start it anew."""
    moments = random.Random(seed)
    processes = [start(*process) for _ in range(n_processes)]
    for _ in range(repetitions):
        begun = len(calls(witness.directory))
        wait_until(lambda n=begun: len(calls(witness.directory)) > n or not any(one.is_alive() for one in processes))
        time.sleep(moments.uniform(0.0, 0.25))
        victim = moments.randrange(n_processes)
        if processes[victim].is_alive():
            kill(processes[victim])
            witness.kills += 1
        witness.look()
        processes[victim] = start(*process)
    for one in processes:
        one.join(_PATIENCE_SECONDS)
        assert one.exitcode == 0
    witness.judge()
    witness.export()


def kill_database(witness: Witness, repetitions: int, seed: int, server: Any) -> None:
    """Two workers; every process of the database server is killed, and the server started again."""
    moments = random.Random(seed)
    workers = [start(work, witness.directory, witness.url) for _ in range(2)]
    for _ in range(repetitions):
        begun = len(calls(witness.directory))
        wait_until(lambda n=begun: len(calls(witness.directory)) > n or not any(one.is_alive() for one in workers))
        time.sleep(moments.uniform(0.0, 0.25))
        server.kill()
        witness.kills += 1
        time.sleep(moments.uniform(0.0, 0.5))
        server.start()
        witness.look()
    for worker in workers:
        worker.join(_PATIENCE_SECONDS)
        assert worker.exitcode == 0
    witness.judge()
    witness.export()
