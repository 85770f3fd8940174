"""What every panel is: a root box with a header, controls on the left, plots on the right, a log at the foot.

A panel owns what it makes. ``close`` ends its work, leaves no thread, and closes its widgets with all their parts;
containers alone would leave their children alive.
"""

from __future__ import annotations

import contextlib
import html
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, Self

import ipywidgets as widgets

from workbench.panels import cells
from workbench.panels.placed_widgets import Html, Row, Stack
from workbench.panels.state import PanelState, StateMachine
from workbench.panels.style import (
    FITTING,
    STYLE,
    badge,
    error_html,
    note_html,
    words,
)
from workbench.panels.worker import Worker

__all__ = ["Panel", "Theme", "close_recursively", "column", "error_sentence", "row", "text_of"]

Theme = Literal["auto", "light", "dark"]

_LINES_KEPT: Final = 40
_PACKAGE: Final = Path(__file__).parents[1]


class Panel:
    """Base of all panels.

    Args:
        title: A few words.
        theme: ``"auto"`` follows the page; ``"light"`` and ``"dark"`` give the panel a background of its own.
        shows_state: Whether the state stands beside the title; for a panel without work it says nothing.

    Attributes:
        widget: The root box; what a cell shows.
        controls: Box on the left.
        plots: Box on the right.
        machine: State of the panel.
        error: The last error, or None; kept for who wants to look at it.

    Raises:
        ValueError: When the theme is none of the three.
    """

    def __init__(self, title: str, *, theme: Theme = "auto", shows_state: bool = True) -> None:
        if theme not in ("auto", "light", "dark"):
            raise ValueError(f'`theme` must be "auto", "light" or "dark", got {theme!r}')
        self.title, self.theme = title, theme
        self.error: BaseException | None = None
        self.machine = StateMachine(self._state_changed)
        self.closed = False
        self._lines: list[str] = []
        self._log_lock = threading.Lock()
        self._showing: set[int] = set()  # threads that are setting widgets
        self._cleanups: list[Callable[[], Any]] = []
        self._badge = text_of(badge(PanelState.IDLE))
        self._header_note = text_of("", grow=True)
        self._error = text_of("")
        self._log = text_of("")
        heading = text_of(f'{STYLE}{FITTING}<span class="wb-title">{words(title)}</span>')
        self.header = row(heading, *([self._badge] if shows_state else []), self._header_note)
        # Side by side from 674 px on: that is a page of 900 px less JupyterLab's margins and scroll bar, in a tab.
        self.controls = Stack(css="wb-column wb-controls")
        # It may shrink below the width of its figures, or the page would scroll sideways.
        self.plots = Stack(css="wb-plots")
        self.footer = Stack((self._error, self._log), css="wb-column wb-footer")
        body = Row((self.controls, self.plots), css="wb-body")
        own = "" if theme == "auto" else f" wb-{theme}"
        self.widget = Stack((self.header, body, self.footer), css=f"wb-panel{own}")
        cells.register(self)

    @property
    def state(self) -> PanelState:
        """What the panel is doing."""
        return self.machine.state

    def log(self, sentence: str) -> None:
        """Say something at the foot; earlier sentences are folded beneath.

        Args:
            sentence: Plain text.
        """
        with self._log_lock:
            self._lines = [*self._lines[-_LINES_KEPT:], f"{time.strftime('%H:%M:%S')}  {sentence}"]
            earlier = "".join(f"<div>{words(line)}</div>" for line in reversed(self._lines[:-1]))
            folded = f'<details class="wb-faint"><summary>Earlier</summary>{earlier}</details>' if earlier else ""
            self._log.value = note_html(self._lines[-1]) + folded

    def note(self, sentence: str) -> None:
        """Say something beside the title, in place of what stood there.

        Args:
            sentence: Plain text; empty removes it.
        """
        self._header_note.value = note_html(sentence)

    def report_error(self, error: BaseException, trace: str = "") -> None:
        """Show an error: a sentence, the traceback folded beneath. The panel stays usable.

        Args:
            error: What was raised; kept as ``error``.
            trace: Its traceback as text; empty takes the error's own.
        """
        self.error = error
        if not trace and (error.__cause__ is not None or not is_sentence(error)):
            trace = "".join(traceback.format_exception(error))
        self._error.value = error_html(error_sentence(error), trace)

    def clear_error(self) -> None:
        """Remove the error that is shown."""
        self.error = None
        self._error.value = ""

    def guarded(self, handler: Callable[..., Any]) -> Callable[..., None]:
        """Return a handler for clicks and changes whose errors are shown instead of lost in the kernel's log.

        Args:
            handler: Called with what the widget gives.
        """

        def run(*arguments: Any) -> None:
            if self.closed:
                return
            try:
                handler(*arguments)
            # The kernel's interrupt, too: on its way up nobody else would tell the person who asked for it.
            except (Exception, KeyboardInterrupt) as error:
                self.report_error(error)

        return run

    def on_change(self, entry: widgets.Widget, handler: Callable[[Any], Any], trait: str = "value") -> None:
        """Have a function called with a widget's new value when the user changes it.

        Args:
            entry: The widget.
            handler: Called with the new value, guarded; not called for what the panel itself sets in ``showing``.
            trait: Trait to look at.
        """
        guarded = self.guarded(handler)

        def changed(change: Any) -> None:
            if threading.get_ident() not in self._showing:
                guarded(change["new"])

        entry.observe(changed, trait)

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """Set widgets without being told of it, for as long as this context lasts on this thread."""
        here = threading.get_ident()
        if here in self._showing:
            yield
            return
        self._showing.add(here)
        try:
            yield
        finally:
            self._showing.discard(here)

    def cleaned_up_by(self, cleanup: Callable[[], Any]) -> None:
        """Have a function called when the panel closes, last come first served; at once when it has.

        Args:
            cleanup: For example what ``SharedConfig.observe`` returned, or another panel's ``close``.
        """
        if self.closed:
            cleanup()
        else:
            self._cleanups.append(cleanup)

    def new_worker(
        self, on_messages: Callable[[list[Any]], None], on_end: Callable[[Any], None], *, hz: float = 5.0
    ) -> Worker:
        """Return a worker that is closed with the panel.

        Args:
            on_messages: See ``Worker``.
            on_end: See ``Worker``.
            hz: See ``Worker``.
        """
        worker = Worker(on_messages, on_end, hz=hz, name=self.title, on_warning=self.log)
        self.cleaned_up_by(worker.close)
        return worker

    def state_changed(self, state: PanelState) -> None:
        """Enable and disable what the state asks for; for panels to override.

        Args:
            state: The new state.
        """

    def static_html(self) -> str:
        """Return what a saved notebook shows where the widget cannot; for panels to extend."""
        return f"<b>{html.escape(self.title)}</b> ({self.state}); run the cell to use this panel."

    def close(self) -> None:
        """End the panel's work and close its widgets; may be called twice."""
        if self.closed:
            return
        self.closed = True
        for cleanup in reversed(self._cleanups):
            cleanup()
        self._cleanups.clear()
        close_recursively(self.widget)
        close_recursively(self._badge)  # it may stand nowhere

    def _state_changed(self, state: PanelState) -> None:
        if self.closed:
            return
        self._badge.value = badge(state)
        self.state_changed(state)

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        if self.closed:
            return {"text/plain": repr(self), "text/html": self.static_html()}
        shown: Any = self.widget._repr_mimebundle_(**options)
        # With metadata it is a pair; hosts without widgets fall back to the HTML.
        data = shown[0] if isinstance(shown, tuple) else shown
        return {**(data or {}), "text/plain": repr(self), "text/html": self.static_html()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'closed' if self.closed else self.state}>"


