"""A run that was interrupted goes on from its checkpoint, with the same bits."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.experiments.small_tasks import Net, small_task
from tests.kit.configurations import accumulating, freezing
from tests.kit.processes import run_command, start, wait_until
from tests.kit.runs import run_task
from tests.ranks import Ranks
from workbench import api
from workbench.cli import app
from workbench.config import BoostConfig
from workbench.core import distributed as ranks
from workbench.methods.dim_reduce.pca_files import save_pca_matrix
from workbench.runs import read_run
from workbench.study.run.experimenter import TaskExperimenter
from workbench.study.run.job import Monitor, TrainJob
from workbench.tasks import Task
from workbench.training import run as run_module
from workbench.training.checkpoint import read_checkpoint
from workbench.training.checkpoint_folder import CheckpointFolder
from workbench.training.resuming import ResumeError
from workbench.training.run import RunResult

CPU = torch.device("cpu")
STEPS = 16
NOTHING = {"boost": {"mode": "disable_all"}}
CONFIGS: dict[str, dict[str, Any]] = {
    "nothing": NOTHING,
    "freezing": freezing(2, steps=STEPS),
    "accumulation": {**accumulating(3), "loss_scale": {"kind": "dynamic", "init": 16.0, "window": 2}},
    "set-up": {
        "boost": {"mode": "manual", "less_bn": False, "grad_freeze": False},
        "optimizer": {"name": "AdamW", "lr": 0.01},
        "schedule": {"length": 0.5, "shape": "cosine", "warmup": 0.2},
        "batch": {"factor": 0.5},
        "regularization": {"weight_average": "ema", "decay": 0.9},
        "loss_scale": {"kind": "dynamic", "init": 16.0, "window": 2},
    },
}

OF_RATE = """
import dataclasses, torch
from tests.experiments.small_tasks import small_task
task = dataclasses.replace(small_task(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr={}))
"""

MANUAL = {"mode": "manual", "less_bn": False, "grad_freeze": False}
WITH_STATE: dict[str, dict[str, Any]] = {
    "thor": {"boost": MANUAL, "optimizer": {"name": "thor", "lr": 0.05}},
    "offload": {"boost": MANUAL, "optimizer": {"name": "adam_offload", "lr": 0.01}},
    "group scales": {
        "boost": {**MANUAL, "loss_scale_group": True},
        "loss_scale": {"kind": "dynamic", "init": 16.0, "window": 2},
    },
    "subspace": {
        "boost": {**MANUAL, "dim_reduce": True},
        "dim_reduce": {"n_components": 4, "rho": 0.55, "gamma": 0.9, "alpha": 0.001, "sigma": 0.4},
    },
    "curriculum": {"boost": MANUAL, "curriculum": {"kind": "resolution", "start": 0.5, "until": 0.7, "stages": 3}},
}


class Drawing(Net):
    """A net that draws from numpy's and Python's global generators, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = float(np.random.normal(scale=0.01)) if self.training else 0.0  # noqa: NPY002
        return super().forward(x + noise)


def checkpoints(folder: Path, every: int = 5) -> CheckpointFolder:
    return CheckpointFolder(folder, every, keep=9)


def train(task: Task, config: dict[str, Any], **options: Any) -> RunResult:
    options = {"steps": STEPS, "evaluate_every": 8, "exponents_every": 2, "device": CPU} | options
    return run_task(task, BoostConfig.from_dict(config), level="O1", **options)


def stopping_after(n_asked: int) -> Callable[[], bool]:
    """Return a function that says stop from the time on when it is asked so often, once per step."""
    asked = itertools.count(1)
    return lambda: next(asked) >= n_asked


def weights_in(folder: CheckpointFolder) -> dict[str, torch.Tensor]:
    return dict(read_checkpoint(folder.newest(), CPU)["boosted"]["model"])


def losses_of(result: RunResult) -> list[float]:
    return list(read_run(result.path).steps["loss"])


