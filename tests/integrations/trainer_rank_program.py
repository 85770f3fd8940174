"""What each rank of test_trainer_ranks.py runs; started by torchrun as ``trainer_rank_program.py FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # torchrun starts a script, not a module of the repository

from tests.integrations.test_boosted_trainer import FREEZING, boosted, logged
from tests.kit.hugging_face import NO_METHODS
from tests.ranks import leave_together

torch.set_num_threads(1)


def main(folder: Path) -> None:
    """Train as one rank would with twice the batch, with frozen layers, and once more from a checkpoint."""
    usual: dict[str, Any] = {
        "per_device_train_batch_size": 16,
        "eval_strategy": "epoch",
        "save_strategy": "steps",
        "save_steps": 10,
    }
    usual["average_tokens_across_devices"] = False  # else the Trainer multiplies its evaluation loss by the ranks
    found = {}
    for name, config in (("plain", NO_METHODS), ("freezing", FREEZING)):
        whole = boosted(folder / name, config, max_steps=20, **usual)
        whole.train()
        resumed = boosted(folder / name, config, max_steps=20, **usual)
        resumed.train(resume_from_checkpoint=str(folder / name / "checkpoint-10"))
        weights = torch.cat([parameter.detach().flatten() for parameter in whole.model.parameters()])
        again = torch.cat([parameter.detach().flatten() for parameter in resumed.model.parameters()])
        gathered = [torch.empty_like(weights) for _ in range(2)]
        torch.distributed.all_gather(gathered, weights)
        found[name] = {
            "equal on both": torch.equal(*gathered),
            "resumed with the same bits": torch.equal(weights, again),
            "steps": whole.state.global_step,
            "loss": logged(whole, "loss"),
            "eval_loss": logged(whole, "eval_loss"),
            "samples": whole.num_examples(whole.get_train_dataloader()),
        }
    if torch.distributed.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    leave_together()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
