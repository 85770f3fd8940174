"""Passes over many CPU tensors in one call, compiled where a C compiler is at hand.

``kernels.c`` is what runs, ``library.py`` compiles and loads it, ``tensors.py`` lists the tensors that a kernel can
go through. A caller asks for a list with `listed` first, and keeps a way through torch's own operations for
when there is none.

What each is worth: its time as a share of that of torch's own operations, for 1 M elements in 60 tensors, 1 M in 400
and 20 M in 60 (one thread of an AMD EPYC under load, torch 2.13; a tenth is noise). ``studies/bench`` has whole steps.

* `unscale_and_check_`, in every step with a loss scale: 0.50, 0.63, 1.1.
* `adam_`, in every step of a fused Adam: 1.0, 0.96, 0.86, and it takes any number of threads to the same bits; in
  AdamOffload 0.84, 0.97, 0.95.
* `adam_rounded_`, AdamOffload with moments in bfloat16: 0.02, 0.01, 0.31; without it they would be too slow to use.
* `norm_and_maximum`, in every step that is recorded: 0.30 for 1 M in 60.
* `count_exponents`, at every tenth update of a recorded run: 0.1.
* `inner_products` and `mix_`, AdaSum of two sets in one process: 0.35, 0.06, 1.15.
* `combine_rows`, twice in every step in a subspace: 0.67 for 32 components of 1 M weights.
* ``tensors.c``, before each of these: 46 microseconds instead of 186 for 400 tensors.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import struct
from array import array
from collections.abc import Sequence
from operator import is_
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from workbench.core.kernels.library import KernelLibrary, kernel_library
from workbench.core.kernels.tensors import Listed as Listed
from workbench.core.kernels.tensors import listed as listed

_GRAIN: Final = 32_768  # elements per thread below which another thread costs more than it saves; torch's own

_RUN: Final = 32_768  # elements whose products one thread adds up


class AdamSettings(ctypes.Structure):
    """What is the same for all elements of a step of Adam, as ``struct adam`` of ``kernels.c``; all are float32.

    With gradient g, weight w, decay d, moments m and v::

        g = sign * g + d * w
        m = m + first_weight * (g - m)
        v = v * beta2 + second_weight * g * g
        w = w * shrink - step * m / (sqrt(v) / correction + eps)
    """

    _fields_ = tuple(
        (name, ctypes.c_float)
        for name in ("first_weight", "beta2", "second_weight", "correction", "eps", "step", "decay", "shrink", "sign")
    )


def unscale_and_check_(values: Listed, factors: Sequence[float]) -> Sequence[int]:
    """Multiply each tensor by its factor in place; per tensor 1 if an element was inf or NaN before, else 0."""
    assert values.dtype is torch.float32
    assert len(factors) == len(values.lengths)
    library, by = _library(), array("f", factors)
    found = array("i", bytes(4 * len(by)))
    library.functions.unscale_and_check(
        len(by), _at(values.addresses), _at(values.lengths), _at(by), _at(found), _threads(library, values.lengths)
    )
    increment_version(values.tensors)
    return found


def norm_and_maximum(values: Listed) -> tuple[float, float]:
    """Return L2 norm, summed in double precision, and largest absolute value, NaN where an element is inf or NaN."""
    assert values.dtype is torch.float32
    squares, bits = ctypes.c_double(), ctypes.c_uint32()
    lists = map(_at, (values.addresses, values.lengths))
    _library().functions.squares_and_maximum(len(values.lengths), *lists, ctypes.byref(squares), ctypes.byref(bits))
    (maximum,) = struct.unpack("=f", struct.pack("=I", bits.value))
    return math.sqrt(squares.value), maximum if math.isfinite(maximum) else math.nan


def count_exponents(values: Listed, places: Sequence[int], counts: Tensor) -> None:
    """Add the binary exponents of each tensor to its place: a row of ``counts`` (int64, ``[n_places, 257]``).

    Its columns are the biased exponents of float32 without zeros, then zeros.
    """
    assert values.dtype is torch.float32
    assert counts.dtype is torch.int64
    assert counts.shape[1:] == (257,)
    assert counts.is_contiguous()
    by = array("q", places)
    assert len(by) == len(values.lengths)
    assert not by or (min(by) >= 0 and max(by) < len(counts))
    lists = map(_at, (values.addresses, values.lengths, by))
    _library().functions.count_exponents(len(by), *lists, counts.data_ptr())


def inner_products(ours: Listed, theirs: Listed) -> list[tuple[float, float, float]]:
    """Return a.b, a.a and b.b of every pair of tensors; the same bits for any number of threads."""
    assert ours.dtype is theirs.dtype is torch.float32
    assert ours.lengths == theirs.lengths
    library, lengths = _library(), ours.lengths
    first_runs = array("q", itertools.accumulate((-(-length // _RUN) for length in lengths), initial=0))
    sums = array("d", bytes(24 * first_runs[-1]))
    lists = [_at(numbers) for numbers in (ours.addresses, theirs.addresses, lengths, first_runs)]
    library.functions.inner_products(len(lengths), *lists, _RUN, _at(sums), _threads(library, lengths))
    if len(sums) == 3 * len(lengths) and 0 not in lengths:  # a run each
        return list(zip(sums[0::3], sums[1::3], sums[2::3], strict=True))
    products = []
    for begin, end in itertools.pairwise(first_runs):
        across, own, other = (sum(sums[3 * begin + part : 3 * end : 3]) for part in range(3))
        products.append((across, own, other))
    return products


def mix_(ours: Listed, theirs: Listed, own: Sequence[float], other: Sequence[float]) -> None:
    """Replace every tensor a by own a + other b, with a pair of factors for each pair of tensors."""
    assert ours.dtype is theirs.dtype is torch.float32
    assert ours.lengths == theirs.lengths
    assert len(own) == len(other) == len(ours.lengths)
    library, of_own, of_other = _library(), array("f", own), array("f", other)
    lists = [_at(numbers) for numbers in (ours.addresses, theirs.addresses, ours.lengths, of_own, of_other)]
    library.functions.mix(len(own), *lists, _threads(library, ours.lengths))
    increment_version(ours.tensors)


def combine_rows(matrix: Tensor, factors: Tensor, out: Tensor) -> bool:
    """Form two linear combinations of a matrix's rows, for which the matrix is read once.

    ``matrix`` is ``[rows, columns]``, ``factors`` ``[2, rows]``, ``out`` ``[2, columns]``: the same bits for any number
    of threads. Returns False where the kernel cannot go through these tensors.
    """
    if matrix.ndim != 2 or factors.shape != (2, matrix.shape[0]) or out.shape != (2, matrix.shape[1]):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (matrix, factors, out))
        raise ValueError(f"shapes must be [rows, columns], [2, rows] and [2, columns], got {shapes}")
    all_three = listed([matrix, factors, out])
    if all_three is None:
        return False
    library = _library()
    library.functions.combine_rows(*matrix.shape, *all_three.addresses, _threads(library, all_three.lengths[:1]))
    increment_version([out])
    return True


class AdamLists(NamedTuple):
    """What a step of Adam goes through, float32 but for moments that are rounded."""

    weights: Listed
    gradients: Listed
    first: Listed
    second: Listed

    @property
    def lasting(self) -> Lasting:
        """What may be used again in the next step; gradients, which may be many bytes, must not be kept for that."""
        return self.weights, self.first, self.second


Lasting: TypeAlias = tuple[Listed, Listed, Listed]
"""Weights and both moments."""


def adam_lists(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    moments: torch.dtype = torch.float32,
    *,
    before: Lasting | None = None,
) -> AdamLists | None:
    """List what a step of Adam takes, moments of one dtype; None if a kernel cannot go through it.

    ``before`` is ``lasting`` of an earlier step: lists of the same tensors, if not moved in memory, are used again.
    """
    of_weights, of_first, of_second = before or (None, None, None)
    w, g = _again(weights, torch.float32, of_weights), listed(gradients)
    m, v = _again(first, moments, of_first), _again(second, moments, of_second)
    if w is None or g is None or m is None or v is None or not w.lengths == g.lengths == m.lengths == v.lengths:
        return None
    return AdamLists(w, g, m, v)


def _again(tensors: Sequence[Tensor], dtype: torch.dtype, before: Listed | None) -> Listed | None:
    if (
        before is not None
        and before.dtype is dtype
        and len(before.tensors) == len(tensors)
        and all(map(is_, before.tensors, tensors))
        and before.still_holds()
    ):
        return before
    return listed(list(tensors), dtype)  # a copy: the caller's list may change


def adam_(lists: AdamLists, settings: AdamSettings) -> None:
    """Take a step of Adam in place, with the bits of torch's fused kernel on one thread; gradients stay as they are.

    All lists are float32. Moments are in no graph, so autograd is notified of the weights only.
    """
    assert {one.dtype for one in lists} == {torch.float32}
    library, lengths = _library(), lists.weights.lengths
    addresses = (_at(values.addresses) for values in lists)
    library.functions.adam(
        len(lengths), *addresses, _at(lengths), ctypes.byref(settings), _lanes(), _threads(library, lengths)
    )
    increment_version(lists.weights.tensors)


def adam_rounded_(lists: AdamLists, settings: AdamSettings, *, table: Tensor, places: Tensor, piece: int) -> None:
    """Take a step of Adam in place on bfloat16 moments, rounded by a table; ``correction`` is taken as 1.

    ``table`` (int32, 1-D) has the noise in [0, 65536) for element i of a ``piece`` at its place + i. ``places`` (int64)
    are two per piece, for first and second moments, piece after piece of weight after weight.
    """
    assert lists.first.dtype is lists.second.dtype is torch.bfloat16
    library, lengths = _library(), lists.weights.lengths
    *first_pieces, pieces = itertools.accumulate((-(-length // piece) for length in lengths), initial=0)
    assert len(places) == 2 * pieces
    kept = array("q", first_pieces)
    library.functions.adam_rounded(
        len(lengths),
        *(_at(values.addresses) for values in lists),
        _at(lengths),
        ctypes.byref(settings),
        table.data_ptr(),
        places.data_ptr(),
        _at(kept),
        piece,
        _threads(library, lengths),
    )
    increment_version(lists.weights.tensors)


def _library() -> KernelLibrary:
    library = kernel_library()
    assert library is not None  # who has a list has a library
    return library


def _at(numbers: array[Any]) -> int:
    return numbers.buffer_info()[0]


@functools.cache
def _lanes() -> int:
    """Return how many floats the narrowest vectors of torch's loop hold on this processor.

    With AVX-512 torch takes the first eight of what is left at the end in half a vector, rounded as in a whole one.
    """
    return {"AVX512": 8, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability(), 4)


def _threads(library: KernelLibrary, lengths: array[int]) -> int:
    most = torch.get_num_threads() if library.has_threads else 1
    return min(most, 1 + sum(lengths) // _GRAIN)
