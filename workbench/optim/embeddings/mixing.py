"""A fixed scrambling of 64-bit integers: the same bits on every device, platform and version.

The finaliser of splitmix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014,
doi:10.1145/2660193.2660195, with the constants of Stafford's variant 13 as in Vigna's public-domain ``splitmix64.c``.
For a given seed it is a bijection of the 64-bit integers, so distinct ids stay distinct until they are cut down to
rows.

Called with a counter it is a random generator with access by position: number i needs none of those before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15  # 2 ** 64 divided by the golden ratio: the step between the states of splitmix64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def mix64_number(number: int, seed: int = 0) -> int:
    """Return the scrambled number, 0 to 2 ** 64 - 1, of any integer modulo 2 ** 64; any seed chooses a scrambling.

    Example:
        >>> hex(mix64_number(0))  # the first output of splitmix64.c from state 0
        '0xe220a8397b1dcdaf'
    """
    z = (number + _offset(seed)) & _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


def mix64_array(numbers: npt.NDArray[Any], seed: int = 0) -> npt.NDArray[np.uint64]:
    """Return scrambled numbers, int64 (two's complement) or uint64, as a new uint64 array of the same shape."""
    z = np.array(numbers, copy=True).view(np.uint64) if numbers.dtype.itemsize == 8 else numbers.astype(np.uint64)
    z += np.uint64(_offset(seed))
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= np.uint64(_FIRST)
    np.right_shift(z, np.uint64(27), out=shifted)
    z ^= shifted
    z *= np.uint64(_SECOND)
    np.right_shift(z, np.uint64(31), out=shifted)
    z ^= shifted
    return z


def mix64(ids: Tensor, seed: int = 0) -> Tensor:
    """Return scrambled ids as int64 (the bits of the unsigned result); ids that are not int64 are a TypeError."""
    if ids.dtype != torch.int64:
        raise TypeError(f"`ids` must be int64, got {ids.dtype}")
    if ids.device.type == "cpu":  # numpy starts an operation in a third of torch's time, and batches are small
        return torch.from_numpy(mix64_array(ids.detach().numpy(), seed).view(np.int64))
    z = ids + _signed(_offset(seed))
    z = (z ^ _shifted(z, 30)) * _signed(_FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(_SECOND)
    return z ^ _shifted(z, 31)


def row_of(ids: Tensor, seed: int, n_rows: int) -> Tensor:
    """Return which of so many rows (or buckets of them) each id falls into."""
    # The sign bit is dropped and not the lowest one: a remainder by a power of two looks at the low bits alone.
    return (mix64(ids, seed) & 0x7FFF_FFFF_FFFF_FFFF) % n_rows


def uniform_from(scrambled: Tensor) -> Tensor:
    """Return numbers in [0, 1) from what `mix64` returned: the upper 24 bits, exact in float32."""
    return _shifted(scrambled, 40).to(torch.float32) * 2.0**-24


def _offset(seed: int) -> int:
    """Return what is added before mixing: seed 0 gives splitmix64.c from state 0, others are scattered far apart."""
    return _GOLDEN if seed == 0 else (mix64_number(seed & _MASK) + _GOLDEN) & _MASK


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >= 1 << 63 else constant


def _shifted(z: Tensor, n_bits: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift of int64 repeats the sign."""
    return (z >> n_bits) & ((1 << (64 - n_bits)) - 1)
