"""The function in C of this folder as a loaded library: compiled once per machine, for exactly this processor.

Without a C compiler torch's operations are used instead. The library is in the user's cache folder, under a name made
from its source, compiler and processor. Its threads are torch's: OpenMP's symbols are left open and found in torch's
library, since with a second OpenMP in the process the threads of both would sleep at every barrier.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

OFF: Final = "WORKBENCH_NO_KERNELS"
"""Environment variable: set to anything, no kernel is compiled or used."""

_SOURCE: Final = Path(__file__).with_name("kernels.c")
_FLAGS: Final = tuple(
    "-O3 -march=native -fno-math-errno -fno-trapping-math -ffp-contract=off -std=c11 -fPIC".split()  # noqa: SIM905
)
_SECONDS: Final = 60.0

_log = logging.getLogger("workbench")


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """The loaded library."""

    functions: Any
    has_threads: bool  # whether it can run on several threads, torch's


@functools.cache
def kernel_library() -> KernelLibrary | None:
    """Return the library, compiled if need be; None where there is no compiler or no place for it."""
    if os.environ.get(OFF) or os.name != "posix":
        return None
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return None
    try:
        return _loaded(compiler)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # without a home: RuntimeError
        _log.info("no kernels of our own: %s", error)
        return None


def _loaded(compiler: str) -> KernelLibrary:
    openmp = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    flags = (*_FLAGS, "-fopenmp") if openmp else _FLAGS
    path = _place(compiler, flags)
    if not path.exists():
        _compile(compiler, flags, path)
    _refuse_what_others_can_write(path)
    if openmp:
        ctypes.CDLL(str(openmp[0]), mode=ctypes.RTLD_GLOBAL)  # where the open symbols are found
    functions = ctypes.CDLL(str(path))
    long, address, number = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32  # so that plain numbers can be passed
    functions.adam_rounded.argtypes = (long, *[address] * 9, long, number)
    functions.adam_rounded.restype = None
    return KernelLibrary(functions, has_threads=bool(openmp))


def _place(compiler: str, flags: tuple[str, ...]) -> Path:
    name = hashlib.sha256()
    version = _run(compiler, "--version")
    for part in (_SOURCE.read_bytes(), version, " ".join(flags).encode(), _processor().encode()):
        name.update(hashlib.sha256(part).digest())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "boost-workbench" / f"kernels-{name.hexdigest()[:32]}.so"


def _run(*command: str) -> bytes:
    return subprocess.run(command, capture_output=True, check=True, timeout=_SECONDS).stdout


def _processor() -> str:
    """Return what distinguishes this processor's instructions from another's."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    telling = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(telling)}))


def _compile(compiler: str, flags: tuple[str, ...], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        compiled = str(made.with_suffix(".o"))
        _run(compiler, *flags, "-c", str(_SOURCE), "-o", compiled)
        # Linked without -fopenmp, which would bring along its own library.
        _run(compiler, "-shared", compiled, "-o", str(made), "-lm")
        made.chmod(0o700)  # whatever the user's umask is
        made.replace(path)  # whole or not at all, however many processes do this at once


def _refuse_what_others_can_write(path: Path) -> None:
    for one in (path, path.parent):
        status = one.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PermissionError(f"{one} belongs to another user or is writable by others, so it is not loaded")
