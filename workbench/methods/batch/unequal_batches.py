"""Did something fail because batches have different shapes, so that they could not be concatenated?"""

from __future__ import annotations

_SAID = "cannot be concatenated"
"""In every such error of `method.py`, which imports torch, and in what another process says of it."""


def could_not_merge(error: BaseException) -> bool:
    """Return whether an error was a lack of batches that can be concatenated."""
    return isinstance(error, ValueError | RuntimeError) and _SAID in str(error)
