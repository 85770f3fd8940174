"""A study records the weights its DimReduce candidates need, once per seed, counts what it costs, and exports them."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from tests.kit.fake_runner import DIM_REDUCE, STUDY, FakeRunner, calls, making, tuned, write_study
from tests.kit.processes import kill, start, wait_until
from workbench.config import BoostConfig
from workbench.core.records import TrialRecord, Verdict
from workbench.methods.dim_reduce.pca_files import load_pca_matrix
from workbench.study import StudyError, export_study, tune
from workbench.study.answer.confirming import Confirmation
from workbench.study.answer.selection import Contender
from workbench.study.ask.study_file import StudyFile, parse_study
from workbench.study.run.job import UNMONITORED, Job, Monitor, SpeedJob, Trained, TrainJob
from workbench.study.run.warm_up import WarmUpError, WarmUps, find_warm_up

SPACE = STUDY[STUDY.index("[space]") : STUDY.index("[confirm]")]
REDUCING = STUDY.replace(SPACE, '[space]\n"boost.dim_reduce" = [true]\n"dim_reduce.n_components" = [2, 4]\n\n')
REDUCING = REDUCING.replace("n_trials = 10", "n_trials = 3").replace("= 8", "= 6")
FILE = parse_study(REDUCING)
REDUCED = BoostConfig.from_dict({"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": {"n_components": 2}})
PLAN = FILE.plans.resolve(REDUCED, "O1")


def warm_ups_trained(directory: Path) -> list[str]:
    return [line.split()[-1] for line in calls(directory) if line.startswith("trained") and "warm_up" in line]


def test_defaults_keep_one_snapshot_more_than_components_over_a_quarter_of_the_budget() -> None:
    assert (FILE.warm_up.count, FILE.warm_up.every_steps, FILE.warm_up_steps) == (5, 6, 24)
    stated = parse_study(REDUCING + "[baseline.snapshots]\ncount = 9\nevery_steps = 3\nstart_step = 2\n")
    assert (stated.warm_up.count, stated.warm_up_steps) == (9, 26)
    assert stated.base_config().snapshots.count == 0  # trials keep none


def test_a_warm_up_that_cannot_serve_is_refused_before_anything_runs() -> None:
    few = "[baseline.snapshots]\ncount = 4\n"
    with pytest.raises(
        StudyError, match=r"must exceed the largest `dim_reduce.n_components` of the study \(4\), got 4"
    ):
        parse_study(REDUCING + few)
    parse_study(STUDY + few)  # they matter only where DimReduce may be in effect
    with pytest.raises(StudyError, match=r"`snapshots\.count` cannot be searched"):
        parse_study(REDUCING + '[space.snapshots]\n"count" = [8, 9]\n')


def test_a_plan_without_dim_reduce_or_with_a_source_of_its_own_records_nothing(tmp_path: Path) -> None:
    warm_ups = WarmUps(FILE, tmp_path, FakeRunner(tmp_path))
    for values in ({"boost.dim_reduce": False}, {"dim_reduce.weight_load_dir": "elsewhere"}):
        plan = FILE.plans.resolve(REDUCED.with_values(values), "O1")
        assert warm_ups.before(plan, 0).snapshots is None
        assert warm_ups.before(plan, 0).steps == 0
    assert calls(tmp_path) == []


def test_each_seed_is_recorded_once(tmp_path: Path) -> None:
    warm_ups = WarmUps(FILE, tmp_path, FakeRunner(tmp_path))
    first = warm_ups.before(PLAN, 0)
    assert first.snapshots == tmp_path / "runs" / "warm_up_seed_0" / "snapshots"
    assert first.steps == 24
    assert warm_ups.before(PLAN, 0) == first
    assert warm_ups.before(PLAN, 1).snapshots != first.snapshots
    assert WarmUps(FILE, tmp_path, FakeRunner(tmp_path)).before(PLAN, 0) == first
    assert warm_ups_trained(tmp_path) == ["warm_up_seed_0", "warm_up_seed_1"]


def test_a_recording_somebody_deleted_from_is_recorded_again(tmp_path: Path) -> None:
    warm_ups = WarmUps(FILE, tmp_path, FakeRunner(tmp_path))
    first = warm_ups.before(PLAN, 0)
    assert first.snapshots is not None
    next(first.snapshots.iterdir()).unlink()
    assert find_warm_up(FILE, tmp_path, 0) is None
    assert warm_ups.before(PLAN, 0).snapshots == tmp_path / "runs" / "warm_up_seed_0.2" / "snapshots"


class Failing(FakeRunner):
    """O0 diverges in its warm-up with the seeds named."""

    seeds = frozenset({0})

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if isinstance(job, TrainJob) and job.config.snapshots.count and job.seed in self.seeds:
            self.log(f"diverged {job.seed}")
            return Trained(float("nan"), (), 1.0, diverged=True, message="step 3: the loss is NaN", path="runs/none")
        return super().run(job, monitor)


def test_a_warm_up_that_diverges_is_one_sentence_and_not_tried_again(tmp_path: Path) -> None:
    warm_ups = WarmUps(FILE, tmp_path, Failing(tmp_path))
    for _ in range(2):
        with pytest.raises(WarmUpError, match=r"O0 with seed 0 did not get through its warm-up .*the loss is NaN"):
            warm_ups.before(PLAN, 0)
    assert calls(tmp_path) == ["diverged 0"]


def test_a_study_whose_warm_up_diverges_refuses_those_trials_and_exports_o0(tmp_path: Path) -> None:
    result = tuned(tmp_path, REDUCING, make_experimenter=making(Failing))
    assert result.chosen == {"o1": "O0", "o2": "O0"}
    assert all("did not get through its warm-up" in trial.message for trial in result.trials[1:])
    assert not any(trial.feasible for trial in result.trials[1:])


def test_a_seed_of_the_confirmation_whose_warm_up_diverges_refutes_the_candidate(tmp_path: Path) -> None:
    result = tuned(tmp_path, REDUCING, make_experimenter=making(Failing, seeds={1001}))
    assert result.candidates
    assert {one.verdict for one in result.candidates} == {Verdict.REFUTED}


FASTEST_SET_UP = """n_trials = 2
objective = "time_to_quality"
[allowed_drop]
o1 = 0.05
[sampler]
name = "promise"
[pruner]
name = "none"
[set_up]
plain_runs = 0
attribution_share = 0.0
leader_seeds = 3
"""
SET_UP = DIM_REDUCE.replace("n_trials = 3\n", FASTEST_SET_UP)


class Quick(Failing):
    """DimReduce halves the time of a step; notes whose snapshots a run is trained from."""

    seeds = frozenset()

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if isinstance(job, TrainJob) and job.config.dim_reduce.weight_load_dir:
            self.log(f"reduced {job.seed} from {Path(job.config.dim_reduce.weight_load_dir).parent.name}")
        outcome = super().run(job, monitor)
        return replace(outcome, ratio=0.5, low=0.49, high=0.51) if isinstance(job, SpeedJob) else outcome


def test_every_run_of_a_search_for_a_set_up_is_trained_from_the_snapshots_of_its_own_seed(tmp_path: Path) -> None:
    result = tuned(tmp_path, SET_UP, make_experimenter=making(Quick))
    reduced = [line.split()[1:] for line in calls(tmp_path) if line.startswith("reduced")]
    assert len({seed for seed, *_ in reduced}) >= 5
    assert all(folder == f"warm_up_seed_{seed}" for seed, _, folder in reduced)
    assert result.trials[1].state == "complete"


def test_a_further_seed_of_a_leader_whose_warm_up_diverges_is_one_on_which_it_diverged(tmp_path: Path) -> None:
    result = tuned(tmp_path, SET_UP, make_experimenter=making(Quick, seeds={5}))
    assert "diverged 5" in calls(tmp_path)
    assert result.trials[1].state == "complete"
    assert not result.trials[1].feasible


def test_the_time_of_a_further_seed_includes_its_warm_up(tmp_path: Path) -> None:
    experimenter, study = FakeRunner(tmp_path), optuna.create_study()
    trial = TrialRecord(1, "complete", relative_step_time=1.5, relative_low=1.4, relative_high=1.6)
    contender = Contender(trial, "o1", PLAN.config, PLAN, 0.02)
    Confirmation(study, FILE, experimenter, WarmUps(FILE, tmp_path, experimenter)).judge({"o1": [contender]})
    seconds = {name: run["seconds"] for name, run in study.user_attrs.items() if name.endswith(":1000:100:10")}
    assert seconds.pop(f"confirm:{PLAN.key()}:1000:100:10") == pytest.approx(0.02)
    assert list(seconds.values()) == [0.01]  # O0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_study(tmp_path_factory.mktemp("reducing") / "s", REDUCING)
    tuned(directory)
    return directory


def test_all_trials_share_one_warm_up_and_every_seed_of_the_confirmation_has_its_own(finished: Path) -> None:
    before = calls(finished)
    result = tuned(finished)
    assert calls(finished) == before
    assert result.chosen["o1"] != "O0"
    assert all("After a warm-up of 24 batches of O0." in one.sentence for one in result.candidates)
    seeds = len(result.candidates[0].metrics)  # trained; a look at half of them may have closed the drop
    assert warm_ups_trained(finished) == ["warm_up_seed_0", *(f"warm_up_seed_{1000 + seed}" for seed in range(seeds))]


def test_an_export_carries_the_matrix_of_the_search_s_seed_and_says_how_to_move_it(
    finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "elsewhere"
    result = export_study(finished, out)
    config = BoostConfig.from_json(result.exported["o1"])
    assert config.boost.dim_reduce
    assert config.dim_reduce.weight_load_dir is None
    assert config.dim_reduce.pca_mat_path == str((out / "pca_mat.o1.npy").absolute())
    assert config.resolve("O1").dim_reduce
    k = config.dim_reduce.n_components
    matrix = load_pca_matrix(out / "pca_mat.o1.npy", n_components=k)
    assert matrix.shape == (k, 7)
    number = float(sum(map(ord, "warm_up_seed_0")))
    assert np.array_equal(matrix, np.full((k, 7), number))
    assert json.loads((out / "pca_mat.o1.json").read_text(encoding="utf-8"))
    assert config.provenance is not None
    told = config.provenance["dim_reduce"]
    for word in ("dim_reduce.pca_mat_path", "absolute path", "order of the optimizer's parameters", "seed 0"):
        assert word in told


def test_an_export_of_o0_leaves_no_matrix_of_an_earlier_choice(tmp_path: Path) -> None:
    text = REDUCING.replace("[confirm]", "[confirm]\nenabled = false")
    write_study(tmp_path, text)
    assert tuned(tmp_path).chosen["o1"] != "O0"
    assert (tmp_path / "result" / "pca_mat.o1.npy").exists()
    assert tuned(tmp_path, require_confirmed=True).chosen["o1"] == "O0"
    assert not list((tmp_path / "result").glob("pca_mat*"))


def test_components_that_are_not_here_are_one_sentence(finished: Path, tmp_path: Path) -> None:
    elsewhere = shutil.copytree(finished, tmp_path / "s")
    shutil.rmtree(elsewhere / "runs")
    with pytest.raises(StudyError, match="of a DimReduce candidate are not in the warm-up of this study"):
        export_study(elsewhere, tmp_path / "out")


def test_a_matrix_given_in_the_baseline_is_exported_and_nothing_is_recorded(tmp_path: Path) -> None:
    given = tmp_path / "given.npy"
    np.save(given, np.arange(40.0).reshape(5, 8))
    text = REDUCING + f"[baseline.dim_reduce]\npca_mat_path = '{given}'\n"
    result = tune(write_study(tmp_path / "s", text), make_experimenter=making(Given))
    assert warm_ups_trained(tmp_path / "s") == []
    assert all(trial.warm_up_steps == 0 for trial in result.trials)
    config = BoostConfig.from_json(result.exported["o1"])
    k = config.dim_reduce.n_components
    assert np.array_equal(np.load(tmp_path / "s" / "result" / "pca_mat.o1.npy"), np.arange(40.0).reshape(5, 8)[:k])


class Given(FakeRunner):
    """Computes no subspace, since it is given one."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if isinstance(job, TrainJob):
            assert job.config.dim_reduce.pca_mat_path is not None
            if job.config.boost.dim_reduce:
                job = replace(job, config=job.config.with_values({"boost.dim_reduce": False}))
        elif isinstance(job, SpeedJob):
            reduced = job.candidate[0].with_values({"boost.dim_reduce": False, "boost.less_bn": True})
            job = replace(job, candidate=(reduced, "O1"))
        return super().run(job, monitor)


