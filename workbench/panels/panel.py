"""The base of every panel: a root box with a header and any error, controls, plots beside them, a log at the foot.

A panel owns what it makes. ``close`` ends its work, leaves no thread, and closes its widgets with all their parts;
containers alone would leave their children alive. A `WorkPanel` does one piece of work at a time in a thread.

    idle ──> running <──> paused; from both ──> stopping ──> stopped; from all three ──> done or failed

From stopped, done and failed a panel can run again; one that opens something finished is done from the beginning.
Whatever moves it (a click, the end of the work) may come from any thread.
"""

from __future__ import annotations

import contextlib
import html
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, Self

import ipywidgets as widgets

from workbench.core.error_place import origin_of, what_and_where
from workbench.figures.theme import Theme as Theme
from workbench.figures.theme import inks
from workbench.panels import kit, notebook_cells
from workbench.panels.kit import close_recursively, row, text_of
from workbench.panels.shared_config import SharedConfig
from workbench.panels.style import NAMING, STYLE, error_html, faint, note_html, words
from workbench.panels.worker import Outcome, Reader, RunControl, Worker

_LINES_KEPT: Final = 40


class PanelState(StrEnum):
    """What a panel is doing."""

    IDLE = "idle"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"

    @property
    def busy(self) -> bool:
        """Whether work is under way."""
        return self in (PanelState.RUNNING, PanelState.PAUSED, PanelState.STOPPING)


_OVER: Final = (PanelState.STOPPED, PanelState.DONE, PanelState.FAILED)
MOVES: Final[Mapping[PanelState, set[PanelState]]] = {
    # What is opened may be over; failed: it could not even begin.
    PanelState.IDLE: {PanelState.RUNNING, PanelState.DONE, PanelState.FAILED},
    PanelState.RUNNING: {PanelState.PAUSED, PanelState.STOPPING, PanelState.DONE, PanelState.FAILED},
    # The last step may end, or fail, while the request to pause is on its way.
    PanelState.PAUSED: {PanelState.RUNNING, PanelState.STOPPING, PanelState.DONE, PanelState.FAILED},
    # What was asked to stop may have come to its own end meanwhile.
    PanelState.STOPPING: {PanelState.STOPPED, PanelState.DONE, PanelState.FAILED},
    **{over: {PanelState.RUNNING, PanelState.IDLE, PanelState.FAILED} for over in _OVER},
}
"""State -> states that may follow."""

_SYMBOLS: Final = {
    PanelState.IDLE: "○",
    PanelState.RUNNING: "▶",
    PanelState.PAUSED: "❚❚",
    PanelState.STOPPING: "◼",
    PanelState.STOPPED: "◻",
    PanelState.DONE: "✓",
    PanelState.FAILED: "✕",
}


