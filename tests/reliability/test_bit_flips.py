"""One bit of a file turns: what is read is what was written, or a sentence says that it is damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.experiments.small_tasks import small_task
from tests.kit.runs import run_task, without_checksums
from tests.kit.set_up_search import run, write
from tests.kit.surface_runner import SurfaceRunner
from workbench.cli import main
from workbench.config import BoostConfig
from workbench.methods.dim_reduce.pca_files import load_snapshots
from workbench.online import SnapshotPublisher, load_published
from workbench.runs import read_run
from workbench.training.checkpoint import read_checkpoint
from workbench.training.checkpoint_folder import CheckpointFolder
from workbench.training.snapshots import SnapshotRecorder

CPU = torch.device("cpu")
SHAPES = {"weight": (5, 4), "bias": (5,)}


def make_run(folder: Path) -> None:
    config = BoostConfig.from_dict({"boost": {"mode": "disable_all"}})
    run_task(small_task(), config, steps=12, evaluate_every=6, exponents_every=3, device=CPU, out=folder, run_id="one")


def read_recorded(folder: Path) -> Any:
    run = read_run(folder / "one")
    return run.config, run.environment, run.summary, run.steps.to_dict("list"), run.events.to_dict("list")


def make_checkpoint(folder: Path) -> None:
    config = BoostConfig.from_dict({"boost": {"mode": "disable_all"}})
    run_task(small_task(), config, steps=6, device=CPU, checkpoints=CheckpointFolder(folder, 6, keep=1))


def read_kept(folder: Path) -> Any:
    return read_checkpoint(next(folder.glob("checkpoint-*.pt")), CPU)


def publish(folder: Path) -> None:
    model, publisher = nn.Linear(4, 5), SnapshotPublisher(folder, every_steps=1)
    for step in range(3):
        with torch.no_grad():
            model.weight.add_(0.5)
        publisher.publish(model, step, wait=True)
    publisher.close()


def read_published(folder: Path) -> Any:
    published = load_published(folder)
    return published.version, published.step, published.tensors


def keep_weights(folder: Path) -> None:
    model = nn.Linear(4, 5)
    recorder = SnapshotRecorder(dict(model.named_parameters()), folder, every_steps=1, count=2)
    for done in range(2):
        recorder.after_step(done)


def read_weights(folder: Path) -> Any:
    return load_snapshots(folder, SHAPES)


KEPT: dict[str, tuple[Callable[[Path], object], Callable[[Path], Any]]] = {
    "run": (make_run, read_recorded),
    "checkpoint": (make_checkpoint, read_kept),
    "publication": (publish, read_published),
    "weights": (keep_weights, read_weights),
}


def plain(value: Any) -> Any:
    """Return what can be compared: arrays as bytes, what is NaN as text."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return repr(value)


def flip(path: Path, rng: np.random.Generator) -> None:
    content = bytearray(path.read_bytes())
    content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def silently_wrong(name: str, folder: Path, n_flips: int, seed: int) -> list[str]:
    """Flip bits, one at a time; return the files of those that were read as something else."""
    make, read = KEPT[name]
    make(folder)
    wanted = plain(read(folder))
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "writer.lock")
    rng, wrong = np.random.default_rng(seed), []
    for _ in range(n_flips):
        path = files[int(rng.integers(len(files)))]
        whole = path.read_bytes()
        flip(path, rng)
        try:
            if plain(read(folder)) != wanted:
                wrong.append(path.name)
        except (ValueError, FileNotFoundError):  # with a sentence: both are told as such
            pass
        path.write_bytes(whole)
    assert plain(read(folder)) == wanted
    return wrong


@pytest.mark.parametrize("name", KEPT)
def test_a_flipped_bit_is_noticed(name: str, tmp_path: Path) -> None:
    assert silently_wrong(name, tmp_path / "kept", 40, 0) == []


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", KEPT)
def test_of_a_thousand_flipped_bits_none_is_read_as_something_else(name: str, tmp_path: Path) -> None:
    assert silently_wrong(name, tmp_path / "kept", 1000, 1) == []


def bugs_told_of(folder: Path, n_flips: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Flip bits of a study's database, one at a time; return what `workbench status` then calls a bug of its own."""
    write(folder, n_trials=5, plain_runs=0)
    run(folder, SurfaceRunner(folder))
    path, rng, told = folder / "study.db", np.random.default_rng(2), list[str]()
    whole = path.read_bytes()
    for _ in range(n_flips):
        for left in folder.glob("study.db*"):
            left.unlink()
        path.write_bytes(whole)
        flip(path, rng)
        with pytest.raises(SystemExit):
            main(["status", str(folder)])
        said = capsys.readouterr().err
        told += [said] * ("bug" in said or "Traceback" in said)
    return told


def test_a_damaged_study_is_told_as_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bugs_told_of(tmp_path / "study", 20, capsys) == []


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_of_two_hundred_flipped_bits_of_a_study_none_is_called_a_bug(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bugs_told_of(tmp_path / "study", 200, capsys) == []


def test_a_run_of_an_earlier_version_is_read_without_checksums(tmp_path: Path) -> None:
    make_run(tmp_path)
    assert read_run(tmp_path / "one").summary["recorded"]["files"].keys() >= {"steps.parquet", "config.json"}
    without_checksums(tmp_path / "one")
    assert read_run(tmp_path / "one").finished
