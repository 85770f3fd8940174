"""Train online on clicks to the end of a stream, going on where an earlier process was killed.

Arguments: folder, steps, seed. At the end ``end.json`` in the folder says what came of it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workbench.online import OnlineCheckpoints, PageHinkley, Prequential
from workbench.rec import RecModel
from workbench.runs import RunRecorder
from workbench.tasks.clicks import ClickModel, click_stream, row_wise_adam

BATCH_SECONDS = 0.01


def stream(seed: int, start: int, steps: int) -> Iterator[Any]:
    """Yield the batches from one on, with a pause before each."""
    for batch in itertools.islice(click_stream(seed, start=start, poison=0.01), max(steps - start, 0)):
        time.sleep(BATCH_SECONDS)
        yield batch


def main(folder: Path, steps: int, seed: int) -> None:
    """Train, and write what came of it."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    network = ClickModel()
    checkpoints, run = OnlineCheckpoints(folder / "checkpoints", every_steps=20), folder / "runs" / "online"
    if run.exists():
        recorder = RunRecorder.reopen(run, next_step=checkpoints.newest_step())
    else:
        recorder = RunRecorder.create(folder / "runs", {}, {"task": "clicks"}, run_id="online")
    drift = PageHinkley(warm_up=20)
    with recorder:
        summary = RecModel(network, nn.BCEWithLogitsLoss(), row_wise_adam(network.named_parameters())).online_train(
            lambda start: stream(seed, start, steps),
            prequential=Prequential(2000), drift=drift, checkpoints=checkpoints, resume=True, recorder=recorder,
        )  # fmt: skip
        recorder.finish({"metric": summary.auc})
    weights = hashlib.sha256(b"".join(one.contiguous().numpy().tobytes() for one in network.state_dict().values()))
    end = {"weights": weights.hexdigest(), "auc": summary.auc, "log_loss": summary.log_loss}
    end |= {"records": summary.n_records, "rejected": summary.n_rejected, "drift": drift.state_dict()}
    (folder / "end.json").write_text(json.dumps(end))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
