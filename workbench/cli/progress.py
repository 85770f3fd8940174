"""Progress on stderr: done of total, time left and what matters now.

On a terminal this is a bar that moves. Into a file or a pipe (a batch system's log) it is a line now and then, since a
thousand carriage returns are no log. Of several ranks that run one command, rank 0 shows it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from workbench.core.rank_environment import is_first_rank

__all__ = ["Bar", "clock", "progress_bar"]

_BAR_SECONDS = 0.1
_LINE_SECONDS = 10.0
_FORMAT = "{desc} |{bar:20}| {done}/{total:.0f} [{elapsed}<{left}{postfix}]"


class Bar:
    """Progress that is set to absolute positions.

    Args:
        total: Units in all.
        text: What is being done.
    """

    def __init__(self, total: float, text: str) -> None:
        self._total = total
        self._done = 0.0
        self._text = text
        self._note = ""
        self._eta = math.nan
        self._began = self._shown = time.monotonic()
        self._pending = False
        self._silent = not is_first_rank()
        self._bar = _terminal_bar(total, text) if sys.stderr.isatty() and not self._silent else None

    def update(
        self, done: float, total: float | None = None, text: str = "", note: str = "", eta: float = math.nan
    ) -> None:
        """Move on.

        Args:
            done: Units done.
            total: Units in all, when it changed.
            text: What is being done, before the bar.
            note: Current best or latest values, after the bar.
            eta: Time left, seconds; NaN estimates it from the units done so far.
        """
        new_text = bool(text) and text != self._text
        self._done, self._note, self._eta = done, note, eta
        self._total = self._total if total is None else total
        self._text = text or self._text
        self._pending = True
        every = _LINE_SECONDS if self._bar is None else _BAR_SECONDS
        if new_text or time.monotonic() - self._shown >= every:
            self._show()

    def say(self, sentence: str) -> None:
        """Write a line that stays, above the bar."""
        if self._silent:
            return
        if self._bar is None:
            print(sentence, file=sys.stderr, flush=True)
        else:
            self._bar.write(sentence, file=sys.stderr)

    def close(self, *, keep: bool) -> None:
        """End the display.

        Args:
            keep: Leave the last state on the screen; without, a message that follows stands alone.
        """
        if self._bar is not None:
            if keep:
                self._show()
            self._bar.leave = keep
            self._bar.close()
        elif keep and self._pending:
            self._show()

    def _show(self) -> None:
        self._pending = False
        self._shown = time.monotonic()
        if self._silent:
            return
        if self._bar is None:
            left = self._eta if math.isfinite(self._eta) else self._estimate()
            told = [f"{self._text}: {math.floor(self._done)} of {self._total:.0f}"]
            told += [f"{clock(left)} left"] if math.isfinite(left) and left >= 1 else []
            told += [self._note] if self._note else []
            print(", ".join(told), file=sys.stderr, flush=True)
            return
        self._bar.total, self._bar.n, self._bar.eta = self._total, self._done, self._eta
        self._bar.set_description_str(self._text, refresh=False)
        self._bar.set_postfix_str(self._note, refresh=False)
        self._bar.refresh()

    def _estimate(self) -> float:
        if not 0 < self._done <= self._total:
            return math.nan
        return (time.monotonic() - self._began) * (self._total - self._done) / self._done


@contextmanager
def progress_bar(total: float, text: str) -> Iterator[Bar]:
    """Show progress while the block runs; when it fails, the bar makes room for the message.

    Args:
        total: Units in all.
        text: What is being done.
    """
    bar = Bar(total, text)
    try:
        yield bar
    except BaseException:
        bar.close(keep=False)
        raise
    bar.close(keep=True)


def clock(seconds: float) -> str:
    """Return a duration as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _terminal_bar(total: float, text: str) -> Any:
    from tqdm import tqdm

    class TerminalBar(tqdm):  # type: ignore[misc]  # tqdm ships no types
        """A tqdm bar whose remaining time may come from somebody who knows better."""

        eta = math.nan

        @property
        def format_dict(self) -> dict[str, Any]:
            told: dict[str, Any] = super().format_dict
            n, total, elapsed = told["n"], told["total"], told["elapsed"]
            left = self.eta
            if not math.isfinite(left) and n and total:
                left = elapsed * (total - n) / n
            return told | {"done": math.floor(n), "left": clock(left) if math.isfinite(left) else "?"}

    return TerminalBar(
        total=total, desc=text, file=sys.stderr, dynamic_ncols=True, miniters=math.inf, bar_format=_FORMAT
    )
