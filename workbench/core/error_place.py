"""Where an error came from: the part of a task that failed, and the line of a user's own code.

An error that is raised again in another process has no traceback there; what this one showed goes with it.
"""

from __future__ import annotations

import functools
import sysconfig
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.core.ipython_shell import ipython_shell

_PACKAGE = Path(__file__).parents[1]
_KEPT = "_came_from"  # attribute of an error that came from another process
_STEP = "a training step"

# Where this package calls into a task, and what the author of the task calls that place.
_PARTS = {
    ("workbench.training.evaluation", "evaluate"): "the evaluation",
    ("workbench.tasks.task", "new_model"): "model()",
    ("workbench.tasks.task", "new_optimizer"): "optimizer()",
    ("workbench.tasks.task", "new_scheduler"): "scheduler()",
    ("workbench.tasks.task", "batches"): "the training data",
    ("workbench.tasks.task", "evaluation_batches"): "the evaluation data",
    ("workbench.tasks.task", "data_digest"): "the data",
    ("workbench.tasks.batches", "endless_batches"): "the training data",
    ("workbench.tasks.task", "compute_loss"): _STEP,
    ("workbench.training.loop", "training_loop"): _STEP,
    ("workbench.training.step", "backward"): _STEP,
    ("workbench.training.step", "step"): _STEP,
}


@dataclass(frozen=True, slots=True)
class Origin:
    """What a traceback shows; lines are written as ``line_of`` does."""

    task: str  # name of the task that was at work; "?" where that is unknown
    part: str  # of the task, that failed; empty where it was none
    line: str  # the user's innermost line, empty if there is none
    innermost: str  # the innermost line of all, empty without a traceback
    is_ours: bool  # whether that is one of this package
    text: str = ""  # the traceback of another process, as Python prints it


def origin_of(error: BaseException) -> Origin:
    """Return where an error came from, also where it was raised in another process."""
    kept: Origin | None = getattr(error, _KEPT, None)
    if kept is not None:
        return kept
    part = name = line = innermost = ""
    is_ours = False
    for frame, number in traceback.walk_tb(error.__traceback__):
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        found = _PARTS.get((module, code.co_name), "")
        if found and not (found == _STEP and part):  # the innermost place, but an evaluation computes losses too
            part = found
        if module.startswith("workbench.") and not name:
            # A frame of ours is at work on a task that is an argument of it, or itself.
            at_work: tuple[Any, ...] = (frame.f_locals.get("task"), frame.f_locals.get("self"))
            name = next((str(value.name) for value in at_work if hasattr(value, "compute_loss")), "")
        innermost, is_ours = line_of(number, code.co_filename), is_package_file(code.co_filename)
        if is_users_file(code.co_filename):
            line = innermost
    return Origin(name or "?", part, line, innermost, is_ours)


def keep_origin(error: BaseException) -> None:
    """Let an error that goes to another process tell there where it came from."""
    origin = origin_of(error)
    setattr(error, _KEPT, replace(origin, text=origin.text or "".join(traceback.format_exception(error))))


def what_and_where(error: BaseException) -> str:
    """Return an exception as one line: kind, text, and the user's innermost line, else the innermost one at all."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{type(error).__name__}: {error.msg}{line_of(error.lineno, error.filename or '?')}"
    text, origin = " ".join(str(error).split()), origin_of(error)
    return f"{type(error).__name__}{': ' if text else ''}{text}{origin.line or origin.innermost}"


def line_of(number: int, filename: str) -> str:
    """Return ``" (line 7 of file.py)"``; a cell of a notebook has the name that its own tracebacks give it."""
    shell = ipython_shell()
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
