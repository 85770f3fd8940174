"""One rank of a Model's training that goes on where an earlier one was killed: ``fit_program.py FOLDER EPOCHS``.

Rank 0 writes each loss to ``FOLDER/losses.txt``, every rank its weights at the end to ``FOLDER/end.RANK.txt``.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # a script, not a module of the repository

import torch

from tests.training.test_model_resuming import Seen, new_model, samples
from tests.training.test_resuming import CONFIGS
from workbench.core import distributed as ranks
from workbench.training.checkpoint_folder import CheckpointFolder


class Slow:
    """Shuffled batches of this rank, each of which takes its time."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Any]:
        x, y = samples().tensors
        for chosen in torch.randperm(len(x)).split(4):
            time.sleep(0.02)
            yield x[chosen] + self.rank, y[chosen]

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


def main(folder: Path, epochs: int) -> None:
    """Train as one of the ranks that the environment names."""
    torch.set_num_threads(1)
    with ranks.joined("cpu"):
        model, network = new_model(CONFIGS["accumulation"])
        seen = [Written(folder / "losses.txt")] if ranks.rank() == 0 else []
        model.train(epochs, Slow(ranks.rank()), callbacks=seen, resume=CheckpointFolder(folder / "kept", 5, keep=2))
        bits = b"".join(one.detach().numpy().tobytes() for one in network.state_dict().values())
        (folder / f"end.{ranks.rank()}.txt").write_text(hashlib.sha256(bits).hexdigest())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
