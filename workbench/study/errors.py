"""What can be wrong with a study, as sentences for the person who asked for it."""

from __future__ import annotations

import math


class StudyError(ValueError):
    """The study asks for something that cannot be; the message is one sentence."""


class StudyChangedError(StudyError):
    """The question changed since the stored study began; the message says what changed and asks for ``--fresh``."""


class StudyBusyError(StudyError):
    """Another process is tuning this study right now."""


class StudyFailedError(RuntimeError):
    """The work itself failed: O0 does not train, or one trial after the other fails."""


class StudyStoppedError(RuntimeError):
    """The study was asked to end; everything finished is saved, the running trial will be run again."""


class OutOfTimeError(StudyStoppedError):
    """The time limit ended what the study was doing; everything finished is saved.

    Args:
        message: One sentence.
        needed_seconds: How long the run that was ended would have taken; NaN when that is not known.
    """

    def __init__(self, message: str, needed_seconds: float = math.nan) -> None:
        super().__init__(message)
        self.needed_seconds = needed_seconds
