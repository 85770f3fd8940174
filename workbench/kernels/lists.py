"""Kernels called on lists of tensors.

Addresses of weights are asked for at every call: ``parameter.data = other`` moves a tensor without anybody hearing of
it.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from workbench.kernels.library import KernelLibrary, kernel_library

__all__ = [
    "AdamSettings",
    "Addresses",
    "adam_",
    "adam_at_",
    "adam_rounded_",
    "addresses_of",
    "are_fit",
    "combine_rows",
    "inner_products",
    "lengths_of",
    "mix_",
    "norm_and_maximum",
    "unscale_and_check_",
]

Addresses: TypeAlias = "array[int]"
"""Machine words, one per tensor."""

_GRAIN: Final = 32_768  # elements per thread below which another thread costs more than it saves; torch's own

_RUN: Final = 32_768  # elements whose products one thread adds up
_PLAIN: Final = frozenset({Tensor, nn.Parameter})
_IS_CPU, _DTYPE, _LAYOUT = map(attrgetter, ("is_cpu", "dtype", "layout"))


class AdamSettings(ctypes.Structure):
    """What is the same for all elements of a step of Adam, as ``struct adam`` of ``kernels.c``; all are float32.

    With gradient g, weight w, decay d, moments m and v::

        g = sign * g + d * w
        m = m + first_weight * (g - m)
        v = v * beta2 + second_weight * g * g
        w = w * shrink - step * m / (sqrt(v) / correction + eps)
    """

    _fields_ = (
        ("first_weight", ctypes.c_float),
        ("beta2", ctypes.c_float),
        ("second_weight", ctypes.c_float),
        ("correction", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("step", ctypes.c_float),
        ("decay", ctypes.c_float),
        ("shrink", ctypes.c_float),
        ("sign", ctypes.c_float),
    )


def are_fit(tensors: Sequence[Tensor], dtype: torch.dtype = torch.float32, *, alike: bool = False) -> bool:
    """Return whether a kernel can go through all these tensors, and there is one on this machine.

    Args:
        tensors: At least one.
        dtype: What they must be.
        alike: They are known to be of one device, dtype and layout; finding that out takes longer than the rest.
    """
    some = tensors[:1] if alike else tensors
    library = kernel_library()
    return (
        library is not None
        and (library.has_threads or torch.get_num_threads() == 1)
        and all(map(_IS_CPU, some))
        and set(map(_DTYPE, some)) == {dtype}
        and set(map(_LAYOUT, some)) == {torch.strided}
        and all(map(Tensor.is_contiguous, tensors))
        and set(map(type, tensors)) <= _PLAIN  # of a tensor in several places the memory here is only a part
        and not any(map(Tensor.is_neg, tensors))  # whose memory holds the other sign
        and not torch.compiler.is_compiling()
    )


def unscale_and_check_(values: Sequence[Tensor], factors: Sequence[float]) -> Sequence[int]:
    """Multiply each tensor by its factor in place.

    Args:
        values: Fit for it, see `are_fit`.
        factors: One per tensor; rounded to float32.

    Returns:
        Per tensor 1 if an element was inf or NaN before, else 0.
    """
    library, lengths, places = _library(), lengths_of(values), addresses_of(values)  # kept until the call is over
    by, found = array("f", factors), array("i", bytes(4 * len(values)))
    library.functions.unscale_and_check(
        _long(len(values)), _at(places), _at(lengths), _at(by), _at(found), _threads(library, lengths)
    )
    increment_version(values)
    return found


def norm_and_maximum(values: Sequence[Tensor]) -> tuple[float, float]:
    """Return L2 norm and largest absolute value of all tensors together.

    Args:
        values: Fit for it, see `are_fit`.

    Returns:
        Both; squares are added up in float32 by the thousand, then in double precision. The maximum is NaN where an
        element is inf or NaN.
    """
    lengths, places = lengths_of(values), addresses_of(values)
    squares, maxima = array("d", bytes(8 * len(values))), array("f", bytes(4 * len(values)))
    _library().functions.squares_and_maxima(_long(len(values)), _at(places), _at(lengths), _at(squares), _at(maxima))
    return math.sqrt(sum(squares)), max(maxima) if all(map(math.isfinite, maxima)) else math.nan


def inner_products(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> list[tuple[float, float, float]]:
    """Return a.b, a.a and b.b of every pair of tensors; the same bits for any number of threads.

    Args:
        ours: Fit for it, see `are_fit`.
        theirs: Likewise, each with as many elements as its partner.
    """
    library, lengths = _library(), lengths_of(ours)
    first_runs = array("q", itertools.accumulate((-(-length // _RUN) for length in lengths), initial=0))
    sums = array("d", bytes(24 * first_runs[-1]))
    a, b = addresses_of(ours), addresses_of(theirs)
    library.functions.inner_products(
        _long(len(lengths)),
        *map(_at, (a, b, lengths, first_runs)),
        _long(_RUN),
        _at(sums),
        _threads(library, lengths),
    )
    if len(sums) == 3 * len(lengths) and 0 not in lengths:  # a run each
        return list(zip(sums[0::3], sums[1::3], sums[2::3], strict=True))
    products = []
    for begin, end in itertools.pairwise(first_runs):
        across, own, other = (sum(sums[3 * begin + part : 3 * end : 3]) for part in range(3))
        products.append((across, own, other))
    return products


def mix_(ours: Sequence[Tensor], theirs: Sequence[Tensor], own: Sequence[float], other: Sequence[float]) -> None:
    """Replace every tensor a by own a + other b.

    Args:
        ours: The a, fit for it, see `are_fit`.
        theirs: The b, likewise, each with as many elements as its partner.
        own: A factor for each a, rounded to float32.
        other: A factor for each b, rounded to float32.
    """
    library, lengths = _library(), lengths_of(ours)
    a, b, of_own, of_other = addresses_of(ours), addresses_of(theirs), array("f", own), array("f", other)
    library.functions.mix(
        _long(len(lengths)), *map(_at, (a, b, lengths)), _at(of_own), _at(of_other), _threads(library, lengths)
    )
    increment_version(ours)


def combine_rows(matrix: Tensor, factors: Tensor, out: Tensor) -> None:
    """Form two linear combinations of a matrix's rows, for which the matrix is read once.

    Args:
        matrix: ``[rows, columns]``, fit for it, see `are_fit`.
        factors: ``[2, rows]``, likewise.
        out: ``[2, columns]``, likewise, where they are written: the same bits for any number of threads.

    Raises:
        ValueError: When the shapes do not belong together.
    """
    if matrix.ndim != 2 or factors.shape != (2, matrix.shape[0]) or out.shape != (2, matrix.shape[1]):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (matrix, factors, out))
        raise ValueError(f"shapes must be [rows, columns], [2, rows] and [2, columns], got {shapes}")
    library = _library()
    library.functions.combine_rows(
        *map(_long, matrix.shape),
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (matrix, factors, out)),
        _threads(library, array("q", [matrix.numel()])),
    )
    increment_version([out])


def adam_(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    settings: AdamSettings,
) -> None:
    """Take a step of Adam in place, with the bits of torch's fused kernel on one thread; gradients stay as they are.

    Args:
        weights: Fit for it, see `are_fit`.
        gradients: Likewise, each with as many elements as its weight, as all that follow.
        first: First moments, likewise.
        second: Second moments, likewise.
        settings: Numbers of the step.
    """
    w, g, m, v = map(addresses_of, (weights, gradients, first, second))
    adam_at_(w, g, m, v, lengths_of(weights), settings)
    increment_version([*weights, *first, *second])


def adam_at_(
    weights: Addresses,
    gradients: Addresses,
    first: Addresses,
    second: Addresses,
    lengths: Addresses,
    settings: AdamSettings,
) -> None:
    """Do what `adam_` does for who keeps lists from step to step, and the tensors behind them.

    Autograd does not hear of it: that the weights have changed is for the caller to say (`increment_version`).

    Args:
        weights: What `addresses_of` says of the weights.
        gradients: Of the gradients.
        first: Of the first moments.
        second: Of the second moments.
        lengths: What `lengths_of` says of the weights.
        settings: Numbers of the step.
    """
    library = _library()
    library.functions.adam(
        _long(len(lengths)),
        *map(_at, (weights, gradients, first, second, lengths)),
        ctypes.byref(settings),
        _long(_lanes()),
        _threads(library, lengths),
    )


def adam_rounded_(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    settings: AdamSettings,
    *,
    table: Tensor,
    places: Tensor,
    piece: int,
) -> None:
    """Take a step of Adam in place on bfloat16 moments, rounded by a table.

    Args:
        weights: Fit for it, see `are_fit`.
        gradients: Likewise, each with as many elements as its weight, as all that follow.
        first: First moments, bfloat16, fit for it.
        second: Second moments, likewise.
        settings: Numbers of the step; ``correction`` is taken for 1.
        table: Noise in [0, 65536) for element i of a piece at its place + i, int32, 1-D, at least ``piece`` past the
            largest place.
        places: Two per piece, for first and second moments, piece after piece of weight after weight; int64.
        piece: Elements of a piece.
    """
    library, lengths = _library(), lengths_of(weights)
    lists = [addresses_of(tensors) for tensors in (weights, gradients, first, second)]
    first_pieces, pieces = array("q"), 0
    for length in lengths:
        first_pieces.append(pieces)
        pieces += -(-length // piece)
    assert len(places) == 2 * pieces
    library.functions.adam_rounded(
        _long(len(weights)),
        *map(_at, lists),
        _at(lengths),
        ctypes.byref(settings),
        ctypes.c_void_p(table.data_ptr()),
        ctypes.c_void_p(places.data_ptr()),
        _at(first_pieces),
        _long(piece),
        _threads(library, lengths),
    )
    increment_version([*weights, *first, *second])


def _library() -> KernelLibrary:
    library = kernel_library()
    assert library is not None  # whoever calls has asked `are_fit`
    return library


def lengths_of(tensors: Sequence[Tensor]) -> Addresses:
    """Return the number of elements of every tensor."""
    return array("q", map(Tensor.numel, tensors))


def addresses_of(tensors: Sequence[Tensor]) -> Addresses:
    """Return where every tensor begins."""
    return array("Q", map(Tensor.data_ptr, tensors))


def _at(numbers: array[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.buffer_info()[0])


@functools.cache
def _lanes() -> int:
    """Return how many floats torch's vectors hold on this processor."""
    return {"AVX512": 16, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability(), 4)


def _threads(library: KernelLibrary, lengths: Addresses) -> ctypes.c_int32:
    most = torch.get_num_threads() if library.has_threads else 1
    return ctypes.c_int32(min(most, 1 + sum(lengths) // _GRAIN))


_long = ctypes.c_int64
