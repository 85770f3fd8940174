"""Progress bars: done of total, ETA and what matters now, on stderr and only where somebody looks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Bar", "progress_bar"]


class Bar:
    """A tqdm bar that is set to absolute positions.

    Args:
        bar: The tqdm object.
    """

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def update(self, done: float, total: float | None = None, text: str = "", note: str = "") -> None:
        """Move the bar.

        Args:
            done: Units done.
            total: Units in all, when it changed.
            text: What is being done, before the bar.
            note: Current best or latest values, after the bar.
        """
        if total is not None:
            self._bar.total = total
        if text:
            self._bar.set_description_str(text, refresh=False)
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.n = done
        self._bar.refresh()


@contextmanager
def progress_bar(total: float, text: str, *, quiet: bool = False, unit: str = "step") -> Iterator[Bar]:
    """Show a bar while the block runs.

    Args:
        total: Units in all.
        text: What is being done.
        quiet: Show nothing (``--json``).
        unit: Name of a unit.
    """
    from tqdm import tqdm

    bar = tqdm(
        total=total,
        desc=text,
        unit=unit,
        file=sys.stderr,
        disable=quiet,
        dynamic_ncols=True,
        mininterval=0.2,
        bar_format="{desc} |{bar:20}| {n:.0f}/{total:.0f} [{elapsed}<{remaining}] {postfix}",
    )
    try:
        yield Bar(bar)
    finally:
        bar.close()
