"""Whole searches for the fastest set-up on the surface of `surface_runner`: their study, and how they are run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna

from tests.kit.surface_runner import SurfaceRunner, step_ratio
from workbench.config import BoostConfig
from workbench.core.records import CandidateRecord, StudyResult
from workbench.methods.batch.section import BatchSection
from workbench.methods.schedule.section import ScheduleSection
from workbench.study import tune
from workbench.study.ask.study_file import StudyFile, read_study
from workbench.study.run.searching import Search
from workbench.study.store import storage as kept

ALLOWED = 0.02
STUDY = """\
[study]
task = "fake"
budget_steps = 200
n_trials = {n_trials}
objective = "time_to_quality"
[allowed_drop]
o1 = {allowed}
[sampler]
name = "promise"
[pruner]
name = "none"
[set_up]
plain_rates = [0.05, 0.1]
plain_runs = {plain_runs}
leader_seeds = 6
{set_up}
[space]
"optimizer.name" = ["AdamW", "SGD"]
"optimizer.lr" = {{low = 0.001, high = 0.3, log = true}}
"schedule.length" = {{low = 0.1, high = 0.9, log = true}}
{space}
[confirm]
enabled = {confirms}
seeds_min = 10
seeds_max = 20
candidates = {candidates}
"""
RUNTIME_STUDY = """
[study]
task = "fake"
budget_steps = 200
n_trials = 5
objective = "time_to_quality"
device = "cpu"
[allowed_drop]
o1 = 0.01
[baseline]
"amp.dtype" = "bfloat16"
[sampler]
name = "promise"
[pruner]
name = "none"
[set_up.runtime]
{choices}
[space]
"schedule.length" = {{low = 0.1, high = 0.9}}
"batch.factor" = [1.0, 2.0, 4.0]
"""
LINEAR = '"schedule.shape" = ["linear"]'
USUAL = {"space": LINEAR + '\n"batch.factor" = [1.0, 2.0]', "allowed": ALLOWED, "set_up": "", "n_trials": 14}
USUAL |= {"plain_runs": 9, "candidates": 1, "confirms": "true"}
SEARCH_ALONE = {"set_up": "attribution_share = 0.0", "confirms": "false"}
"""What `write` changes where neither the parts of the gain nor a confirmation matter: a third of the time."""


def write(folder: Path, **changed: Any) -> Path:
    """Write a study; what may be changed stands in `USUAL`."""
    folder.mkdir(exist_ok=True)
    (folder / "study.toml").write_text(STUDY.format(**USUAL | changed))
    return folder


def run(folder: Path, *runners: SurfaceRunner, **options: Any) -> StudyResult:
    """Tune with a runner of the surface; a given one records what it was asked."""
    runner = runners[0] if runners else SurfaceRunner(folder)
    return tune(folder, make_experimenter=lambda _file, _folder: runner, **options)


def taken_of(result: StudyResult) -> tuple[CandidateRecord, BoostConfig]:
    """Return what is exported, which is not the baseline, and its configuration."""
    taken = result.choices["o1"].candidate
    assert taken is not None
    return taken, BoostConfig.from_dict(taken.config)


def stored_trials(folder: Path) -> list[optuna.trial.FrozenTrial]:
    study = optuna.load_study(study_name=folder.name, storage=f"sqlite:///{folder / 'study.db'}")
    return study.get_trials(deepcopy=False)


def waiting_trials(folder: Path) -> list[optuna.trial.FrozenTrial]:
    return [one for one in stored_trials(folder) if one.state == optuna.trial.TrialState.WAITING]


def predicted_time(config: BoostConfig) -> float:
    return step_ratio(config) * config.part(ScheduleSection).length / config.part(BatchSection).factor


@contextmanager
def begun_with(runner: SurfaceRunner, **changed: Any) -> Iterator[tuple[StudyFile, optuna.Study, Search]]:
    """Begin a study in the runner's folder, which trains O0, and open it."""
    folder = write(runner.directory, **{"plain_runs": 0} | changed)
    run(folder, runner, trials=1)
    with searching(folder, runner) as opened:
        yield opened


@contextmanager
def searching(folder: Path, runner: SurfaceRunner) -> Iterator[tuple[StudyFile, optuna.Study, Search]]:
    """Open a study that was begun, to run trials in it by hand."""
    with kept.quiet_optuna():
        database = kept.open_storage(kept.default_storage(folder))
        study, file = kept.find_study(database, folder.name), read_study(folder)
        where = (file, folder, database, study, runner)
        yield file, study, Search(*where, n_trials=14, deadline=None)
