"""One bit of what is kept turns: checkpoints, snapshots, runs, publications, a study's database, made and read."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.experiments.small_tasks import small_task
from tests.kit.fake_runner import STUDY, make_fake, write_study
from tests.kit.runs import run_task
from workbench.cli.failures import sentence_of
from workbench.config import BoostConfig
from workbench.methods.dim_reduce.pca_files import load_snapshots
from workbench.online import SnapshotPublisher, load_published
from workbench.runs import read_run
from workbench.study import tune
from workbench.study.store.storage import default_storage, find_study, open_storage
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


def search(folder: Path) -> None:
    text = STUDY.replace("n_trials = 10", "n_trials = 4").replace("= 6", "= 2").replace("= 8", "= 2")
    tune(write_study(folder / "s", text), make_experimenter=make_fake)


def read_study_back(folder: Path) -> Any:
    """Return what the database holds; dates are no part of the checksums."""
    storage = open_storage(default_storage(folder / "s"))
    try:
        study = find_study(storage, "s")
        trials = [
            (one.number, one.state.name, one.params, one.values, one.user_attrs, one.intermediate_values)
            for one in study.get_trials(deepcopy=False)
        ]
        return trials, study.user_attrs, [one.name for one in study.directions]
    finally:
        storage.engine.dispose()


KEPT: dict[str, tuple[Callable[[Path], object], Callable[[Path], Any]]] = {
    "run": (make_run, read_recorded),
    "checkpoint": (make_checkpoint, read_kept),
    "publication": (publish, read_published),
    "weights": (keep_weights, read_weights),
    "database": (search, read_study_back),
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


def flip_and_read(name: str, n_flips: int, seed: int) -> list[str]:
    """Make one of `KEPT`, turn bits of its files, one at a time, and read it; return what went wrong.

    That is a file that was read as something else, or a sentence that calls it a bug of ours.
    """
    make, read = KEPT[name]
    wrong, rng = list[str](), np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a file that is passed over
        folder = Path(place) / "kept"
        folder.mkdir()
        make(folder)
        wanted = plain(read(folder))
        known = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock")]
        files = sorted(path for path in known if name != "database" or path.name == "study.db")
        for _ in range(n_flips):
            path = files[int(rng.integers(len(files)))]
            whole = path.read_bytes()
            flip(path, rng)
            try:
                wrong += [path.name] * (plain(read(folder)) != wanted)
            except Exception as error:
                sentence = sentence_of(error)
                wrong += [sentence] * ("bug of the workbench" in sentence)
            for left in folder.rglob("study.db-*"):
                left.unlink()
            path.write_bytes(whole)
        assert plain(read(folder)) == wanted
    return wrong
