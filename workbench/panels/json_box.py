"""A box for the text of a configuration: coloured and checked while it is typed, and taken over on leaving it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import anywidget
import traitlets

_SCRIPT: Final = Path(__file__).with_name("json_box.js")


class JsonBox(anywidget.AnyWidget):
    """A box of JSON as tall as its place.

    ``draft`` follows what is typed with a delay of a quarter of a second; ``value`` is the text on leaving the box, or
    entered with Ctrl+Enter. Setting it shows another text.
    """

    _esm = _SCRIPT
    value = traitlets.Unicode().tag(sync=True)
    draft = traitlets.Unicode().tag(sync=True)
    disabled = traitlets.Bool(False).tag(sync=True)
    help = traitlets.Unicode().tag(sync=True)
