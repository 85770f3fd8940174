"""What this machine can do at all, measured in the same run as what is compared with it."""

from __future__ import annotations

import torch

from workbench.bench.contest import Side

__all__ = ["copying", "multiplying", "reading"]


def reading(n_bytes: int, device: torch.device) -> Side:
    """Return a side that reads so many bytes once."""
    block = torch.ones(max(n_bytes // 4, 1), device=device)
    return block.sum


def copying(n_bytes: int, device: torch.device) -> Side:
    """Return a side that copies so many bytes: as many are read, as many written."""
    source = torch.ones(max(n_bytes // 4, 1), device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def multiplying(rows: int, inner: int, columns: int, device: torch.device) -> Side:
    """Return a side that multiplies two float32 matrices, ``rows x inner`` by ``inner x columns``."""
    one, other = torch.ones(rows, inner, device=device), torch.ones(inner, columns, device=device)
    out = torch.empty(rows, columns, device=device)
    return lambda: torch.mm(one, other, out=out)
