"""Checkpoints while training goes on: copied between two steps, written by a thread of their own.

A step waits for the copy only. A checkpoint names the place in the stream that belongs to its weights, so a run that
was killed and resumed trains on every record exactly once.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workbench.core.files import replacing
from workbench.online.background_writer import BackgroundWriter
from workbench.training.checkpoint import read_checkpoint

_NAME = re.compile(r"checkpoint-(\d{12})\.pt")


class OnlineCheckpoints:
    """A folder of checkpoints, the newest of which a resumed run continues.

    Args:
        folder: Made when it is missing. It should belong to one run.
        every_steps: Steps between two checkpoints, at least 1; None for none by step.
        every_seconds: Seconds between two checkpoints; None for none by time.
        keep: How many of the newest are kept, at least 1.
        also: Objects with ``state_dict`` and ``load_state_dict`` whose state is kept, too, by name: a learning-rate
            scheduler that a callback steps, for example.

    Raises:
        ValueError: When a number is out of range, or neither steps nor seconds are given.
    """

    def __init__(
        self,
        folder: Path | str,
        every_steps: int | None = 1000,
        every_seconds: float | None = None,
        keep: int = 3,
        also: Mapping[str, Any] | None = None,
    ) -> None:
        self._writer = BackgroundWriter("a checkpoint", every_steps, every_seconds)
        if keep < 1:
            raise ValueError(f"`keep` must be at least 1, got {keep}")
        self.folder = Path(folder)
        self.keep = keep
        self.also = dict(also or {})

    def newest(self) -> Path | None:
        """Return the checkpoint of the most steps; None when there is none."""
        found = self._files()
        return found[-1] if found else None

    def newest_step(self) -> int:
        """Return the number of steps behind the newest checkpoint, 0 when there is none.

        A run directory is continued with ``RunRecorder.reopen(path, next_step=checkpoints.newest_step())``.
        """
        newest = self.newest()
        return 0 if newest is None else int(newest.stem.rpartition("-")[2])

    def is_due(self, n_steps: int) -> bool:
        """Return whether a checkpoint is to be written after so many steps, and the last one is on the disk."""
        return self._writer.is_due(n_steps)

    def save(self, state: Mapping[str, Any], n_steps: int, *, wait: bool = False) -> None:
        """Copy a state, and write it in the background or, with ``wait`` and with its OSError, at once."""
        self._writer.finish()
        copy = copied_to_host(state)
        path = self.folder / f"checkpoint-{n_steps:012d}.pt"
        self._writer.start(lambda: self._write(path, copy), wait=wait)

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """Return the newest checkpoint, its tensors on a device; None when there is none.

        Raises:
            ValueError: When the file is no checkpoint of this package.
        """
        self.close()
        newest = self.newest()
        return None if newest is None else read_checkpoint(newest, device)

    def close(self) -> None:
        """Wait until everything is on the disk; warn when the last checkpoint could not be written."""
        self._writer.finish()

    def _write(self, path: Path, state: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            torch.save(state, temporary)
        for old in self._files()[: -self.keep]:
            old.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("checkpoint-*.pt") if _NAME.fullmatch(path.name))


def copied_to_host(value: Any) -> Any:
    """Return a copy of a state with tensors of its own in host memory; anything else is taken for unchangeable."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, OrderedDict):  # a module's state carries versions in an attribute
        copy = OrderedDict((key, copied_to_host(part)) for key, part in value.items())
        copy.__dict__.update(value.__dict__)
        return copy
    if isinstance(value, Mapping):
        return {key: copied_to_host(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied_to_host(part) for part in value)
    return value
