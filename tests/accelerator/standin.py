"""Build and load the stand-in for an accelerator; ``standin.cpp`` says what it is.

It lives in a process for good and becomes what ``--device auto`` takes there, so it has processes of its own.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.utils import backend_registration

__all__ = ["NAME", "forget_waits", "is_buildable", "load_standin", "races", "waits"]

NAME = "standin"
_SOURCES = [Path(__file__).with_name(name) for name in ("standin.cpp", "standin_order.h")]


class _Device:
    """``with torch.standin.device(1):``."""

    def __init__(self, device: object) -> None:
        self._index = _index(device)

    def __enter__(self) -> None:
        self._before = _DeviceModule.current_device()
        _DeviceModule.set_device(self._index)

    def __exit__(self, *_: object) -> None:
        _DeviceModule.set_device(self._before)


class _DeviceModule:
    """What torch asks a device's own module about."""

    device = _Device

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 2

    @staticmethod
    def current_device() -> int:
        return int(torch.ops.standin.current_device())

    @staticmethod
    def set_device(device: object) -> None:
        torch.ops.standin.set_device(_index(device))

    @staticmethod
    def get_device_name(device: object = None) -> str:
        return "stand-in"

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        torch.ops.standin.seed(seed)

    @staticmethod
    def get_rng_state(device: object = None) -> Tensor:
        state: Tensor = torch.ops.standin.rng_state(_index(device))
        return state

    @staticmethod
    def set_rng_state(state: Tensor, device: object = None) -> None:
        torch.ops.standin.set_rng_state(_index(device), state)


def _index(device: object) -> int:
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(str(device)).index
    return _DeviceModule.current_device() if index is None else index


def is_buildable() -> bool:
    """Return whether a compiler for C++ is there."""
    return sys.platform == "linux" and shutil.which("g++") is not None


@functools.cache
def load_standin() -> torch.device:
    """Make the stand-in this process's accelerator, compiled before where need be, and return it."""
    torch.ops.load_library(_built())  # type: ignore[no-untyped-call]  # torch's
    backend_registration.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _DeviceModule)  # type: ignore[no-untyped-call]  # torch's
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    # An accelerator's backward passes run in a thread of their own, which has another number of threads than the main
    # one; a oneDNN convolution prepared in one and run in the other writes beyond its memory (torch 2.13).
    torch._C._set_mkldnn_enabled(False)
    return torch.device(NAME)


def waits() -> list[str]:
    """Return through what the host has waited for the stand-in since ``forget_waits``, call by call."""
    return list(torch.ops.standin.waits())


def forget_waits() -> None:
    """Let ``waits`` begin anew."""
    torch.ops.standin.forget_waits()


def races() -> list[str]:
    """Return what a real accelerator, which does not compute in order, could have got wrong since the last call."""
    return list(torch.ops.standin.races())


def _built() -> str:
    root = Path(torch.__file__).parent
    read = b"".join(source.read_bytes() for source in _SOURCES)
    key = hashlib.sha256(read + torch.__version__.encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"boost-workbench-standin-{key}.so"
    if not library.exists():
        building = library.with_suffix(f".{id(library)}.tmp")
        include, lib = root / "include", root / "lib"
        command = ["g++", "-O1", "-std=c++20", "-fPIC", "-shared", "-w", f"-I{include}"]
        command += [f"-I{include / 'torch/csrc/api/include'}", str(_SOURCES[0]), "-o", str(building)]
        command += [f"-L{lib}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{lib}"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        building.replace(library)
    return str(library)