@pytest.mark.slow
def test_kill_minus_nine_in_the_warm_up_leaves_nothing_that_is_taken_for_complete(tmp_path: Path) -> None:
    write_study(tmp_path, REDUCING)
    half = tmp_path / "runs" / "warm_up_seed_0" / "snapshots"
    process = start(tune, tmp_path, make_experimenter=make_very_slow_fake)
    wait_until(lambda: half.is_dir() and any(half.iterdir()))
    kill(process)
    assert 0 < len(list(half.iterdir())) < 5
    assert find_warm_up(FILE, tmp_path, 0) is None
    result = tuned(tmp_path)
    assert len(result.trials) == 3
    assert {trial.state for trial in result.trials} <= {"complete", "pruned"}
    whole = find_warm_up(FILE, tmp_path, 0)
    assert whole is not None
    assert whole.snapshots == tmp_path / "runs" / "warm_up_seed_0.2" / "snapshots"
    assert warm_ups_trained(tmp_path).count("warm_up_seed_0") == 1


def make_very_slow_fake(file: StudyFile, directory: Path) -> FakeRunner:
    return FakeRunner(directory, seconds=0.05)


@pytest.mark.slow
def test_workers_that_need_the_same_warm_up_record_it_once(tmp_path: Path) -> None:
    # Threads are enough here: each opens the lock by itself, as a process does.
    both = threading.Barrier(2)

    def need() -> Path | None:
        both.wait()
        return WarmUps(FILE, tmp_path, FakeRunner(tmp_path, seconds=0.02)).before(PLAN, 0).snapshots

    with ThreadPoolExecutor(2) as pool:
        found = [future.result() for future in [pool.submit(need), pool.submit(need)]]
    assert found == [tmp_path / "runs" / "warm_up_seed_0" / "snapshots"] * 2
    assert warm_ups_trained(tmp_path) == ["warm_up_seed_0"]
