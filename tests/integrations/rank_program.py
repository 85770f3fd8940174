"""What each rank of test_framework_ranks.py runs; started by torchrun as ``rank_program.py FRAMEWORK FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))  # torchrun starts a script, not a module of the repository

from tests.ranks import leave_together

torch.set_num_threads(1)


def weights(model: nn.Module) -> torch.Tensor:
    """Return all weights as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def compared(whole: nn.Module, resumed: nn.Module) -> dict[str, Any]:
    """Compare a model between the ranks, and with one that went on from a saved state."""
    gathered = [torch.empty_like(weights(whole)) for _ in range(2)]
    torch.distributed.all_gather(gathered, weights(whole))
    resumes = torch.equal(weights(whole), weights(resumed))
    return {"equal on both": torch.equal(*gathered), "resumed with the same bits": resumes}


def by_accelerate(folder: Path) -> dict[str, dict[str, Any]]:
    """Train with each set-up by a loop of theirs and by ours, and once more from a saved state."""
    from tests.integrations import test_accelerate as alone
    from workbench.integrations.accelerate import BoostedAccelerator

    def accelerator(name: str) -> BoostedAccelerator:
        return alone.an_accelerator(BoostedAccelerator, boost=alone.SET_UPS[name], epochs=alone.EPOCHS)

    found, train = {}, alone.trained_by_a_loop_of_theirs
    for name in ("nothing", "frozen", "shorter"):
        whole = accelerator(name)
        theirs = train(whole)
        train(accelerator(name), until={"shorter": 1}.get(name, 5), folder=folder / name)
        resumed = train(accelerator(name), folder=folder / name)
        ours = alone.trained(alone.SET_UPS[name], max_grad_norm=0.5).model
        found[name] = compared(theirs, resumed) | {
            "as our loop": torch.equal(weights(theirs), weights(ours)),
            "passes": whole.boosted.step_index,
            "ranks": whole.num_processes,
            "moved": not torch.equal(weights(theirs), weights(alone.a_task()[0])),
        }
    plain = weights(train(alone.an_accelerator()))  # DistributedDataParallel
    away = (plain - weights(train(accelerator("nothing")))).abs().max()
    found["nothing"]["away from Accelerate's own"] = float(away)
    return found


def by_the_trainer(folder: Path) -> dict[str, dict[str, Any]]:
    """Train as one rank would with twice the batch, with frozen layers, and once more from a checkpoint."""
    from tests.integrations.test_boosted_trainer import FREEZING, boosted, logged
    from tests.kit.hugging_face import NO_METHODS

    usual: dict[str, Any] = {"eval_strategy": "epoch", "save_strategy": "steps", "save_steps": 10, "max_steps": 20}
    usual["per_device_train_batch_size"] = 16
    usual["average_tokens_across_devices"] = False  # else the Trainer multiplies its evaluation loss by the ranks
    found = {}
    for name, config in (("plain", NO_METHODS), ("freezing", FREEZING)):
        whole, resumed = (boosted(folder / name, config, **usual) for _ in range(2))
        whole.train()
        resumed.train(resume_from_checkpoint=str(folder / name / "checkpoint-10"))
        found[name] = compared(whole.model, resumed.model) | {
            "steps": whole.state.global_step,
            "samples": whole.num_examples(whole.get_train_dataloader()),
            "losses": {kind: logged(whole, kind) for kind in ("loss", "eval_loss")},
        }
    return found


if __name__ == "__main__":
    place = Path(sys.argv[2])
    found = {"accelerate": by_accelerate, "transformers": by_the_trainer}[sys.argv[1]](place)
    if torch.distributed.get_rank() == 0:
        (place / "found.json").write_text(json.dumps(found), encoding="utf-8")
    leave_together()
