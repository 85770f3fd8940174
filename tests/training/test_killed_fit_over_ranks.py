"""A Model that two ranks train is killed, one rank or both, and ends as if it had not been."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kit.processes import free_port, start, wait_until
from tests.training.test_model_resuming import Seen, new_model, samples
from tests.training.test_resuming import CONFIGS
from workbench.core import distributed as ranks
from workbench.training.checkpoint_folder import CheckpointFolder

EPOCHS = 12


class Slow:
    """Shuffled batches of this rank, each of which takes its time."""

    def __iter__(self) -> Iterator[Any]:
        x, y = samples().tensors
        for chosen in torch.randperm(len(x)).split(4):
            time.sleep(0.02)
            yield x[chosen] + ranks.rank(), y[chosen]

    def __len__(self) -> int:
        return 8


class Written(Seen):
    """Writes each loss down at once."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def on_train_step_end(self, run_context: Any) -> None:
        super().on_train_step_end(run_context)
        step, loss = list(self.losses.items())[-1]
        with self.path.open("a") as file:
            file.write(f"{step} {loss!r}\n")


def fit(folder: Path, port: int, rank: int) -> None:
    """Train as one rank, and go on where an earlier one was killed; write down losses, and the weights at the end."""
    place = {"WORLD_SIZE": 2, "RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    torch.set_num_threads(1)
    with ranks.joined("cpu"):
        model, network = new_model(CONFIGS["accumulation"])
        seen = [Written(folder / "losses.txt")] if rank == 0 else []
        model.train(EPOCHS, Slow(), callbacks=seen, resume=CheckpointFolder(folder / "kept", 5, keep=2))
        bits = b"".join(one.detach().numpy().tobytes() for one in network.state_dict().values())
        (folder / f"end.{rank}.txt").write_text(hashlib.sha256(bits).hexdigest())


def begin(folder: Path) -> list[BaseProcess]:
    folder.mkdir(exist_ok=True)
    port = free_port()
    return [start(fit, folder, port, rank) for rank in range(2)]


def what_came(folder: Path) -> tuple[str, str, dict[str, str]]:
    for rank in begin(folder):
        rank.join(600)
        assert rank.exitcode == 0
    losses = dict(line.split() for line in (folder / "losses.txt").read_text().splitlines())
    first, second = ((folder / f"end.{rank}.txt").read_text() for rank in range(2))
    return first, second, losses


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_three_times_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole, cut = what_came(tmp_path / "whole"), tmp_path / "cut"
    for victims in ((0,), (1,), (0, 1)):
        both = begin(cut)
        before = CheckpointFolder(cut / "kept").newest_step()
        wait_until(lambda was=before: CheckpointFolder(cut / "kept").newest_step() > was)
        for number in victims:
            both[number].kill()
        for rank in both:
            rank.join(600)
            assert rank.exitcode is not None  # the other one notices and ends, too
        assert not (cut / "end.0.txt").exists()
    assert what_came(cut) == whole
    assert len(whole[2]) == EPOCHS * 8
