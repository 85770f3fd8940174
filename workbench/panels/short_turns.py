"""Short turns of the interpreter while work goes on beside the kernel.

Threads of one interpreter take turns of 5 ms. A click that needs the interpreter twenty times, each time while training
holds it, waits for 100 ms, though it works for 20. With turns of 1 ms it waits for a fifth of that, and training loses
nothing that can be measured.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Final

__all__ = ["short_turns"]

_SECONDS: Final = 0.001

_lock = threading.Lock()
_turns_before: list[float] = []  # one entry for each block that is under way


@contextlib.contextmanager
def short_turns() -> Iterator[None]:
    """Let all threads of the process take turns of 1 ms in the block; several blocks may overlap."""
    with _lock:
        _turns_before.append(_turns_before[0] if _turns_before else sys.getswitchinterval())
        sys.setswitchinterval(min(_turns_before[0], _SECONDS))
    try:
        yield
    finally:
        with _lock:
            before = _turns_before.pop()
            if not _turns_before:
                sys.setswitchinterval(before)