def _images() -> Task:
    def block() -> torch.nn.Module:
        layers = [torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)]
        return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Dropout(0.1), torch.nn.Linear(4, 2))

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 6, 1, 8, 8, generator=generator)
    batches = [(images, (images.mean(dim=(1, 2, 3)) > 0).long()) for images in x]
    return dataclasses.replace(small_task(model=block), train=batches, evaluate=batches[:5])


@pytest.mark.parametrize("name", [*CONFIGS, *WITH_STATE])
def test_a_stopped_run_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    config = (CONFIGS | WITH_STATE)[name]
    if name == "subspace":
        size = sum(parameter.numel() for parameter in Drawing().parameters())
        matrix = np.linalg.qr(np.random.default_rng(0).normal(size=(size, 4)))[0].T.astype(np.float32)
        save_pca_matrix(tmp_path / "pca.npy", matrix)
        config = {**config, "dim_reduce": {**config["dim_reduce"], "pca_mat_path": str(tmp_path / "pca.npy")}}
    new_task = _images if name == "curriculum" else functools.partial(small_task, model=Drawing)
    whole_folder, folder = checkpoints(tmp_path / "whole"), checkpoints(tmp_path / "cut")
    whole = train(new_task(), config, out=tmp_path / "runs", checkpoints=whole_folder)
    for taken, steps in ((4, 4), (7, 11)):  # between two windows of micro-batches, and within one
        first = train(new_task(), config, out=tmp_path / "runs", checkpoints=folder, stop=stopping_after(taken))
        assert (first.stopped, first.steps) == (True, steps)
        assert not read_run(first.path).finished
    torch.manual_seed(99)
    second = train(new_task(), config, out=tmp_path / "runs", checkpoints=folder)
    assert second.path == first.path
    assert read_run(first.path).finished
    assert losses_of(second) == losses_of(whole)
    same = ("metric", "curve", "steps", "overflows", "final_loss", "final_loss_scale", "diverged", "stopped", "notes")
    for field in same:
        assert getattr(second, field) == getattr(whole, field), field
    for key, value in weights_in(whole_folder).items():
        assert torch.equal(value, weights_in(folder)[key]), key
    columns = ["loss_scale", "overflow", "grad_norm", "learning_rate", "frozen_groups"]
    recorded = [read_run(one.path).steps[columns] for one in (whole, second) if one.path is not None]
    assert recorded[0].equals(recorded[1])
    exponents = [read_run(one.path).steps["grad_exponents"].map(len).tolist() for one in (whole, second) if one.path]
    assert exponents[0] == exponents[1]


class WarmUp:
    """A scheduler of one's own, with nothing but ``step()``."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.n_steps = optimizer, 0
        self.step()

    def step(self) -> None:
        self.n_steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.01 * self.n_steps


def _by_numpy(optimizer: torch.optim.Optimizer, total: int) -> Any:
    """Return a scheduler that keeps numbers of numpy's, and an array."""
    table = 0.5 * (1.0 + np.cos(np.pi * np.arange(total + 1) / total))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: table[step])
    scheduler.table = table  # type: ignore[attr-defined]
    return scheduler


@pytest.mark.parametrize("scheduler", [_by_numpy, lambda one, _: WarmUp(one)], ids=["numbers of numpy's", "no state"])
def test_whatever_the_scheduler_is_a_stopped_run_goes_on(scheduler: Any, tmp_path: Path) -> None:
    task = dataclasses.replace(small_task(), scheduler=scheduler)
    whole_folder, folder = checkpoints(tmp_path / "whole"), checkpoints(tmp_path / "cut")
    train(task, NOTHING, checkpoints=whole_folder)
    assert train(task, NOTHING, checkpoints=folder, stop=stopping_after(6)).stopped
    train(task, NOTHING, checkpoints=folder)
    for key, value in weights_in(whole_folder).items():
        assert torch.equal(value, weights_in(folder)[key]), key