class StateMachine:
    """The state of a panel; ``on_change`` is called with each new state, on the thread that made the move."""

    def __init__(self, on_change: Callable[[PanelState], None] = lambda _: None) -> None:
        self._state = PanelState.IDLE
        self._changed = threading.Condition()
        self._on_change = on_change

    @property
    def state(self) -> PanelState:
        """The state now."""
        return self._state

    def to(self, new: PanelState) -> None:
        """Move, or raise a RuntimeError when the move is not in ``MOVES``."""
        if not self.try_to(new):
            raise RuntimeError(f"a panel that is {self._state} cannot become {new}")

    def try_to(self, new: PanelState) -> bool:
        """Move if the move is allowed, and return whether it was: of two simultaneous clicks, one wins."""
        with self._changed:
            if new not in MOVES[self._state]:
                return False
            self._state = new
            self._changed.notify_all()
        self._on_change(new)
        return True

    def wait_for(self, *states: PanelState, timeout: float | None = None) -> bool:
        """Wait until one of some states is reached, for ``timeout`` seconds at most; return whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state in states, timeout)


class Panel:
    """Base of all panels.

    An unknown ``theme`` is a ValueError; ``shows_state`` False leaves out the state of a panel that does no work. Other
    panels and tests use ``widget`` (the root box, what a cell shows), ``controls`` on the left, ``plots`` on the right,
    ``machine`` and ``error``, the last one or None.
    """

    def __init__(self, title: str, *, theme: Theme = "auto", shows_state: bool = True) -> None:
        inks(theme)  # there is no panel for a theme that there is not
        self.title, self.theme = title, theme
        self.error: BaseException | None = None
        self.machine = StateMachine(self._state_changed)
        self.closed = False
        self._lines: list[str] = []
        self._log_lock = threading.Lock()
        self._showing: set[int] = set()  # threads that are setting widgets
        self._cleanups: list[Callable[[], Any]] = []
        self.lasting: tuple[widgets.HTML, ...] = ()
        self._badge = text_of(badge(PanelState.IDLE))
        self._header_note = text_of("", grow=True)
        self._error = text_of("")
        self._log = text_of("")
        heading = text_of(f'{STYLE}{NAMING}<span class="wb-title">{words(title)}</span>')
        self.header = row(heading, *([self._badge] if shows_state else []), self._header_note)
        self.controls = kit.Stack(css="wb-column wb-controls")
        self.plots = kit.Stack(css="wb-plots")
        self.top = kit.Stack((self.header, self._error), css="wb-header")  # what went wrong is read first
        self.footer = kit.Stack((self._log,), css="wb-column wb-footer")
        body = kit.Row((self.controls, self.plots), css="wb-body")
        own = "" if theme == "auto" else f" wb-{theme}"
        self.widget = kit.Stack((self.top, body, self.footer), css=f"wb-panel{own}")
        notebook_cells.register(self)

    @property
    def state(self) -> PanelState:
        """What the panel is doing."""
        return self.machine.state

    def log(self, sentence: str) -> None:
        """Add a sentence at the foot; earlier ones are folded beneath."""
        with self._log_lock:
            self._lines = [*self._lines[-_LINES_KEPT:], f"{time.strftime('%H:%M:%S')}  {sentence}"]
            earlier = "".join(f"<div>{words(line)}</div>" for line in reversed(self._lines[:-1]))
            folded = f'<details class="wb-faint"><summary>Earlier</summary>{earlier}</details>' if earlier else ""
            self._log.value = note_html(self._lines[-1]) + folded

    def report_error(self, error: BaseException) -> None:
        """Show an error, kept as ``error``: a sentence and, if that is not ours, the traceback folded beneath."""
        self.error = error
        has_trace = error.__cause__ is not None or not _is_sentence(error)
        trace = (origin_of(error).text or "".join(traceback.format_exception(error))) if has_trace else ""
        self._error.value = error_html(error_sentence(error), trace)

    def clear_error(self) -> None:
        """Remove the error that is shown."""
        self.error = None
        self._error.refuse("")

    def guarded(self, handler: Callable[..., Any]) -> Callable[..., None]:
        """Return a handler of clicks and changes whose errors are shown, not lost in the kernel's log."""

        def run(*arguments: Any) -> None:
            if self.closed:
                return
            try:
                handler(*arguments)
            # The kernel's interrupt, too: on its way up nothing else would tell the person who asked for it.
            except (Exception, KeyboardInterrupt) as error:
                self.report_error(error)

        return run

    def button(self, text: str, tooltip: str, act: Callable[[], Any], *, style: str = "") -> widgets.Button:
        """Return a button whose click calls a function, guarded.

        Args:
            text: Its label.
            tooltip: What a click does, in a few words.
            act: Called without arguments.
            style: ``"success"``, ``"primary"`` or ``"warning"``; empty is plain.
        """
        made = kit.Button(description=text, tooltip=tooltip, button_style=style, css="wb-auto")
        made.on_click(self.guarded(lambda _: act()))
        return made

    def on_change(self, entry: widgets.Widget, handler: Callable[[Any], Any], trait: str = "value") -> None:
        """Have a function called, guarded, with a widget's new value when the user changes it.

        Args:
            entry: The widget.
            handler: Called with the new value; not for what the panel itself sets in ``showing``.
            trait: Trait to look at.
        """
        guarded = self.guarded(handler)

        def changed(change: Any) -> None:
            if threading.get_ident() not in self._showing:
                guarded(change["new"])

        entry.observe(changed, trait)

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """Set widgets on this thread without calling the handlers of ``on_change``."""
        here = threading.get_ident()
        is_outermost = here not in self._showing
        self._showing.add(here)
        try:
            yield
        finally:
            if is_outermost:
                self._showing.discard(here)

    def cleaned_up_by(self, cleanup: Callable[[], Any]) -> None:
        """Have a function called when the panel closes, the last one first; at once if it has closed."""
        if self.closed:
            cleanup()
        else:
            self._cleanups.append(cleanup)

    def new_reader(self, on_error: Callable[[BaseException], None] | None = None) -> Reader:
        """Return a `Reader` that is closed with the panel; errors are shown unless a function takes them."""
        reader = Reader(self.title, on_error or self.report_error, self.log)
        self.cleaned_up_by(reader.close)
        return reader

    def state_changed(self, state: PanelState) -> None:
        """Enable and disable widgets to suit the state; panels override it."""

    def static_html(self) -> str:
        """Return what a saved notebook shows without widgets; panels extend it, or fill ``lasting``."""
        head = f"<b>{html.escape(self.title)}</b> ({self.state}); run the cell to use this panel."
        return head + "".join(part.value for part in self.lasting)

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
        own = {"text/plain": repr(self), "text/html": self.static_html()}
        if self.closed:
            return own
        shown: Any = self.widget._repr_mimebundle_(**options)
        # With metadata it is a pair; hosts without widgets fall back to the HTML.
        data = shown[0] if isinstance(shown, tuple) else shown
        return {**(data or {}), **own}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'closed' if self.closed else self.state}>"


