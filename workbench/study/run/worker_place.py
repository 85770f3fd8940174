"""Where each of several worker processes trains: an accelerator of its own, or a share of the cores.

Two workers that both let torch take all cores slow each other down by more than half, and the speed they measure is
then mostly the other's noise. A worker that is pinned to its own cores measures its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["core_share", "take_place"]


def core_share(cores: Sequence[int], place: int, places: int) -> list[int]:
    """Return the cores of one worker.

    Args:
        cores: Cores that may be used, at least one.
        place: Number of the worker, from 0.
        places: Number of workers, at least 1.

    Returns:
        Neighbouring cores, each in one share; with more workers than cores each has one, and some share it.

    Example:
        >>> [core_share([0, 1, 2, 3, 4], place, 2) for place in range(2)]
        [[0, 1], [2, 3, 4]]
        >>> [core_share([0, 1], place, 3) for place in range(3)]
        [[0], [1], [0]]
    """
    ordered = sorted(cores)
    if places >= len(ordered):
        return [ordered[place % len(ordered)]]
    first, last = place * len(ordered) // places, (place + 1) * len(ordered) // places
    return ordered[first:last]


def take_place(place: int, places: int, device: str, *, trains: bool = True) -> torch.device | None:
    """Take this process's accelerator, or pin it to its share of the cores; call it before torch is imported.

    Args:
        place: Number of this worker on this machine, from 0.
        places: Number of workers.
        device: Device the study names.
        trains: Whether torch will train here; a stand-in for training needs none.

    Returns:
        The device to train on; None leaves it to the study.
    """
    if device in {"auto", "cpu"} and hasattr(os, "sched_setaffinity"):
        share = core_share(list(os.sched_getaffinity(0)), place, places)
        everything = os.sched_getaffinity(0)
        os.sched_setaffinity(0, share)
    else:
        share, everything = [], set()
    if not trains:
        return None
    from workbench.core import devices  # with torch, whose thread pools see the cores it is pinned to

    hardware = devices.hardware_summary()
    if hardware["accelerator_count"] and device != "cpu":
        if everything:
            os.sched_setaffinity(0, everything)  # its loaders and copies may run anywhere
        named = ":" in device
        return None if named else devices.rank_device(device, place % hardware["accelerator_count"])
    if share:
        devices.use_threads(min(hardware["torch_threads"], len(share)))
    return None
