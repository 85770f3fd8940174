"""Wait for a database that is away for a moment, and say so.

What failed is tried again after 0.5, 1, 2, 4, 8, 8, ... seconds, up to a limit; the waits are shortened by a random
part, so that a hundred workers do not come back at once. A wrong password or a full disk is reported at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import time
import traceback
from collections.abc import Callable, Iterator
from typing import TypeVar

import optuna
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError, SQLAlchemyError

from workbench.core.credentials import hide_passwords
from workbench.core.text import first_line
from workbench.study.errors import StudyFailedError

STORAGE_ERRORS = (optuna.exceptions.StorageInternalError, SQLAlchemyError)
"""What Optuna and the database driver raise when the database cannot be used."""

_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 8.0

# What a server answers to those who may never come in.
_REFUSED = ("password", "authentication", "no pg_hba.conf entry", "does not exist", "permission denied")

# What SQLite says of a damaged file.
_DAMAGED = ("malformed", "not a database", "could not decode", "corrupt", "invalid isoformat", "no such column")

_Result = TypeVar("_Result")
_log = logging.getLogger("workbench")


def may_pass(error: BaseException) -> bool:
    """Return whether a storage error may be gone when the request is repeated."""
    cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
    # What broke the connection was raised before, and Optuna asked the same once more; a new session has a new one.
    if isinstance(cause, PendingRollbackError) or "closed transaction" in str(cause):
        return True
    if not isinstance(cause, DBAPIError):
        return False
    reason = str(cause.orig).lower()
    if type(cause.orig).__module__.startswith("sqlite3"):
        return "locked" in reason or "busy" in reason  # anything else, a full disk say, is the machine's
    if any(word in reason for word in _REFUSED):
        return False
    return cause.connection_invalidated or isinstance(cause, (OperationalError, InterfaceError))


def is_damage(error: BaseException) -> bool:
    """Return whether a request's error means that the database does not hold what was written."""
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)) or type(error) is LookupError:
        return True  # a value, or the name of a state
    frames = [frame.f_code.co_name for frame, _line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, (KeyError, TypeError, ValueError)) and "json_to_distribution" in frames:
        return True  # the range of a parameter
    if type(error) is ValueError:  # a date: what SQLAlchemy cannot turn into one
        *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
        return str(frame.f_globals.get("__name__", "")).startswith("sqlalchemy")
    return isinstance(error, STORAGE_ERRORS) and any(word in reason_of(error).lower() for word in _DAMAGED)


def damaged(reason: str) -> StudyFailedError:
    """Return the error for a database that does not hold what was written."""
    return StudyFailedError(
        f"the study's database is damaged ({reason}); put a copy of it back, or begin again with --fresh, which "
        "archives it"
    )


def reason_of(error: BaseException) -> str:
    """Return the first line of a storage error, without passwords."""
    return hide_passwords(first_line(error.__cause__ or error))


class Patience:
    """How long a database may be away: the longest wait for one request, 0 for none; tests give another ``sleep``."""

    def __init__(self, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        self._seconds = seconds
        self._sleep = sleep
        self._suspended = 0
        self._failed_at = -float("inf")

    @property
    def seconds_of_peace(self) -> float:
        """Seconds since a request failed last; infinite when none has."""
        return time.monotonic() - self._failed_at

    def note_failure(self) -> None:
        """Remember that a request failed just now."""
        self._failed_at = time.monotonic()

    def call(self, request: Callable[[], _Result]) -> _Result:
        """Make a request, which must be harmless to repeat, again and again while it fails in a way that may pass.

        After the longest wait, or where a failure does not pass, one of `STORAGE_ERRORS` is raised.
        """
        began, wait, noted = time.monotonic(), _FIRST_WAIT_SECONDS, False
        while True:
            try:
                result = request()
                break
            except STORAGE_ERRORS as error:
                if not may_pass(error):
                    raise
                self.note_failure()
                left = self._seconds - (time.monotonic() - began)
                if self._suspended or left <= 0.0:
                    raise
                if not noted:
                    noted = True
                    why = f"the study's database does not answer ({reason_of(error)})"
                    _log.warning("%s; trying again for up to %.0f s", why, self._seconds)
                self._sleep(min(wait * random.uniform(0.5, 1.0), left))
                wait = min(2.0 * wait, _LONGEST_WAIT_SECONDS)
        if noted:
            _log.warning("the study's database answers again after %.0f s", time.monotonic() - began)
        return result

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Do not wait in the block: this process is about to end."""
        self._suspended += 1
        try:
            yield
        finally:
            self._suspended -= 1
