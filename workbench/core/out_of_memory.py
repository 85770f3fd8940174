"""Did something fail because there was too little memory, on a device or on the host?"""

from __future__ import annotations

_OF_TORCH = "OutOfMemoryError"
"""torch's class, by its name: to import torch takes a second, and a study's state is read without it."""

_SAID = ("out of memory", "cannot allocate memory", "can't allocate memory", "alloc_failed")
"""In a RuntimeError, of backends whose errors have no class of their own and of CUDA's libraries."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error was a lack of memory."""
    if type(error).__name__ == _OF_TORCH or isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _SAID)
