"""Progress on stderr, of rank 0: done of total, time left and what matters now.

On a terminal this is a bar that moves; into a file or a pipe (a batch system's log) it is a line now and then.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from workbench.core.rank_environment import is_first_rank
from workbench.core.text import format_duration, printable

if TYPE_CHECKING:
    from rich.progress import Progress

    from workbench.study import TuneProgress

_BAR_SECONDS = 0.1
_LINE_SECONDS = 10.0


class Bar:
    """Progress set to absolute positions, out of a total number of units."""

    def __init__(self, total: float, text: str) -> None:
        self._done, self._total, self._text, self._note, self._eta = 0.0, total, text, "", math.nan
        self._began = self._shown = time.monotonic()
        self._since: tuple[float, float] | None = None  # time and units of the first update: loading tells no pace
        self._pending = False
        self._silent = not is_first_rank()
        self._terminal = _on_terminal(text) if sys.stderr.isatty() and not self._silent else None

    def update(
        self, done: float, total: float | None = None, text: str = "", note: str = "", eta: float = math.nan
    ) -> None:
        """Move on; the note is shown after the bar, and an ``eta`` of NaN (seconds) is estimated from the units."""
        new_text = bool(text) and text != self._text
        self._done, self._note, self._eta = done, printable(note), eta
        self._total = self._total if total is None else total
        self._text = printable(text) or self._text
        self._pending = True
        self._since = self._since or (time.monotonic(), done)
        every = _LINE_SECONDS if self._terminal is None else _BAR_SECONDS
        if new_text or time.monotonic() - self._shown >= every:
            self._show()

    def say(self, sentence: str) -> None:
        """Write a line that stays, above the bar."""
        sentence = printable(sentence)
        if self._terminal is not None:
            self._terminal.console.print(sentence, markup=False, highlight=False, soft_wrap=True)
        elif not self._silent:
            print(sentence, file=sys.stderr, flush=True)

    def close(self, *, keep: bool) -> None:
        """End the display; without ``keep`` nothing of it is left above the next message."""
        if keep and (self._pending or self._terminal is not None):
            self._show()
        if self._terminal is not None:
            self._terminal.live.transient = not keep
            self._terminal.stop()

    def _time_left(self) -> float:
        began, first = self._since or (self._shown, self._done)
        if not first < self._done <= self._total:
            return math.nan
        return (self._shown - began) * (self._total - self._done) / (self._done - first)

    def _show(self) -> None:
        self._pending, self._shown = False, time.monotonic()
        elapsed, left = self._shown - self._began, self._eta
        if not math.isfinite(left):
            left = self._time_left()
        done, total = math.floor(self._done), f"{self._total:.0f}"
        words = [f"{format_duration(left)} left"] if math.isfinite(left) and left >= 1 else []
        words += filter(None, [self._note])
        if self._terminal is not None:
            state = f"| {done}/{total} [{', '.join([format_duration(elapsed), *words])}]"
            (task,) = self._terminal.task_ids
            self._terminal.update(
                task, description=f"{self._text} |", total=self._total, completed=self._done, state=state, refresh=True
            )
        elif not self._silent:
            print(", ".join([f"{self._text}: {done} of {total}", *words]), file=sys.stderr, flush=True)


@contextmanager
def progress_bar(total: float, text: str) -> Iterator[Bar]:
    """Show progress while the block runs; when it fails, the bar makes room for the message."""
    bar = Bar(total, text)
    try:
        yield bar
    except BaseException:
        bar.close(keep=False)
        raise
    bar.close(keep=True)


def show_study(bar: Bar, progress: TuneProgress) -> None:
    """Show how far a study has got."""
    leads = f"leading {progress.best}" if progress.best else ""
    bar.update(progress.done, progress.total, progress.phase, leads, progress.eta_seconds)


def _on_terminal(text: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    text_column = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
    state_column = TextColumn("{task.fields[state]}", markup=False, table_column=Column(no_wrap=True))
    console = Console(stderr=True, force_terminal=True, highlight=False)
    shown = Progress(
        text_column,
        BarColumn(20),
        state_column,
        console=console,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    shown.add_task(f"{text} |", total=None, state="|")
    shown.start()
    return shown
