"""A real study of a tiny network with DimReduce in its space, from the warm-up to the exported matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.kit.fake_runner import write_study
from tests.kit.runs import run_task
from workbench.cli import app
from workbench.config import BoostConfig
from workbench.methods.dim_reduce.pca_files import load_explained_variance, load_pca_matrix
from workbench.study import StudyResult, TaskExperimenter, tune
from workbench.study.ask.study_file import StudyFile, read_study
from workbench.study.run.job import UNMONITORED, Job, Monitor, SpeedJob, SpeedMeasured, TrainJob
from workbench.study.run.warm_up import find_warm_up
from workbench.tasks import load_task

TASK = """
from torch import nn

from tests.experiments.small_tasks import small_task

task = small_task(model=lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
"""
N_WEIGHTS = 4 * 8 + 8 + 8 * 2 + 2

# O0 hardly learns at this rate, so that a few steps in the subspace of its own path reach what it reaches in the end.
STUDY = """
[study]
task = "task.py:task"
budget_steps = 100
evaluate_every = 10
n_trials = 3
device = "cpu"

[allowed_drop]
o1 = 0.0

[baseline.optimizer]
name = "SGD"
lr = 0.006

[baseline.snapshots]
count = 5
every_steps = 3

[speed]
rounds = 2
steps_per_block = 2

[space]
"boost.dim_reduce" = [true]
"dim_reduce.n_components" = [2, 3]
"dim_reduce.line_search_trials" = [4, 8]
"dim_reduce.alpha" = { low = 0.01, high = 0.1, log = true }

[confirm]
seeds_min = 6
seeds_max = 6
candidates = 1
"""


class Steady(TaskExperimenter):
    """Trains for real; how fast a step is does not hang on what else this machine does."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        outcome = super().run(job, monitor)
        return SpeedMeasured(1.5, 1.4, 1.6) if isinstance(job, SpeedJob) else outcome


class InterruptedInTheWarmUp(Steady):
    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if isinstance(job, TrainJob) and job.config.snapshots.count:
            super().run(replace(job, steps=job.steps // 2, evaluate_every=1), monitor)
            raise KeyboardInterrupt
        return super().run(job, monitor)


def steady(file: StudyFile, directory: Path) -> Steady:
    return Steady(file.study.task, "cpu", directory / "runs")


def interrupted(file: StudyFile, directory: Path) -> InterruptedInTheWarmUp:
    return InterruptedInTheWarmUp(file.study.task, "cpu", directory / "runs")


def runs_of(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "runs").iterdir() if path.name != "warm_ups")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, StudyResult]]:
    """A study that was interrupted in its warm-up and then run to its end: its folder and its result."""
    folder = write_study(tmp_path_factory.mktemp("real") / "s", STUDY)
    (folder / "task.py").write_text(TASK, encoding="utf-8")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a network only waits for a second one
    with pytest.raises(KeyboardInterrupt):
        tune(folder, make_experimenter=interrupted)
    yield folder, tune(folder, make_experimenter=steady)
    torch.set_num_threads(threads)


def test_an_interrupted_warm_up_is_recorded_anew_and_then_never_again(ended: tuple[Path, StudyResult]) -> None:
    directory, _ = ended
    names = ["trial_0000", "trial_0001", "trial_0002", "warm_up_seed_0", "warm_up_seed_0.2"]
    assert runs_of(directory) == [*names, *(f"warm_up_seed_{1000 + seed}" for seed in range(6))]
    found = find_warm_up(read_study(directory), directory, 0)
    assert found is not None
    assert found.snapshots == directory / "runs" / "warm_up_seed_0.2" / "snapshots"
    before = runs_of(directory)
    tune(directory, make_experimenter=steady)
    assert runs_of(directory) == before


def test_a_trial_costs_its_warm_up_and_its_steps(ended: tuple[Path, StudyResult]) -> None:
    o0, *reducing = ended[1].trials
    assert o0.value == o0.steps_to_target > 12
    for trial in reducing:
        assert trial.summary.startswith("DimReduce")
        assert trial.warm_up_steps == 12
        assert trial.metric > o0.metric
        assert trial.value == pytest.approx(12 + trial.relative_step_time * trial.steps_to_target)


def test_the_export_trains_on_its_own_and_is_valid(ended: tuple[Path, StudyResult], tmp_path: Path) -> None:
    directory, result = ended
    path = result.exported["o1"]
    config = BoostConfig.from_json(path)
    section = config.dim_reduce
    assert result.chosen["o1"] != "O0"
    assert section.pca_mat_path == str(path.parent.absolute() / "pca_mat.o1.npy")
    assert section.weight_load_dir is None
    matrix = load_pca_matrix(section.pca_mat_path, n_components=section.n_components, n_weights=N_WEIGHTS)
    assert np.allclose(matrix @ matrix.T, np.eye(section.n_components), atol=1e-5)
    shares = load_explained_variance(section.pca_mat_path)
    assert shares is not None
    assert shares.shape == (section.n_components,)
    validated = CliRunner().invoke(app, ["validate", str(path), "--level", "O1"])
    assert validated.exit_code == 0, validated.output
    assert "DimReduce" in validated.output
    # The same task, seed and steps give the trial's own curve again, now from the matrix alone.
    chosen = next(trial for trial in result.trials if f"trial {trial.number}" == result.chosen["o1"])
    task = load_task("task.py:task", folder=directory)
    again = run_task(
        task, config, level="O1", steps=100, seed=0, device=torch.device("cpu"), out=tmp_path, evaluate_every=10
    )
    assert again.curve == chosen.curve
