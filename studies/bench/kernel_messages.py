"""What a kernel does with the messages of widgets, without a kernel: it encodes and signs them.

Outside a notebook widgets build their messages and drop them. In one, the thread that changed a widget also turns the
message into signed JSON before another thread sends it, so a panel timed without that would look cheaper than it is.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any, Final

import ipywidgets as widgets

_KEY: Final = b"the bench signs like a kernel; nobody checks"


class _Encoder:
    """A comm that encodes what it gets and sends it nowhere."""

    def __init__(self, comm_id: str) -> None:
        self.comm_id = comm_id
        self.bytes_encoded = 0

    def on_msg(self, callback: Callable[[Any], None] | None) -> None:
        """Take the function for messages from a page; there is no page."""

    def send(self, data: Any = None, metadata: Any = None, buffers: Any = None) -> None:
        """Encode one message; binary parts travel as they are."""
        content = {"comm_id": self.comm_id, "data": data}
        parts = [json.dumps(part, default=str).encode() for part in ({}, {}, metadata or {}, content)]
        signature = hmac.new(_KEY, digestmod=hashlib.sha256)
        for part in parts:
            signature.update(part)
        self.bytes_encoded += sum(len(part) for part in parts) + sum(len(memoryview(b)) for b in buffers or ())
        signature.hexdigest()

    def close(self, *_: Any, **__: Any) -> None:
        """End; nothing was opened."""


def everything_in(widget: widgets.Widget) -> list[widgets.Widget]:
    """Return a widget and all that stands inside it."""
    return [widget, *(each for child in getattr(widget, "children", ()) for each in everything_in(child))]


def speak_as_in_a_kernel(root: widgets.Widget) -> None:
    """Have every widget inside a panel encode its messages; to be called again for what is made later."""
    for widget in everything_in(root):
        for part in (widget, getattr(widget, "layout", None), getattr(widget, "style", None)):
            if isinstance(part, widgets.Widget) and part.comm is not None and not isinstance(part.comm, _Encoder):
                part.comm = _Encoder(part.comm.comm_id)


def user_sets(widget: widgets.Widget, value: Any, trait: str = "value") -> None:
    """Change a widget as a page does: through its state, so that handlers run and answers are sent."""
    widget.set_state({trait: value})
