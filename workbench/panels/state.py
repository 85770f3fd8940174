"""The state of a panel, and the moves between states.

    idle ──> running ──> done
               │  ^  └─> failed
               v  │
             paused ──> stopping ──> done | failed

From done and failed a panel runs again. Whatever moves it (a click, the work's end) may come from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class PanelState(StrEnum):
    """What a panel is doing."""

    IDLE = "idle"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"

    @property
    def busy(self) -> bool:
        """Whether work is under way."""
        return self in (PanelState.RUNNING, PanelState.PAUSED, PanelState.STOPPING)


MOVES: Final[Mapping[PanelState, frozenset[PanelState]]] = MappingProxyType(
    {
        PanelState.IDLE: frozenset({PanelState.RUNNING, PanelState.FAILED}),  # failed: it could not even begin
        PanelState.RUNNING: frozenset({PanelState.PAUSED, PanelState.STOPPING, PanelState.DONE, PanelState.FAILED}),
        # The last step may end, or fail, while the request to pause is on its way.
        PanelState.PAUSED: frozenset({PanelState.RUNNING, PanelState.STOPPING, PanelState.DONE, PanelState.FAILED}),
        PanelState.STOPPING: frozenset({PanelState.DONE, PanelState.FAILED}),
        PanelState.DONE: frozenset({PanelState.RUNNING, PanelState.IDLE, PanelState.FAILED}),
        PanelState.FAILED: frozenset({PanelState.RUNNING, PanelState.IDLE, PanelState.FAILED}),
    }
)
"""State -> states that may follow."""


class StateMachine:
    """The state of one panel; ``on_change`` is called with each new state, on the thread that made the move."""

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
        """Move if the move is allowed, and return whether it was: of two clicks at once, one wins."""
        with self._changed:
            if new not in MOVES[self._state]:
                return False
            self._state = new
            self._changed.notify_all()
        self._on_change(new)
        return True

    def wait_for(self, *states: PanelState, timeout: float | None = None) -> bool:
        """Wait until one of some states is reached, for so many seconds at most; return whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state in states, timeout)
