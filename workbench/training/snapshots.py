"""Keep the weights of a run as it goes on: what a subspace to train in is computed from.

A snapshot is one ``snapshot_000100.safetensors`` of the trained parameters, float32, under their names in the task's
model; buffers are not kept. The number counts the steps done; ``snapshot_000000`` holds the initial weights, from which
the training in the subspace starts again (Li et al., arXiv:2103.11154, section 3.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from workbench.config import BoostConfig
from workbench.core import distributed as ranks
from workbench.core.arguments import checked_count
from workbench.core.checksums import SEAL, crc_of_arrays
from workbench.core.files import replacing
from workbench.core.warning import warn
from workbench.methods.plan_mark import trained_parameters
from workbench.training import Boosted

FOLDER = "snapshots"
"""Name of the folder inside a run directory."""


class SnapshotRecorder:
    """Writes weights at chosen steps; every file appears complete or not at all.

    A snapshot waits for the device and copies the weights to the host; other steps cost a comparison. Weights that are
    inf or NaN are not written, with a warning.

    Args:
        parameters: Name -> parameter, read again at every snapshot.
        folder: Where the files go; made when missing.
        every_steps: Distance between two snapshots, at least 1.
        count: How many are kept, at least 1.
        start_step: Steps done before the first one; 0 keeps the initial weights.
        done: Steps that a resumed run has already done: snapshots up to there belong to it, later ones are removed.

    Raises:
        ValueError: When there is no parameter, or the folder holds snapshots of another run.

    Example:
        In a loop of one's own::

            recorder = SnapshotRecorder(dict(model.named_parameters()), "snapshots", every_steps=10, count=40)
            recorder.after_step(0)  # the initial weights
            for done, (x, y) in enumerate(loader, start=1):
                ...  # forward, backward, step
                recorder.after_step(done)

        and then a configuration that trains in their span, with ``"weight_load_dir": "snapshots"``.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        folder: str | Path,
        *,
        every_steps: int,
        count: int,
        start_step: int = 0,
        done: int = 0,
    ) -> None:
        for name, value, least in (("every_steps", every_steps, 1), ("count", count, 1), ("start_step", start_step, 0)):
            checked_count(name, value, least)
        if not parameters:
            raise ValueError("`parameters` must name the weights to keep, got none")
        self.parameters = dict(parameters)
        self.folder = Path(folder)
        self.steps = range(start_step, start_step + count * every_steps, every_steps)
        self.folder.mkdir(parents=True, exist_ok=True)
        others = sorted(self.folder.glob("snapshot_*.safetensors"))
        if done > 0:
            for path in others:
                if int(path.stem.rpartition("_")[2]) > done:
                    path.unlink()
        elif others:
            raise ValueError(
                f"`folder` must hold no snapshots yet, {self.folder} holds {len(others)}, from {others[0].name} on; "
                "components of two runs together would describe neither"
            )

    def after_step(self, done: int) -> Path | None:
        """Keep the weights if that is due after ``done`` steps (0: before training), and return the file written."""
        if done not in self.steps:
            return None
        on_host = {name: p.detach().to("cpu", torch.float32, copy=True) for name, p in self.parameters.items()}
        weights = {name: weight.contiguous() for name, weight in on_host.items()}
        path = self.folder / f"snapshot_{done:06d}.safetensors"
        if not all(bool(torch.isfinite(weight).all()) for weight in weights.values()):
            warn(f"the weights after {done} steps are inf or NaN; {path.name} was not written")
            return None
        crc = crc_of_arrays({name: weight.numpy() for name, weight in weights.items()})
        with replacing(path) as temporary:
            save_file(weights, temporary, metadata={"step": str(done), SEAL: str(crc)})
        return path


def snapshot_recorder(
    config: BoostConfig, boosted: Boosted, run_path: Path | None, done: int = 0
) -> SnapshotRecorder | None:
    """Return the recorder that section ``snapshots`` asks for, into a folder of a run, on the first rank."""
    asked = config.snapshots
    if asked.count == 0 or run_path is None or ranks.rank() != 0:
        return None
    return SnapshotRecorder(
        trained_parameters(boosted.model, boosted.optimizer),
        run_path / FOLDER,
        every_steps=asked.every_steps,
        count=asked.count,
        start_step=asked.start_step,
        done=done,
    )
