"""What can be wrong with a mirror, as sentences for the person who asked for it."""

from __future__ import annotations

__all__ = ["MirrorError", "MirrorFailedError", "MirrorWarning"]


class MirrorError(ValueError):
    """The mirror cannot be opened as it was asked for; the message is one sentence."""


class MirrorFailedError(RuntimeError):
    """A mirror that was opened could not be written."""


class MirrorWarning(UserWarning):
    """A mirror was given up; the run it followed goes on."""
