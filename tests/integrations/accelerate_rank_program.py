"""What each rank of test_accelerate_ranks.py runs; started by torchrun as ``accelerate_rank_program.py FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))  # torchrun starts a script, not a module of the repository

from tests.integrations.test_accelerate import (
    EPOCHS,
    SET_UPS,
    a_task,
    an_accelerator,
    trained,
    trained_by_a_loop_of_theirs,
)
from tests.ranks import leave_together
from workbench.integrations.accelerate import BoostedAccelerator

torch.set_num_threads(1)


def weights(model: nn.Module) -> torch.Tensor:
    """Return all weights as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main(folder: Path) -> None:
    """Train with each set-up as one rank of two, by their loop and by ours, and once more from a saved state."""
    found = {}
    for name in ("nothing", "frozen", "shorter"):

        def accelerator(name: str = name) -> BoostedAccelerator:
            return an_accelerator(BoostedAccelerator, boost=SET_UPS[name], epochs=EPOCHS)

        whole = accelerator()
        theirs = weights(trained_by_a_loop_of_theirs(whole))
        trained_by_a_loop_of_theirs(accelerator(), until={"shorter": 1}.get(name, 5), folder=folder / name)
        resumed = weights(trained_by_a_loop_of_theirs(accelerator(), folder=folder / name))
        gathered = [torch.empty_like(theirs) for _ in range(2)]
        torch.distributed.all_gather(gathered, theirs)
        found[name] = {
            "equal on both": torch.equal(*gathered),
            "resumed with the same bits": torch.equal(theirs, resumed),
            "as our loop": torch.equal(theirs, weights(trained(SET_UPS[name], max_grad_norm=0.5).model)),
            "passes": whole.boosted.step_index,
            "ranks": whole.num_processes,
            "moved": not torch.equal(theirs, weights(a_task()[0])),
        }
    plain = weights(trained_by_a_loop_of_theirs(an_accelerator()))  # DistributedDataParallel
    ours = weights(
        trained_by_a_loop_of_theirs(an_accelerator(BoostedAccelerator, boost=SET_UPS["nothing"], epochs=EPOCHS))
    )
    found["nothing"]["away from Accelerate's own"] = float((plain - ours).abs().max())
    if torch.distributed.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    leave_together()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
