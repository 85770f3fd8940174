"""Adam on bfloat16 moments in one call for all tensors, compiled where a C compiler is at hand.

``kernels.c`` is what runs, ``library.py`` compiles and loads it. A caller asks for lists first, and where there are
none goes through torch's operations, which take three to five times as long: at best 145 in place of 36 ms for 20 M
elements in 60 tensors (one thread, torch 2.13).
"""

from __future__ import annotations

import ctypes
import itertools
from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from workbench.core.kernels.library import kernel_library

_GRAIN: Final = 32_768  # elements per thread below which another thread costs more than it saves; torch's own
_PLAIN: Final = frozenset({Tensor, nn.Parameter})
_DTYPES: Final = (torch.float32, torch.float32, torch.bfloat16, torch.bfloat16)


class AdamSettings(ctypes.Structure):
    """What is the same for all elements of a step of Adam, as ``struct adam`` of ``kernels.c``; all are float32.

    With gradient g, weight w, decay d, moments m and v::

        g = g + d * w
        m = m + first_weight * (g - m)
        v = v * beta2 + second_weight * g * g
        w = w - step * m / (sqrt(v) + eps)
    """

    _fields_ = tuple(
        (name, ctypes.c_float) for name in ("first_weight", "beta2", "second_weight", "eps", "step", "decay")
    )


class AdamLists(NamedTuple):
    """What a step goes through: weights, gradients, first and second moments, and the elements of each."""

    kinds: tuple[Sequence[Tensor], ...]
    lengths: array[int]


def adam_lists(
    weights: Sequence[Tensor], gradients: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor]
) -> AdamLists | None:
    """List float32 weights and gradients and bfloat16 moments; None where the kernel cannot go through them."""
    kinds = weights, gradients, first, second
    if kernel_library() is None or torch.compiler.is_compiling() or not all(map(_fit, kinds, _DTYPES)):
        return None
    lengths, *others = (array("q", map(Tensor.numel, tensors)) for tensors in kinds)
    return AdamLists(kinds, lengths) if all(other == lengths for other in others) else None


def _fit(tensors: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Return whether the elements of each tensor lie one after the other in the host's memory."""
    plain = set(map(type, tensors)) <= _PLAIN  # of a tensor in several places the memory here is only a part
    return plain and all(map(_lies_there, tensors, itertools.repeat(dtype)))


def _lies_there(tensor: Tensor, dtype: torch.dtype) -> bool:
    if not tensor.is_cpu or tensor.dtype is not dtype or tensor.layout is not torch.strided:
        return False
    has_memory = tensor.data_ptr() != 0 or tensor.numel() == 0  # some sharded weights have none between steps
    return has_memory and tensor.is_contiguous() and not tensor.is_neg()


def adam_rounded_(lists: AdamLists, settings: AdamSettings, *, table: Tensor, places: Tensor, piece: int) -> None:
    """Take a step of Adam in place on bfloat16 moments, rounded by a table; gradients stay as they are.

    ``table`` (int32, 1-D) has the noise in [0, 65536) for element i of a ``piece`` at its place + i. ``places`` (int64)
    are two per piece, for first and second moments, piece after piece of weight after weight. Moments are in no graph,
    so autograd is notified of the weights only.
    """
    library = kernel_library()
    assert library is not None  # who has lists has a library
    lengths = lists.lengths
    *first_pieces, pieces = itertools.accumulate((-(-length // piece) for length in lengths), initial=0)
    assert len(places) == 2 * pieces
    numbers = [array("Q", map(Tensor.data_ptr, tensors)) for tensors in lists.kinds] + [lengths]
    kept = array("q", first_pieces)
    threads = min(torch.get_num_threads(), 1 + sum(lengths) // _GRAIN) if library.has_threads else 1
    library.functions.adam_rounded(
        len(lengths),
        *map(_at, numbers),
        ctypes.byref(settings),
        table.data_ptr(),
        places.data_ptr(),
        _at(kept),
        piece,
        threads,
    )
    increment_version(lists.kinds[0])


def _at(numbers: array[Any]) -> int:
    return numbers.buffer_info()[0]
