"""The functions in C of this folder as a loaded library: compiled once per machine, for exactly this processor.

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

_SOURCES: Final = tuple(Path(__file__).with_name(name) for name in ("kernels.c", "tensors.c"))
_FLAGS: Final = tuple(
    "-O3 -march=native -fno-math-errno -fno-trapping-math -ffp-contract=off -std=c11 -fPIC".split()  # noqa: SIM905
)
_SECONDS: Final = 60.0

_LONG, _INT, _AT = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p
_ARGUMENTS: Final = {
    "unscale_and_check": (_LONG, *[_AT] * 4, _INT),
    "squares_and_maximum": (_LONG, *[_AT] * 4),
    "count_exponents": (_LONG, *[_AT] * 4),
    "inner_products": (_LONG, *[_AT] * 4, _LONG, _AT, _INT),
    "mix": (_LONG, *[_AT] * 5, _INT),
    "combine_rows": (_LONG, _LONG, *[_AT] * 3, _INT),
    "adam": (_LONG, *[_AT] * 6, _LONG, _INT),
    "adam_rounded": (_LONG, *[_AT] * 9, _LONG, _INT),
    "look_at": (_LONG, *[_AT] * 5),
}
"""What each function takes, so that plain numbers can be passed."""

_RESULTS: Final = {"look_at": _LONG}

_log = logging.getLogger("workbench")


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """The loaded library.

    ``short`` has the same functions, called without letting other threads of Python run meanwhile: for calls of a few
    microseconds, after which another thread would not give way for milliseconds.
    """

    functions: Any
    short: Any
    has_threads: bool  # whether they can run on several threads, torch's


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
    functions, short = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
    for library in (functions, short):
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, _RESULTS.get(name)
    return KernelLibrary(functions, short, has_threads=bool(openmp))


def _place(compiler: str, flags: tuple[str, ...]) -> Path:
    name = hashlib.sha256()
    version = _run(compiler, "--version")
    for part in (*map(Path.read_bytes, _SOURCES), version, " ".join(flags).encode(), _processor().encode()):
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
        objects = [str(Path(folder) / f"{source.stem}.o") for source in _SOURCES]
        for source, target in zip(_SOURCES, objects, strict=True):
            _run(compiler, *flags, "-c", str(source), "-o", target)
        # Linked without -fopenmp, which would bring along its own library.
        _run(compiler, "-shared", *objects, "-o", str(made), "-lm")
        made.chmod(0o700)  # whatever the user's umask is
        made.replace(path)  # whole or not at all, however many processes do this at once


def _refuse_what_others_can_write(path: Path) -> None:
    for one in (path, path.parent):
        status = one.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PermissionError(f"{one} belongs to another user or is writable by others, so it is not loaded")
