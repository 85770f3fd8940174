"""Which failures are due to the user's input, which to the work, and how each is reported in one sentence.

Errors of this package are one sentence already; errors of the system need the name of the file. For what a task's own
code raises, its author needs the task, the part that failed, the exception and the line of their file. Anything else is
a bug of ours, and is called one.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback as python_traceback
from collections.abc import Sequence
from typing import TypeGuard

import typer

from workbench.core.error_place import origin_of
from workbench.core.files import DISK_FULL_CODES
from workbench.core.out_of_memory import is_out_of_memory
from workbench.core.rank_environment import is_first_rank
from workbench.core.text import printable

FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 130

_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError)

_LONGEST = 600  # characters of what an error of others says
_ONE_SAMPLE = "Expected more than 1 value per channel"  # torch's batch norms

# What the system's loader, torch and threads say when there is no memory left.
_NO_MEMORY = ("failed to map segment", "cannot allocate memory", "can't allocate memory", "can't start new thread")

# What typer says about a number, in our words.
_RULES = {
    ": Input should be greater than or equal to": " must be at least",
    ": Input should be a valid integer, unable to parse string as an integer": " must be a whole number",
    ": Input should be a valid number, unable to parse string as a number": " must be a number",
    "Invalid value for ": "",
    ": Value error, ": ": ",
    ". Did you mean": "; did you mean",
}


class Interrupted(Exception):  # noqa: N818  # no error: the user asked for it
    """The user pressed Ctrl-C; the message says what is saved and which command continues."""


def report(error: BaseException, *, traceback: bool = False) -> int:
    """Print on stderr what ended the command, after Python's traceback if that is asked for; return the exit code.

    Only one of several ranks does: the one a ``RankFailure`` names, else rank 0, which knows every other rank's error.
    """
    if isinstance(error, BrokenPipeError):
        # `workbench schema | head`: the reader has seen enough. Python would complain again when it flushes at the
        # end, so stdout goes nowhere from here on (Python documentation, "Note on SIGPIPE").
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    if traceback and not isinstance(error, Interrupted):  # of every rank: what happened where is what it is for
        python_traceback.print_exception(error)
        if there := origin_of(error).text:
            print(f"where it was raised, in another process:\n{there}", file=sys.stderr)
    code = exit_code_of(error)
    if type(error).__name__ == "NoArgsIsHelpError":  # of a group of commands without one: its help, lines and all
        if is_first_rank():
            typer.echo(str(error.format_message()))  # type: ignore[attr-defined]  # as of every usage error
        return code
    if getattr(error, "tells", is_first_rank()):
        sentence = sentence_of(error)
        if code == FAILED and not traceback and not _is_system(error) and not _is_ours(error):
            sentence += "; --traceback shows the full traceback"
        if sentence:
            typer.echo(sentence if isinstance(error, Interrupted) else f"workbench: {sentence}", err=True)
    return code


def exit_code_of(error: BaseException) -> int:
    """Return 2 for wrong input (always a ``ValueError`` in this package), 130 for Ctrl-C, 1 for everything else."""
    if isinstance(error, (Interrupted, KeyboardInterrupt)):
        return INTERRUPTED
    is_input = _is_usage(error) or isinstance(error, _NOT_THERE) or (_is_ours(error) and isinstance(error, ValueError))
    return WRONG_INPUT if is_input else FAILED


def sentence_of(error: BaseException) -> str:
    """Return the error as one line."""
    sentence = _sentence(error)
    notes = [one for one in getattr(error, "__notes__", ()) if sentence not in one]  # a full disk fails twice alike
    return printable(" ".join("; ".join([sentence, *notes]).split()))


def _sentence(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; everything finished so far is saved"
    if _is_usage(error):
        return _usage_sentence(error)
    if _is_ours(error):
        return str(error) or type(error).__name__
    if isinstance(error, Warning):
        return (
            "a warning ended the command, because Python was asked to treat warnings as errors "
            f"(-W error, PYTHONWARNINGS): {error}"
        )
    origin = origin_of(error)
    what = _system_sentence(error) if _is_system(error) else f"{type(error).__name__}: {_cut(str(error))}".rstrip(": ")
    if not origin.part and _lacks_memory(error):
        return (
            f"there is not enough memory ({what}); close other programs, or raise the limit (ulimit -v, a job's memory)"
        )
    if is_out_of_memory(error):
        what += " (make the task's batches smaller; accumulation over several of them keeps the update the same)"
    if _ONE_SAMPLE in str(error):
        what += " (has the loader's last batch one sample? drop_last=True leaves it out)"
    if origin.part:
        return f"task {origin.task!r}: {origin.part} failed: {what}{origin.line}"
    if _is_system(error):
        return what + origin.line
    return f"unexpected error, probably a bug of the workbench: {what}{origin.line or origin.innermost}"


def _cut(text: str) -> str:
    """Return what an error says, without the middle of a compiler's thousand lines."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return any(words in str(error).lower() for words in _NO_MEMORY)


def _is_usage(error: BaseException) -> bool:
    # Typer brings its own copy of click in some versions and imports click in others; both call it the same.
    return hasattr(error, "format_message") and getattr(error, "exit_code", None) == WRONG_INPUT


def _usage_sentence(error: BaseException) -> str:
    said = str(error.format_message()).strip()  # type: ignore[attr-defined]  # _is_usage looked
    context = getattr(error, "ctx", None)
    if context is None:
        return said
    said = said.removeprefix("Invalid value: ")
    for long, short in _RULES.items():
        said = said.replace(long, short)
    came = _given(getattr(getattr(error, "param", None), "opts", ()))
    return f"{said[:1].lower()}{said[1:].rstrip('.')}{came}; see `{context.command_path} --help`"


def _given(options: Sequence[str]) -> str:
    """Return ``", got 0"`` for an option given on the command line; typer's own sentences leave it out."""
    arguments = sys.argv[1:]
    for i, argument in reversed([*enumerate(arguments)]):  # of an option given twice the last counts
        name, equals, value = argument.partition("=")
        if name in options and (equals or i + 1 < len(arguments)):
            return f", got {value if equals else arguments[i + 1]}"
    return ""


def _is_system(error: BaseException) -> TypeGuard[OSError]:
    return isinstance(error, OSError) and bool(error.strerror)


def _system_sentence(error: OSError) -> str:
    if error.errno in DISK_FULL_CODES:
        where = f" ({error.filename})" if error.filename else ""
        return f"no space left on the disk{where}; free some and run the same command again; what is finished is kept"
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return f"{error.filename or 'a file'}: cannot be written or read here ({str(error.strerror).lower()})"
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


def _is_ours(error: BaseException) -> bool:
    """Return whether the error was raised by this package on purpose, in a sentence for a person."""
    if _is_usage(error) or type(error).__module__.split(".")[0] == "workbench":
        return True
    without_number = isinstance(error, _NOT_THERE) and not error.strerror  # raised by us; the system's have one
    return (without_number or type(error) in (ValueError, RuntimeError)) and origin_of(error).is_ours
