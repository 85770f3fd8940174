"""Panels belong to the cell that made them: when it runs again, they are closed.

JupyterLab tells the kernel which cell it executes. Other hosts do not, and a program has no cells; there panels live
until they are closed.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from workbench.core.ipython_shell import ipython_shell

if TYPE_CHECKING:
    from workbench.panels.panel import Panel

_lock = threading.Lock()
_panels: dict[str, tuple[str, weakref.WeakSet[Panel]]] = {}  # cell -> (its execution, what it made)


def current_cell() -> tuple[str, str] | None:
    """Return the identities of the cell being executed and of this execution; None outside a cell."""
    kernel = getattr(ipython_shell(), "kernel", None)
    if kernel is None:
        return None
    parent = kernel.get_parent("shell") or {}
    header = parent.get("header", {})
    cell = parent.get("metadata", {}).get("cellId")
    if header.get("msg_type") != "execute_request" or not cell:
        return None
    return str(cell), str(header.get("msg_id", ""))


def register(panel: Panel) -> None:
    """Note in which cell a panel was made, and close the panels of earlier executions of that cell."""
    place = current_cell()
    if place is None:
        return
    cell, execution = place
    with _lock:
        earlier, made = _panels.get(cell, (execution, weakref.WeakSet()))
        stale = set(made) if earlier != execution else set()
        _panels[cell] = execution, weakref.WeakSet({panel, *made} - stale)
    for old in stale:
        old.close()
