"""Checkpoints from which training continues with the same bits on a CPU."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from workbench.core import devices
from workbench.core.files import write_bytes_atomically
from workbench.core.processor import usable_cores
from workbench.core.text import first_line
from workbench.core.warning import warn
from workbench.training.boosted import Boosted
from workbench.training.generator_states import generator_states, restore_generators

_FORMAT = 1

# Learning rates, and what schedulers keep, are numbers and arrays of numpy's where a user computes them with it.
_NUMPY: list[Any] = [
    *(np.dtype, np.ndarray, np.float64().__reduce__()[0], np.empty(0).__reduce__()[0]),
    *{type(np.dtype(code)) for code in "?bhilqBHILQefdFD"},
]


def save_checkpoint(path: Path | str, boosted: Boosted, scheduler: LRScheduler | None = None) -> None:
    """Write everything the next step depends on, atomically; ``scheduler`` is the learning-rate scheduler, if any.

    The data stream is not part of it: open it again at position ``boosted.step_index``
    (``task.batches(seed, start=boosted.step_index)``).
    """
    buffer = io.BytesIO()
    torch.save(checkpoint_state(boosted, scheduler), buffer)
    write_bytes_atomically(Path(path), buffer.getvalue())


def checkpoint_state(boosted: Boosted, scheduler: LRScheduler | None = None) -> dict[str, Any]:
    """Return what `save_checkpoint` writes; its tensors are the living ones, not copies."""
    return {
        "format": _FORMAT,
        "boosted": boosted.state_dict(),
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "threads": torch.get_num_threads(),
        **generator_states(boosted.device),
    }


def load_checkpoint(path: Path | str, boosted: Boosted, scheduler: LRScheduler | None = None) -> None:
    """Continue from a file of ``save_checkpoint``, with objects built as for its run, or raise ValueError."""
    state = read_checkpoint(path, boosted.device)
    if (scheduler is None) != (state["scheduler"] is None):
        raise ValueError(f"{path}: the run that wrote it had {'no' if scheduler else 'a'} learning-rate scheduler")
    try:
        boosted.load_state_dict(state["boosted"])
        if scheduler is not None:
            scheduler.load_state_dict(state["scheduler"])
        restore_generators(state, boosted.device)
    except Exception as error:  # torch's own loaders fail in any way they like
        raise ValueError(f"{path}: not a checkpoint of this setup ({type(error).__name__}: {error})") from error


def read_checkpoint(path: Path | str, device: torch.device) -> dict[str, Any]:
    """Return what `checkpoint_state` gave, possibly with more entries, read without pickle onto a device.

    A file that is damaged or not a checkpoint of this format is a ValueError. torch writes a checksum of each entry but
    does not check it on reading.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if (entry := archive.testzip()) is not None:
                    raise ValueError(f"its entry {entry} is damaged")
        with torch.serialization.safe_globals(_NUMPY):
            state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path}: not a checkpoint of this package ({first_line(error)})") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise ValueError(f"{path}: not a checkpoint of this package (format {_FORMAT})")
    if missing := [name for name in ("boosted", "scheduler", "torch_rng", "device_rng") if name not in state]:
        raise ValueError(f"{path}: not a checkpoint of this package, it lacks `{missing[0]}`")
    if not isinstance(state["device_rng"], torch.Tensor | None):
        raise ValueError(f"{path}: not a checkpoint of this package, `device_rng` is not a tensor")
    return state


@contextlib.contextmanager
def with_threads_of(state: Mapping[str, Any] | None, device: torch.device) -> Iterator[None]:
    """Compute in the block with as many threads as the run that wrote a checkpoint, if this machine has them.

    On a CPU other threads add up in another order, which gives other bits. ``None`` changes nothing, and neither does
    a checkpoint of another device or of an older version, which does not name them.
    """
    before = torch.get_num_threads()
    threads = before if state is None or device.type != "cpu" else int(state.get("threads", before))
    if threads > max(before, usable_cores()):
        warn(
            f"the checkpoint was written by {threads} threads, of which this machine offers {usable_cores()}: training "
            f"continues with {before}, and its numbers may differ in their last bits",
            RuntimeWarning,
        )
        threads = before
    if threads == before:
        yield
        return
    with devices.kept_threads():
        devices.use_threads(threads)
        yield