class Noisy(Drawing):
    """A net that draws in its evaluation, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + float(np.random.normal(scale=0.01)))  # noqa: NPY002


def long_evaluation(batches_seen: list[int]) -> Task:
    """Return a task that counts the batches of its evaluations, twenty each."""

    def batches(seed: int) -> Any:
        for batch in list(small_task().evaluation_batches(seed))[:1] * 20:
            batches_seen.append(len(batches_seen))
            yield batch

    return dataclasses.replace(small_task(model=Noisy), evaluate=batches, data_hash="long")


@functools.cache
def not_stopped() -> RunResult:
    return train(long_evaluation([]), NOTHING)


def assert_goes_on_as_if_not_stopped(folder: Path, *, every: int | None, keep_end: bool, where: int) -> None:
    """Stop a run while it is evaluated, go on with it, and compare with one that was not stopped."""
    whole, seen = not_stopped(), list[int]()
    kept = CheckpointFolder(folder, every, keep=9, keep_end=keep_end)
    first = train(long_evaluation(seen), NOTHING, checkpoints=kept, stop=lambda: len(seen) > where)
    assert (first.stopped, first.steps, kept.newest_step()) == (True, first.steps, first.steps)
    assert "while it was evaluated" in first.message
    assert len(seen) < where + 10
    torch.manual_seed(99)
    second = train(long_evaluation([]), NOTHING, checkpoints=kept)
    for field in ("metric", "curve", "steps", "final_loss", "stopped"):
        assert getattr(second, field) == getattr(whole, field), field


@pytest.mark.parametrize("keep_end", [True, False])
@pytest.mark.parametrize("where", [7, 27], ids=["on the way", "at the end"])
def test_a_run_stopped_in_an_evaluation_loses_no_step_and_makes_it_again(
    where: int, keep_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_LONG_EVALUATION", 0.0)
    assert_goes_on_as_if_not_stopped(tmp_path, every=5, keep_end=keep_end, where=where)


def test_a_run_stopped_when_an_evaluation_was_due_makes_it_when_it_goes_on(tmp_path: Path) -> None:
    whole = train(small_task(), NOTHING)
    first = train(small_task(), NOTHING, checkpoints=checkpoints(tmp_path), stop=stopping_after(8))
    assert (first.steps, first.curve) == (8, ())
    judged: list[int] = []
    options = {"on_evaluation": lambda step, _: judged.append(step), "checkpoints": checkpoints(tmp_path)}
    second = train(small_task(), NOTHING, **options)
    assert second.curve == whole.curve
    assert judged == [8, 16]


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path) -> None:
    folder = checkpoints(tmp_path / "cut")
    whole = train(small_task(), NOTHING, checkpoints=checkpoints(tmp_path / "whole"))
    train(small_task(), NOTHING, checkpoints=folder, stop=stopping_after(12))
    assert {5, 12} <= set(folder.steps()), "the first and the last; one between is left out while a slow disk writes"
    path = folder.path_of(12)
    content = bytearray(path.read_bytes())
    weights = read_checkpoint(path, CPU)["boosted"]["model"]["first.weight"].numpy().tobytes()
    content[bytes(content).index(weights) + 5] ^= 0x10
    path.write_bytes(content)
    with pytest.warns(RuntimeWarning, match=r"checkpoint-0+12\.pt: .*damaged.*; it is skipped"):
        resumed = train(small_task(), NOTHING, checkpoints=folder)
    assert (resumed.metric, resumed.curve) == (whole.metric, whole.curve)


def test_where_no_checkpoint_is_whole_the_sentence_says_so(tmp_path: Path) -> None:
    folder = checkpoints(tmp_path)
    train(small_task(), NOTHING, checkpoints=folder, stop=stopping_after(3))
    folder.path_of(3).write_bytes(b"x")
    with pytest.warns(RuntimeWarning, match="skipped"), pytest.raises(ResumeError, match="none of the 1 check"):
        train(small_task(), NOTHING, checkpoints=folder)


def test_a_run_that_ended_is_only_evaluated_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoints": checkpoints(tmp_path)}
    whole = train(small_task(), NOTHING, **options)
    again = train(small_task(fail_at=0), NOTHING, **options)
    assert (again.metric, again.curve[-1], again.steps) == (whole.metric, whole.curve[-1], whole.steps)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"seed": 1}, "another `seed`: it was 0, and is 1"),
        ({"steps": STEPS + 1}, f"another `steps`: it was {STEPS}, and is {STEPS + 1}"),
    ],
)
def test_another_run_s_checkpoints_are_refused(other: dict[str, Any], words: str, tmp_path: Path) -> None:
    train(small_task(), NOTHING, checkpoints=checkpoints(tmp_path), stop=stopping_after(6))
    with pytest.raises(ResumeError, match=words):
        train(small_task(), NOTHING, checkpoints=checkpoints(tmp_path), **other)
    with pytest.raises(ResumeError, match="another `config`"):
        train(small_task(), CONFIGS["set-up"], checkpoints=checkpoints(tmp_path))
    with pytest.raises(ResumeError, match="another `data`: it was points 1, and is points 2"):
        train(dataclasses.replace(small_task(), data_hash="points 2"), NOTHING, checkpoints=checkpoints(tmp_path))


def test_train_goes_on_with_a_run_or_with_the_newest_of_a_folder(tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": STEPS, "device": "cpu", "evaluate_every": 8}
    whole = api.train(small_task(), out=tmp_path / "whole", **options)
    cut = api.train(small_task(), out=tmp_path / "runs", checkpoint_every=5, stop=stopping_after(7), **options)
    resumed = api.train(small_task(), resume=tmp_path / "runs", **options)
    assert resumed.path == cut.path
    assert (resumed.metric, resumed.curve) == (whole.metric, whole.curve)
    with pytest.raises(ResumeError, match="is finished; there is nothing to resume"):
        api.train(small_task(), resume=cut.path, **options)
    fresh = api.train(small_task(), resume=tmp_path / "none", **options)
    assert fresh.path.parent == tmp_path / "none"
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "environment.json").write_text("{}")
    with pytest.raises(ResumeError, match="has no checkpoint to resume from"):
        api.train(small_task(), resume=tmp_path / "bare", **options)
    with pytest.raises(ValueError, match="name a folder in `out`"):
        api.train(small_task(), out=None, checkpoint_every=5, **options)


def test_the_same_command_after_the_end_of_a_run_trains_nothing(tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": STEPS, "device": "cpu", "evaluate_every": 8}
    ended = api.train(small_task(), out=tmp_path, checkpoint_every=5, **options)
    again = api.train(small_task(fail_at=0), resume=tmp_path, checkpoint_every=5, **options)
    assert again.path == ended.path
    assert (again.metric, again.curve, again.steps) == (ended.metric, ended.curve, STEPS)
    assert again.message == f"{ended.path} was finished before, with nothing left to be trained"
    other = api.train(small_task(), resume=tmp_path, checkpoint_every=5, seed=1, **options)
    assert other.path != ended.path, "another seed is another run"
    assert len(list(tmp_path.iterdir())) == 2


def _threads_seen(seen: list[int]) -> Task:
    class Counting(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.get_num_threads())
            return super().forward(x)

    return small_task(model=Counting)


def test_a_run_goes_on_with_as_many_threads_as_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        train(_threads_seen(seen), NOTHING, checkpoints=checkpoints(tmp_path), stop=stopping_after(5))
        assert set(seen) == {2}
        torch.set_num_threads(1)
        monkeypatch.setattr("workbench.training.checkpoint.usable_cores", lambda: 2)
        seen.clear()
        train(_threads_seen(seen), NOTHING, checkpoints=checkpoints(tmp_path), stop=stopping_after(5))
        assert seen[-5:] == [2] * 5
        assert torch.get_num_threads() == 1, "the caller's own number is put back"
        monkeypatch.setattr("workbench.training.checkpoint.usable_cores", lambda: 1)
        seen.clear()
        with pytest.warns(RuntimeWarning, match=r"written by 2 threads, of which this machine offers 1: .*last bits"):
            train(_threads_seen(seen), NOTHING, checkpoints=checkpoints(tmp_path))
        assert set(seen) == {1}
    finally:
        torch.set_num_threads(before)


def test_a_job_of_a_study_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    seen: list[int] = []
    task = small_task(on_loss=seen.append)
    job = TrainJob(BoostConfig.from_dict(NOTHING), "O1", steps=STEPS, evaluate_every=8, run_id="one")
    whole = TaskExperimenter(task, "cpu", tmp_path / "whole" / "runs").run(job)
    experimenter = TaskExperimenter(task, "cpu", tmp_path / "cut" / "runs")
    seen.clear()
    experimenter.run(job, Monitor(stop=stopping_after(9)))
    assert list((tmp_path / "cut" / "checkpoints").iterdir())
    trained = experimenter.run(job)
    assert (trained.metric, trained.curve, trained.steps) == (whole.metric, whole.curve, STEPS)
    assert len(seen) == STEPS, "no step is trained twice"
    assert not (tmp_path / "cut" / "checkpoints").exists()
    assert read_run(tmp_path / "cut" / trained.path).finished


def test_no_step_of_a_task_before_it_was_edited_is_taken_for_the_task_after(tmp_path: Path) -> None:
    job = TrainJob(BoostConfig.from_dict(NOTHING), "O1", steps=STEPS, evaluate_every=8)
    for rate, stop in ((0.1, stopping_after(9)), (0.01, None)):
        (tmp_path / "task.py").write_text(OF_RATE.format(rate))
        edited = TaskExperimenter("task.py", "cpu", tmp_path / "runs").run(job, Monitor(stop=stop))
    whole = TaskExperimenter(str(tmp_path / "task.py"), "cpu", tmp_path / "whole" / "runs").run(job)
    assert (edited.metric, edited.curve) == (whole.metric, whole.curve)


def test_a_job_whose_time_counts_begins_anew(tmp_path: Path) -> None:
    seen: list[int] = []
    job = TrainJob(BoostConfig.from_dict(NOTHING), "O1", steps=STEPS, is_timed=True)
    experimenter = TaskExperimenter(small_task(on_loss=seen.append), "cpu", tmp_path / "runs")
    experimenter.run(job, Monitor(stop=stopping_after(9)))
    seen.clear()
    experimenter.run(job)
    assert len(seen) == STEPS


def test_the_end_of_a_completed_run_is_kept_unless_it_shall_not(tmp_path: Path) -> None:
    kept, other = (
        CheckpointFolder(tmp_path / name, None, 3600.0, keep_end=name == "kept") for name in ("kept", "other")
    )
    for folder in (kept, other):
        train(small_task(), NOTHING, checkpoints=folder)
    assert kept.newest_step() == STEPS
    assert other.steps() == []
    train(small_task(), NOTHING, checkpoints=other, stop=stopping_after(9))
    assert other.steps() != []  # it can go on


def _stopped_in_an_evaluation_over_ranks(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run_module, "_LONG_EVALUATION", 0.0)
        assert_goes_on_as_if_not_stopped(folder, every=5, keep_end=True, where=7)


def _interrupted_over_ranks(folder: Path) -> tuple[Any, ...]:
    """Train whole, and in two parts of which rank 1 loses its newest checkpoint; return what both came to."""
    new_task = functools.partial(small_task, model=Drawing)
    whole = train(new_task(), CONFIGS["accumulation"], checkpoints=checkpoints(folder / "whole"))
    cut = train(
        new_task(),
        CONFIGS["accumulation"],
        checkpoints=checkpoints(folder / "cut"),
        stop=stopping_after(12) if ranks.rank() == 0 else None,
    )
    if ranks.rank() == 1:
        own = checkpoints(folder / "cut" / "rank-1")
        own.path_of(own.steps()[0]).write_bytes(b"torn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # rank 1 says that it passes over a file
        resumed = train(new_task(), CONFIGS["accumulation"], checkpoints=checkpoints(folder / "cut"))
    return whole.metric, whole.curve, whole.final_loss, cut.steps, resumed.metric, resumed.curve, resumed.final_loss


@pytest.mark.slow
def test_two_ranks_go_on_from_the_newest_checkpoint_that_both_have(pair: Ranks, tmp_path: Path) -> None:
    for answer in pair.run(_interrupted_over_ranks, tmp_path):
        assert answer[3] < STEPS
        assert answer[:3] == answer[4:]
    pair.run(_stopped_in_an_evaluation_over_ranks, tmp_path / "evaluated")


def test_a_job_of_a_study_whose_checkpoints_are_damaged_is_trained_from_the_start(tmp_path: Path) -> None:
    job = TrainJob(BoostConfig.from_dict(NOTHING), "O1", steps=STEPS)
    experimenter = TaskExperimenter(small_task(), "cpu", tmp_path / "runs")
    whole = experimenter.run(job)
    experimenter.run(job, Monitor(stop=stopping_after(9)))
    for path in (tmp_path / "checkpoints").glob("*/checkpoint-*.pt"):
        path.write_bytes(b"torn")
    with pytest.warns(RuntimeWarning, match="it is skipped"):
        trained = experimenter.run(job)
    assert (trained.metric, trained.curve, trained.steps) == (whole.metric, whole.curve, STEPS)


def _held_behind_its_first_checkpoint(words: list[str], said: str, folder: str) -> None:
    """Run a command that waits, once its first checkpoint is on the disk, until somebody lets it go on."""
    save = CheckpointFolder.save

    def save_and_wait(self: CheckpointFolder, *state: Any, **how: Any) -> None:
        save(self, *state, **how)
        wait_until(Path(f"{said}.goes_on").exists)

    CheckpointFolder.save = save_and_wait  # type: ignore[method-assign]
    run_command(words, said, folder)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no such signals")
@pytest.mark.filterwarnings("ignore:less_bn had no effect")
@pytest.mark.filterwarnings("ignore:grad_freeze is not in effect")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_command_that_was_ended_goes_on_where_its_checkpoint_is(end: signal.Signals, tmp_path: Path) -> None:
    if signal.getsignal(end) is signal.SIG_IGN:
        pytest.skip("ignored here, as under nohup, and so by what is started here")
    command = ["train", "--task", "digits-lenet", "--level", "O1", "--device", "cpu"]
    command += ["--steps", "40", "--evaluate-every", "20"]
    whole = _said([*command, "--out", str(tmp_path / "whole")])
    words = [*command, "--out", str(tmp_path / "cut"), "--checkpoint-every", "5"]
    process = start(_held_behind_its_first_checkpoint, words, str(tmp_path / "said"), str(Path.cwd()))
    wait_until(lambda: any((tmp_path / "cut").glob("*/checkpoints/checkpoint-*.pt")))
    assert process.pid is not None
    os.kill(process.pid, end)
    (tmp_path / "said.goes_on").touch()
    process.join()
    said = (tmp_path / "said.err").read_text()
    if end is not signal.SIGKILL:
        assert process.exitcode == 130
        assert "interrupted; the" in said
        assert "the same command with --resume" in said
    resumed = _said([*command, "--resume", str(tmp_path / "cut")])
    assert "accuracy" in whole
    assert [line.split(" steps")[0] for line in whole.splitlines() if "accuracy" in line] == [
        line.split(" steps")[0] for line in resumed.splitlines() if "accuracy" in line
    ]
    whole_run, resumed_run = (read_run(next((tmp_path / name).iterdir())).steps for name in ("whole", "cut"))
    assert whole_run["loss"].equals(resumed_run["loss"])


def _said(command: list[str]) -> str:
    """Return what a command prints that nobody ends; it needs no process of its own."""
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0, ended.output
    return ended.stdout
