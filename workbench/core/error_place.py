"""The line of a user's own code that an error came from."""

from __future__ import annotations

import functools
import sys
import sysconfig
import traceback
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def what_and_where(error: BaseException) -> str:
    """Return an exception as one line: kind, text, and the user's innermost line, else the innermost one at all."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{type(error).__name__}: {error.msg}{line_of(error.lineno, error.filename or '?')}"
    text = " ".join(str(error).split())
    frames = [*traceback.extract_tb(error.__traceback__)]
    frames = [frame for frame in frames if is_users_file(frame.filename)] or frames[-1:]
    where = "".join(line_of(frame.lineno or 0, frame.filename) for frame in frames[-1:])
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


def line_of(number: int, filename: str) -> str:
    """Return ``" (line 7 of file.py)"``; a cell of a notebook has the name that its own tracebacks give it."""
    ipython = sys.modules.get("IPython")  # where it was never imported there is no cell
    shell = ipython.get_ipython() if ipython is not None else None
    cell = shell.compile.format_code_name(filename) if shell is not None else None
    return f" (line {number} of {' '.join(cell) if cell else filename})"


def is_package_file(filename: str) -> bool:
    """Return whether a file is part of this package."""
    return _PACKAGE in Path(filename).parents


@functools.cache
def is_users_file(filename: str) -> bool:
    """Return whether a file is neither this package's nor an installed library's."""
    if filename.startswith("<") or is_package_file(filename):
        return False
    libraries = {Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    path = Path(filename).resolve()
    return path.suffix == ".py" and libraries.isdisjoint(path.parents)
