"""Many trials in one process: memory, threads and open files stay where they are.

Optuna keeps every finished trial in memory, so a study of any tool grows with it. How much that is, a second search by
Optuna alone tells: it stores what ours stores, and its growth is taken off ours.

    WORKBENCH_SOAK_TRIALS=2000 pytest tests/reliability/test_soak.py -m slow -s
"""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import psutil
import pytest

from tests.cli.conftest import TASK
from tests.tuning.fake_experimenter import STUDY, FakeExperimenter, write_study
from workbench.tuning import TuneProgress, read_result, tune
from workbench.tuning.study_file import StudyFile

N_TRIALS = int(os.environ.get("WORKBENCH_SOAK_TRIALS", "120"))
KIB = 1024.0


def in_use() -> tuple[int, int]:
    """Return threads and open files of this process."""
    return threading.active_count(), psutil.Process().num_fds()


def rss() -> int:
    return int(psutil.Process().memory_info().rss)


def slope(samples: list[tuple[float, int]]) -> float:
    """Return the growth per trial, bytes, of the second half of the samples: the first half is warming up."""
    n, size = np.array(samples[len(samples) // 2 :], dtype=np.float64).T
    return float(np.polyfit(n, size, 1)[0])


class Quiet(FakeExperimenter):
    """Keeps no log, which would grow."""

    def log(self, line: str) -> None:
        pass


def sampled(every: int) -> tuple[list[tuple[float, int]], Callable[[float], None]]:
    samples: list[tuple[float, int]] = []

    def note(n: float) -> None:
        if n >= (samples[-1][0] if samples else 0.0) + every:
            gc.collect()
            samples.append((n, rss()))

    return samples, note


@pytest.mark.slow
@pytest.mark.usefixtures("no_waiting_for_the_disk")
def test_a_long_search_grows_no_more_than_what_optuna_keeps(tmp_path: Path) -> None:
    text = STUDY.replace("n_trials = 10", f"n_trials = {N_TRIALS}") + "enabled = false\n[sampler]\nname = 'random'\n"
    directory = write_study(tmp_path / "s", text)
    every = max(N_TRIALS // 24, 1)
    ours, note = sampled(every)
    before: list[tuple[int, int]] = []

    def watch(progress: TuneProgress) -> None:
        if progress.phase == "search":
            note(float(progress.trials))
            if not before and progress.trials >= 3:
                before.append(in_use())

    def make(file: StudyFile, folder: Path) -> Quiet:
        return Quiet(folder)

    began = in_use()
    tune(directory, make_experimenter=make, on_progress=watch)
    gc.collect()
    ended = in_use()
    trials = read_result(directory).trials
    assert len(trials) >= N_TRIALS

    # What Optuna keeps of trials like these: the same attributes and values, in a database of its own.
    name = optuna.get_all_study_names(f"sqlite:///{directory / 'study.db'}")[0]
    stored = optuna.load_study(study_name=name, storage=f"sqlite:///{directory / 'study.db'}").get_trials()
    attributes: dict[str, Any] = json.loads(json.dumps(stored[-1].user_attrs))
    study = optuna.create_study(storage=f"sqlite:///{tmp_path / 'alone.db'}", sampler=optuna.samplers.RandomSampler(0))
    alone, note_alone = sampled(every)
    for n in range(len(trials)):
        trial = study.ask()
        for parameter, distribution in stored[-1].distributions.items():
            trial._suggest(parameter, distribution)
        for key, value in attributes.items():
            trial.set_user_attr(key, value)
        for step in range(10):
            trial.report(float(step), step)
        study.tell(trial, 1.0)
        study.get_trials(deepcopy=False)
        note_alone(float(n))
    growth, kept = slope(ours), slope(alone)
    print(f"\n{len(trials)} trials: {growth / KIB:.1f} KiB per trial, {kept / KIB:.1f} KiB Optuna's; {began} {ended}")
    assert ended[0] <= began[0]
    assert ended[1] <= began[1] + 2  # the database's own connection may stay in its pool
    # Pages come in pieces, so few trials scatter: within a mebibyte over the whole of the measured half.
    assert growth <= kept * 1.5 + 1024 * KIB / (N_TRIALS / 2) + 2 * KIB


@pytest.mark.slow
def test_training_again_and_again_leaves_no_thread_and_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench import BoostConfig, train

    (tmp_path / "wine.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    config = BoostConfig.from_dict({"boost": {"mode": "manual", "grad_freeze": True}})
    samples, note = sampled(1)
    n_runs = max(N_TRIALS // 6, 12)
    began = (0, 0)
    for n in range(n_runs):
        train("wine.py", config, level="O1", steps=4, seed=n, device="cpu", out=tmp_path / "runs")
        if n == 2:
            began = in_use()
        note(float(n))
    gc.collect()
    ended = in_use()
    growth = slope(samples)
    print(f"\n{n_runs} runs: {growth / KIB:.1f} KiB per run; {began} {ended}")
    assert ended[0] <= began[0]
    assert ended[1] <= began[1]
    assert growth <= 64 * KIB + 2048 * KIB / n_runs
