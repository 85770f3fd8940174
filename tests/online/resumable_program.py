"""Train on a stream, resuming what an earlier process left; killed and started again by a test.

Arguments: folder of the checkpoints, steps. The last line of its output says what the weights are.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.online.recommender import BATCH, Recommender, stream
from workbench.mindspore.callbacks import Callback, RunContext
from workbench.online import OnlineCheckpoints, PageHinkley, Prequential, RecModel


class Counting(nn.Module):
    """A recommender that counts, in a buffer, how often it was trained on each batch."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.inner = Recommender()
        self.counts: Tensor
        self.register_buffer("counts", torch.zeros(steps, dtype=torch.int64))

    def forward(self, batch: tuple[Any, Tensor]) -> Tensor:
        inputs, number = batch
        self.counts[number[0]] += 1
        output: Tensor = self.inner(inputs)
        return output


def numbered(start: int, steps: int) -> Any:
    for number, (inputs, label) in enumerate(stream(seed=3, start=start, n=steps), start):
        yield (inputs, torch.full((BATCH,), number)), label


class Begun(Callback):
    """Says when the first step is over, and takes its time, so that there is something to interrupt."""

    def step_end(self, run_context: RunContext) -> None:
        if run_context.original_args().cur_step_in_epoch == 1:
            print("begun", flush=True)
        time.sleep(0.001)


def main(folder: str, steps: int) -> None:
    """Train to the end of the stream and print what became of it."""
    torch.manual_seed(7)
    network = Counting(steps)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, fused=True)
    judged, drift = Prequential(500, every=13), PageHinkley(warm_up=20, threshold=5.0)
    summary = RecModel(network, nn.BCEWithLogitsLoss(), optimizer).online_train(
        lambda start: numbered(start, steps),
        Begun(),
        queue_size=4,
        prequential=judged,
        drift=drift,
        checkpoints=OnlineCheckpoints(folder, every_steps=10),
        resume=True,
    )
    content = b"".join(tensor.numpy().tobytes() for tensor in network.state_dict().values())
    answer = {
        "weights": hashlib.sha256(content).hexdigest(),
        "counts": network.counts.tolist(),
        "trained": summary.n_records,
        "auc": summary.auc,
        "log_loss": summary.log_loss,
        "drift": drift.state_dict(),
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
