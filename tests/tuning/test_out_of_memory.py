"""A network that fills the memory: what does not fit is left out, and the rest is searched."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.trial import TrialState
from torch import Tensor

from tests.experiments.small_tasks import Net, small_task
from tests.kit.set_up_search import LINEAR, RUNTIME_STUDY, SEARCH_ALONE, run, stored_trials, write
from tests.kit.surface_runner import SurfaceRunner
from workbench.config import BoostConfig
from workbench.core.out_of_memory import is_out_of_memory
from workbench.methods.batch.section import BatchSection
from workbench.study import parse_study
from workbench.study.run.experimenter import TaskExperimenter
from workbench.study.run.job import Job, SpeedJob, TrainJob
from workbench.study.set_up.runtime_choice import batches_without_room, choose_runtime, note_no_room
from workbench.study.set_up.total_time import StepTimes

OFF = BoostConfig.from_dict({"boost": {"mode": "disable_all"}})
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
UNEQUAL = ValueError("batches of shapes (32, 12), (32, 9) cannot be concatenated; leave `batch.factor` at 1")
THREE_BATCHES = LINEAR + '\n"batch.factor" = [1.0, 2.0, 4.0]'


def full_runner(directory: Path, room: float, error: Exception = FULL) -> SurfaceRunner:
    """Return one without room for batches of so many of the task's; those of float32 take twice as much."""

    def fill(job: Job[Any]) -> None:
        config = job.candidate[0] if isinstance(job, SpeedJob) else job.config if isinstance(job, TrainJob) else OFF
        if config.part(BatchSection).factor * (0.5 if config.amp.level == "O2" else 1.0) >= room:
            raise error

    return SurfaceRunner(directory, noise=0.004, seed=3, before=fill)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (FULL, True),
        (MemoryError(), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB)."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("the loss has no gradient"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_what_lacks_memory_is_told_from_other_errors(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) == is_one


@pytest.mark.parametrize("error", [FULL, UNEQUAL], ids=["memory", "shapes"])
def test_a_batch_that_did_not_fit_is_not_tried_again(tmp_path: Path, error: Exception) -> None:
    folder = write(tmp_path / "study", space=THREE_BATCHES, n_trials=5, plain_runs=0, **SEARCH_ALONE)
    result = run(folder, full_runner(folder, room=2.0, error=error))
    trials = stored_trials(folder)
    failed = [one for one in trials if one.state == TrialState.FAIL]
    tried = [one.user_attrs["parameters"]["batch.factor"] for one in failed]
    assert tried == sorted(set(tried), reverse=True)  # each size once at most, and none above one that failed
    assert set(tried) <= {2.0, 4.0}
    assert 2.0 in tried
    after = trials[max(one.number for one in failed) + 1 :]
    assert after
    assert all(one.user_attrs["parameters"].get("batch.factor", 1.0) == 1.0 for one in after)
    assert all(result.trials[one.number].message.startswith(type(error).__name__) for one in failed)


RUNTIME = RUNTIME_STUDY.format(choices='"amp.level" = ["O0", "O2"]').replace('"amp.dtype" = "bfloat16"', "")


@pytest.mark.parametrize(
    ("room", "error", "no_room"),
    [
        (4.0, FULL, float("inf")),  # float32 has none for four batches, float16 has
        (2.0, FULL, 4.0),  # none of them has
        (2.0, ValueError("batches of texts cannot be concatenated"), float("inf")),  # memory is not to blame
    ],
)
def test_a_runtime_is_chosen_by_the_task_s_own_batches_where_larger_ones_cannot_be_timed(
    tmp_path: Path, room: float, error: Exception, no_room: float
) -> None:
    runner = full_runner(tmp_path, room, error)
    file, study, notes = parse_study(RUNTIME), optuna.create_study(), list[str]()
    choose_runtime(StepTimes(study, file, runner), notes.append)
    choice = study.user_attrs["runtime_choice"]
    assert choice["values"] == {"amp.level": "O2"}
    assert [len(row["ratios"]) for row in choice["measured"]] == [1, 2 if room == 4.0 else 1]
    assert batches_without_room(study.user_attrs) == no_room
    assert notes == []
    note_no_room(study, 2.0)
    note_no_room(study, 3.0)  # known already
    note_no_room(study, 1.0)  # the task's own batch says nothing of larger ones
    assert batches_without_room(study.user_attrs) == 2.0


def test_a_choice_that_fits_less_than_the_task_as_given_is_left_out(tmp_path: Path) -> None:
    def fill(job: Job[Any]) -> None:
        config = job.candidate[0] if isinstance(job, SpeedJob) else OFF
        if config.amp.level == "O2" and config.part(BatchSection).factor > 1.0:
            raise FULL

    runner = SurfaceRunner(tmp_path, before=fill)
    file, study, notes = parse_study(RUNTIME), optuna.create_study(), list[str]()
    choose_runtime(StepTimes(study, file, runner), notes.append)
    assert study.user_attrs["runtime_choice"]["values"] == {}
    assert notes == [f"Left out: amp.level = O2, because OutOfMemoryError: {FULL}."]


living = weakref.WeakSet[Net]()


class Large(Net):
    """Fits into the memory once and not twice."""

    def __init__(self) -> None:
        super().__init__()
        living.add(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``[n, 2]`` for features ``[n, 4]``, unless there are two of these networks."""
        if len(living) > 1:
            raise torch.OutOfMemoryError(str(FULL))  # a new one, whose frames die with it
        return super().forward(x)


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> Iterator[None]:
    """Leave what other tests hold out of each collection here: there are a dozen, of a second each."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def experimenter(tmp_path: Path) -> TaskExperimenter:
    gc.collect()
    return TaskExperimenter(small_task(model=Large), "cpu", tmp_path / "runs")


SPEED = SpeedJob((OFF, "O0"), (OFF, "O0"), seed=0, rounds=3, steps_per_block=2)


def test_times_are_compared_one_after_the_other_where_two_networks_do_not_fit(
    experimenter: TaskExperimenter, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = experimenter.run(SPEED)
    assert measured.low <= measured.ratio <= measured.high
    assert measured.baseline_ms > 0.0
    collected = list[int]()
    monkeypatch.setattr(gc, "collect", lambda: collected.append(1))
    assert experimenter.run(SPEED).ratio > 0.0
    assert collected == []  # it is known by now


def test_what_an_earlier_job_left_behind_does_not_take_its_memory(experimenter: TaskExperimenter) -> None:
    left = Large()
    left.itself = [left]  # type: ignore[assignment]  # as a compiled network has it
    del left
    trained = experimenter.run(TrainJob(OFF, "O0", steps=4))
    assert trained.steps == 4
    assert not trained.diverged


def test_what_does_not_fit_at_all_is_an_error(experimenter: TaskExperimenter) -> None:
    kept = Large()
    with pytest.raises(torch.OutOfMemoryError):
        experimenter.run(TrainJob(OFF, "O0", steps=4))
    with pytest.raises(torch.OutOfMemoryError):
        experimenter.run(SPEED)
    del kept
    assert experimenter.run(SPEED).ratio > 0.0
