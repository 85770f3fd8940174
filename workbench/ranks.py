"""The ranks that train together, as torch.distributed knows them."""

from __future__ import annotations

from torch import distributed

__all__ = ["rank", "world_size"]


def world_size() -> int:
    """Return how many ranks there are; 1 without a process group."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Return this process's rank; 0 without a process group."""
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