def close_recursively(widget: widgets.Widget) -> None:
    """Close a widget, everything inside it, and their layouts and styles.

    Args:
        widget: For example a box.
    """
    children = getattr(widget, "children", ())
    widget.close()  # first, so that the page is not told to rearrange what it is about to lose
    if isinstance(widget, widgets.Box):
        widget.children = ()
    for child in children:
        close_recursively(child)
    for part in ("layout", "style"):
        owned = getattr(widget, part, None)
        if isinstance(owned, widgets.Widget):
            owned.close()


def error_sentence(error: BaseException) -> str:
    """Return an error as one sentence for a person.

    Args:
        error: Ours say what to do themselves; of others the kind is named, and where it happened.
    """
    text = " ".join(str(error).split())
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; start again when you like"
    if is_sentence(error):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    # A wrong argument, found by our own check: the sentence says all.
    if frames and isinstance(error, (ValueError, TypeError)) and _PACKAGE in Path(frames[-1].filename).parents:
        return text
    where = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


def is_sentence(error: BaseException) -> bool:
    """Return whether an error is one of ours, whose text needs no traceback."""
    return type(error).__module__.startswith("workbench.") and isinstance(error, Exception)


def text_of(value: str, *, grow: bool = False) -> widgets.HTML:
    """Return a piece of HTML that takes no more room than it needs.

    Args:
        value: HTML.
        grow: Whether it takes the room that is left in a row.
    """
    return Html(value, css="wb-grow" if grow else "wb-text")


def row(*children: widgets.Widget) -> widgets.HBox:
    """Return widgets side by side, continued on the next line where the page is narrow."""
    return Row(children, css="wb-row")


def column(*children: widgets.Widget) -> widgets.VBox:
    """Return widgets below each other."""
    return Stack(children, css="wb-column")
