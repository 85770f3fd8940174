"""Whether batches are equal, bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def assert_equal_batches(found: list[Any], wanted: list[Any]) -> None:
    for mine, other in zip(found, wanted, strict=True):
        assert type(mine) is type(other)
        if isinstance(mine, Tensor):
            torch.testing.assert_close(mine, other, rtol=0, atol=0)
        else:
            assert_equal_batches(list(mine), list(other))
