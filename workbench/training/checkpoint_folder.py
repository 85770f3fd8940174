"""Checkpoints while training goes on: copied between two steps, written by a separate thread.

A step waits for the copy only. A checkpoint names the place in the data that belongs to its weights, so a run that was
killed and resumed trains on every record exactly once. Where the newest file is damaged the one before is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.core import distributed as ranks
from workbench.core.arguments import checked_count
from workbench.core.batch import entries_of, with_entries
from workbench.core.files import replacing
from workbench.core.warning import warn
from workbench.training.background_writer import BackgroundWriter
from workbench.training.checkpoint import read_checkpoint

_NAMED_LIKE = f"checkpoint-{'[0-9]' * 12}.pt"


class CheckpointFolder:
    """A folder of checkpoints, the newest of which a resumed run continues.

    Args:
        folder: Made when it is missing. It should belong to one run.
        every_steps: Steps between two checkpoints, at least 1; None writes none by step.
        every_seconds: Seconds between two checkpoints; None writes none by time. Several ranks, which must agree on
            the step, go by ``every_steps`` alone.
        keep: How many of the newest are kept, at least 1.
        keep_end: Whether the state at the end of a completed run is kept, too.
        also: Objects with ``state_dict`` and ``load_state_dict`` whose state is kept, too, by name: a learning-rate
            scheduler that a callback steps, for example.
    """

    def __init__(
        self,
        folder: Path | str,
        every_steps: int | None = 1000,
        every_seconds: float | None = None,
        keep: int = 3,
        also: Mapping[str, Any] | None = None,
        keep_end: bool = True,
    ) -> None:
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._writer = BackgroundWriter("a checkpoint", every_steps, every_seconds)
        checked_count("keep", keep)
        self.folder = Path(folder)
        self.keep, self.keep_end = keep, keep_end
        self.also = dict(also or {})

    def newest(self) -> Path | None:
        """Return the checkpoint of the most steps; None when there is none."""
        found = self._files()
        return found[-1] if found else None

    def newest_step(self) -> int:
        """Return the number of steps before the newest checkpoint, 0 when there is none.

        A run directory is continued with ``RunRecorder.reopen(path, next_step=checkpoints.newest_step())``.
        """
        return next(iter(self.steps()), 0)

    def steps(self) -> list[int]:
        """Return the numbers of steps before each checkpoint, the newest first."""
        return [int(path.stem.rpartition("-")[2]) for path in reversed(self._files())]

    def path_of(self, n_steps: int) -> Path:
        """Return the file of the checkpoint after ``n_steps`` steps."""
        return self.folder / f"checkpoint-{n_steps:012d}.pt"

    def at(self, folder: Path) -> CheckpointFolder:
        """Return a folder elsewhere whose checkpoints are due at the same times."""
        return CheckpointFolder(folder, self._every_steps, self._every_seconds, self.keep, self.also, self.keep_end)

    def is_due(self, n_steps: int) -> bool:
        """Return whether a checkpoint is due after ``n_steps`` steps.

        A single process skips one while the last is not yet on the disk. Ranks skip none, however far each has written:
        they all write after the same steps.
        """
        if ranks.world_size() == 1:
            return self._writer.is_due(n_steps)
        return self._every_steps is not None and n_steps % self._every_steps == 0

    def save(self, state: Mapping[str, Any], n_steps: int, *, wait: bool = False) -> None:
        """Copy a state, and write it in the background or, with ``wait`` and with its OSError, at once."""
        self._writer.finish()
        copy = copied_to_host(state)
        self._writer.start(lambda: self._write(self.path_of(n_steps), copy), wait=wait)

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """Return the newest checkpoint that every rank has whole, its tensors on a device; None when there is none.

        One that cannot be read is passed over with a warning; when all are, this is a ValueError.
        """
        self.close()
        steps = ranks.broadcast_object(self.steps())
        for step in steps:
            state = None
            try:
                state = read_checkpoint(self.path_of(step), device)
            except (ValueError, FileNotFoundError) as error:
                warn(f"{error}; it is skipped", RuntimeWarning)
            if ranks.mean_over_ranks([float(state is not None)]) == [1.0]:
                return state
        if steps:
            raise ValueError(f"none of the {len(steps)} checkpoints in {self.folder} is whole; train from the start")
        return None

    def close(self) -> None:
        """Wait until everything is on the disk; warn when the last checkpoint could not be written."""
        self._writer.finish()

    def _write(self, path: Path, state: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            torch.save(state, temporary)
        for old in [*self._files()[: -self.keep], *self.folder.glob(".checkpoint-*.tmp.pt")]:
            old.unlink(missing_ok=True)  # what a killed process was writing, too

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(_NAMED_LIKE))


def copied_to_host(state: Any) -> Any:
    """Return a copy of a state and its containers, with its tensors in host memory; the rest is assumed immutable."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    entries = entries_of(state)
    return state if entries is None else with_entries(state, [copied_to_host(entry) for entry in entries.values()])
