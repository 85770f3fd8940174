"""Which failures are the user's input, which are the work's, and how each is said in one sentence."""

from __future__ import annotations

import errno

__all__ = ["exit_code_of", "sentence_of"]


def exit_code_of(error: BaseException) -> int | None:
    """Return 2 for wrong input, 1 for work that failed, None for a failure nobody foresaw.

    Every error of this package for wrong input is a ``ValueError``; ``TypeError`` and the like are bugs.
    """
    if isinstance(error, OSError):
        not_there = (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError)
        return 2 if isinstance(error, not_there) else 1
    if _is_ours(error):
        return 2 if isinstance(error, ValueError) else 1
    return None


def sentence_of(error: BaseException) -> str:
    """Return the error as one line."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        hint = "; free some space and run the same command again" if error.errno == errno.ENOSPC else ""
        return f"{where}{error.strerror}{hint}"
    return " ".join(str(error).split())


def _is_ours(error: BaseException) -> bool:
    """Return whether the error was raised by this package on purpose, in a sentence for a person."""
    return type(error).__module__.split(".")[0] == "workbench" or _raised_here(error)


def _raised_here(error: BaseException) -> bool:
    """Return whether a plain ValueError or RuntimeError comes out of this package's own code."""
    if type(error) not in (ValueError, RuntimeError):
        return False
    trace = error.__traceback__
    last = None
    while trace is not None:
        last, trace = trace, trace.tb_next
    module = last.tb_frame.f_globals.get("__name__", "") if last is not None else ""
    return module.split(".")[0] == "workbench"
