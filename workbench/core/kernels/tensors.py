"""Lists of tensors that the kernels can go through: where each begins, and how long it is.

Addresses are read again whenever a list is made, since ``parameter.data = other`` moves a tensor. For a few hundred
small tensors that takes as long as the work, so ``tensors.c`` does it for all at once, if torch's C interface answers
as expected.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from workbench.core.kernels.library import KernelLibrary, kernel_library
from workbench.core.torch_internals import implementation_of

_PLAIN: Final = frozenset({Tensor, nn.Parameter})
_DTYPE, _IS_CPU, _LAYOUT = map(attrgetter, ("dtype", "is_cpu", "layout"))

# In the order of `struct torch`.
_FUNCTIONS: Final = ("get_dtype", "get_layout", "get_device_type", "is_contiguous", "get_data_ptr", "get_numel")
_DTYPES: Final = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

_log = logging.getLogger("workbench")


@dataclass(frozen=True, slots=True)
class Listed:
    """Tensors of one dtype on the CPU, contiguous, kept so that their memory stays; addresses and lengths of each."""

    tensors: Sequence[Tensor]
    dtype: torch.dtype
    addresses: array[int]
    lengths: array[int]

    def still_holds(self) -> bool:
        """Return whether every tensor is still where it was; this takes a third of the time of a new list."""
        return array("Q", map(Tensor.data_ptr, self.tensors)) == self.addresses


def listed(tensors: Sequence[Tensor], dtype: torch.dtype = torch.float32) -> Listed | None:
    """List tensors of a dtype, float32 or bfloat16, for a kernel; None where there is none that can go through them.

    The list is good until a tensor is given other memory.
    """
    if torch.compiler.is_compiling():
        return None
    library = kernel_library()
    if (
        library is None
        or not (library.has_threads or torch.get_num_threads() == 1)
        or not set(map(type, tensors)) <= _PLAIN  # of a tensor in several places the memory here is only a part
    ):
        return None
    torchs = _torchs_functions(library)
    found = _asked_one_by_one(tensors, dtype) if torchs is None else _asked_at_once(tensors, dtype, library, torchs)
    if found is None or any(map(Tensor.is_neg, tensors)):  # whose memory holds the other sign
        return None
    return found


def _asked_one_by_one(tensors: Sequence[Tensor], dtype: torch.dtype) -> Listed | None:
    fit = (
        all(map(_IS_CPU, tensors))
        and set(map(_DTYPE, tensors)) <= {dtype}
        and set(map(_LAYOUT, tensors)) <= {torch.strided}
        and all(map(Tensor.is_contiguous, tensors))
    )
    if not fit:
        return None
    addresses = array("Q", map(Tensor.data_ptr, tensors))
    lengths = array("q", map(Tensor.numel, tensors))
    if any(not address and length for address, length in zip(addresses, lengths, strict=True)):
        return None  # without memory, as some sharded weights are between steps
    return Listed(tensors, dtype, addresses, lengths)


_Torchs: TypeAlias = "dict[torch.dtype, tuple[array[int], array[int]]]"
"""What ``tensors.c`` needs, for every dtype: ``struct torch`` and ``struct wanted``."""


def _asked_at_once(
    tensors: Sequence[Tensor], dtype: torch.dtype, library: KernelLibrary, torchs: _Torchs
) -> Listed | None:
    implementations = array("Q", map(implementation_of, tensors))
    room = bytes(8 * len(implementations))
    addresses, lengths = array("Q", room), array("q", room)
    lists = (implementations, *torchs[dtype], addresses, lengths)
    fitting = library.short.look_at(len(tensors), *[numbers.buffer_info()[0] for numbers in lists])
    return Listed(tensors, dtype, addresses, lengths) if fitting == len(tensors) else None


@functools.cache
def _torchs_functions(library: KernelLibrary) -> _Torchs | None:
    """Return torch's C interface; None if it is missing or does not answer what Python does."""
    try:
        (path,) = (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")
        exported = ctypes.CDLL(str(path))
        table = array("Q", (_address(getattr(exported, f"aoti_torch_{name}")) for name in _FUNCTIONS))
        layout, device = exported.aoti_torch_layout_strided(), exported.aoti_torch_device_type_cpu()
        torchs = {
            dtype: (table, array("i", [getattr(exported, f"aoti_torch_dtype_{name}")(), layout, device]))
            for dtype, name in _DTYPES.items()
        }
    except (AttributeError, OSError, ValueError) as error:
        _log.info("tensors are asked one by one: %s", error)
        return None
    if not _answers(library, torchs):
        _log.info("tensors are asked one by one: torch %s answers otherwise", torch.__version__)
        return None
    return torchs


def _answers(library: KernelLibrary, torchs: _Torchs) -> bool:
    """Return whether asking at once gives the same as asking one by one, for all sorts of tensors, and for several."""
    answers = [
        (_asked_at_once(some, dtype, library, torchs), _asked_one_by_one(some, dtype))
        for some in (*([one] for one in _EXAMPLES), _EXAMPLES[:3])
        for dtype in _DTYPES
    ]
    return answers[-2][1] is not None and all(at_once == one_by_one for at_once, one_by_one in answers)


def _of_all_sorts() -> list[Tensor]:
    def zeros(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    plain = [zeros(7), zeros(2, 3), zeros(1)]
    others = [zeros(5, dtype=dtype) for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int32)]
    return [*plain, *others, zeros(0), zeros(2, 3).t(), zeros(9)[3:5], zeros(3).to_sparse(), zeros(3, device="meta")]


_EXAMPLES: Final = _of_all_sorts()
"""Made when nothing else is going on: later, tensors might be made elsewhere, or not be real ones."""


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