class WorkPanel(Panel):
    """A panel that does one piece of work at a time in a thread: it starts, pauses, stops and fails here.

    A panel derived from it calls ``begin`` once its machine is running, shows the result in ``finished``, and names in
    ``locked`` the widgets and controls that are disabled meanwhile. The work sends functions that show something; after
    each batch of them, ``hz`` times a second at most, ``refresh`` is called. ``shared`` is its configuration.
    """

    failure_note = "failed; see the error above"  # the error itself stands beneath the title

    def __init__(
        self,
        title: str,
        shared: SharedConfig | None = None,
        *,
        theme: Theme = "auto",
        stop_help: str = "",
        hz: float = 5.0,
    ) -> None:
        super().__init__(title, theme=theme)
        self.shared = shared if shared is not None else SharedConfig()
        self.worker = Worker(self._take, self._end, hz=hz, name=title, on_warning=self.log)
        self.cleaned_up_by(self.worker.close)
        self.stop_button = self.button("Stop", stop_help, self.stop)
        self.bar = kit.FloatProgress(min=0.0, max=1.0, css="wb-bar")
        self.locked: list[Any] = []
        self.progress_text = text_of(faint("not started"))
        for part in (self.stop_button, self.bar, self.progress_text):
            self.cleaned_up_by(part.close)  # it may stand nowhere

    def tell(self, sentence: str) -> None:
        """Show how the work is going, in place of the sentence before."""
        self.progress_text.say(sentence)

    def begin(self, work: Callable[[RunControl], Any], *, saying: str = "loading ...") -> None:
        """Begin the work of a panel whose machine has just become running."""
        self.clear_error()
        self.tell(saying)
        self.worker.start(work)

    def guarded(self, handler: Callable[..., Any]) -> Callable[..., None]:
        """Return a handler that marks the panel as failed if an error occurs before its work has started."""

        def run(*arguments: Any) -> None:
            was_busy = self.state.busy
            try:
                handler(*arguments)
            except BaseException:
                if not was_busy and self.state is PanelState.RUNNING and self.worker.is_idle:
                    self.machine.to(PanelState.FAILED)
                    self.tell(self.failure_note)
                raise

        return super().guarded(run)

    def stop(self) -> None:
        """End the work after the current step."""
        if self.machine.try_to(PanelState.STOPPING):
            self.tell("stopping ...")
            self.worker.stop()

    def pause_or_resume(self) -> None:
        """Hold the work after the current step, or let it go on."""
        if self.state is PanelState.RUNNING and self.machine.try_to(PanelState.PAUSED):
            self.worker.pause()
        elif self.state is PanelState.PAUSED and self.machine.try_to(PanelState.RUNNING):
            self.worker.resume()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is under way, for ``timeout`` seconds at most; return whether the work has ended."""
        ended = self.machine.wait_for(*(state for state in PanelState if not state.busy), timeout=timeout)
        return ended and self.worker.join(timeout)

    def state_changed(self, state: PanelState) -> None:
        """Lock what cannot be changed while work is under way."""
        for entry in self.locked:
            entry.lock(state.busy)
        self.stop_button.disabled = state not in (PanelState.RUNNING, PanelState.PAUSED)

    def finished(self, outcome: Outcome) -> PanelState:
        """Show the result of work that raised nothing, and return whether the panel is done, was stopped or failed."""
        return PanelState.DONE

    def refresh(self) -> None:
        """Draw what has changed since the last time; panels override it."""

    def _take(self, messages: list[Callable[[], Any]]) -> None:
        for message in messages:
            message()
        self.refresh()

    def _end(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            self.report_error(outcome.error)
            self.tell(self.failure_note)
            state = PanelState.FAILED
        else:
            state = self.finished(outcome)
        if outcome.display_error is not None:
            self.log(f"the display failed once: {outcome.display_error!r}")
        self.machine.to(state)


def error_sentence(error: BaseException) -> str:
    """Return an error as one sentence for a person: our own say what to do, others get their kind and place."""
    text = " ".join(str(error).split())
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; start again when you like"
    if _is_sentence(error):
        return text
    # A wrong argument, found by our own check: the sentence is enough.
    if isinstance(error, (ValueError, TypeError)) and origin_of(error).is_ours:
        return text
    return what_and_where(error)


def _is_sentence(error: BaseException) -> bool:
    """Return whether an error is one of ours, whose text needs no traceback."""
    return type(error).__module__.startswith("workbench.") and isinstance(error, Exception)


def badge(state: PanelState) -> str:
    """Write a state as a symbol and a word."""
    return f'<span class="wb-badge wb-{state}" role="status">{_SYMBOLS[state]} {state}</span>'
