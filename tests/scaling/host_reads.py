"""Catch every operation through which the host would wait for a tensor's value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.core import host_values

__all__ = ["forbid_host_reads"]


class _Forbid(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # `item`, `bool(tensor)`, `float(tensor)` end in the first; data-dependent shapes and `equal` in the others.
        if func in _READS:
            raise AssertionError(f"{func} makes the host wait for the device")
        return func(*args, **(kwargs or {}))


_READS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
}


@contextmanager
def forbid_host_reads() -> Iterator[None]:
    """Raise inside this context when the host reads a tensor, and let tensors here pass for those of a device."""
    with mock.patch.object(host_values, "reads_without_waiting", return_value=False), _Forbid():
        yield
