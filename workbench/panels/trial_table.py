"""The table of trials in the Tune tab: the same as in report and view page, as a widget."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anywidget
import traitlets

from workbench.core.records import StudyResult
from workbench.panels import kit
from workbench.panels.panel import Panel
from workbench.report.trial_data import trial_data

_PAUSE: Final = 5.0  # a running study's table rests this many times as long as its rows took to make
_REPORT: Final = Path(__file__).parents[1] / "report"


class _TableWidget(anywidget.AnyWidget):
    """Shows the data of `trial_data`; ``selected`` is the number of the open trial, or -1."""

    _esm = _REPORT / "trial_table.js"
    _css = _REPORT / "trial_table.css"
    data = traitlets.Dict().tag(sync=True)
    selected = traitlets.Int(-1).tag(sync=True)


class TrialTable:
    """A study's trials to sort, filter and open.

    ``take`` is called with the number of a trial whose button is pressed, ``note`` with number and text of a note to
    keep. ``stage`` is empty until there is a trial, with which the widget is made.
    """

    def __init__(self, panel: Panel, take: Callable[[int], Any], note: Callable[[int, str], Any]) -> None:
        self._panel, self._take, self._note = panel, panel.guarded(take), panel.guarded(note)
        self._lock = threading.RLock()
        self._rests_until = 0.0
        self.stage = kit.Stack(css="wb-stage")
        self.widget: _TableWidget | None = None

    def show(self, study: StudyResult | None) -> None:
        """Show what is known of a study now; while it goes on, less often the more rows there are."""
        with self._lock:
            if study is None or not study.trials:
                self.stage.children = ()
                return
            begun = time.monotonic()
            if self.stage.children and begun < self._rests_until and not study.is_over:
                return
            data = trial_data(study)
            if self.widget is None:
                self.widget = _TableWidget(data=data)
                self.widget.on_msg(self._heard)
                self._panel.cleaned_up_by(self.widget.close)
            elif self.widget.data != data:
                self.widget.data = data
            if not self.stage.children:
                self.stage.children = (self.widget,)
            self._rests_until = time.monotonic() + _PAUSE * (time.monotonic() - begun)

    def open(self, number: int) -> None:
        """Open a trial in the table."""
        if self.widget is not None:
            self.widget.selected = number

    def _heard(self, _: Any, message: dict[str, Any], __: Any) -> None:
        if isinstance(message.get("take"), int):
            self._take(message["take"])
        if isinstance(message.get("note"), int) and isinstance(message.get("text"), str):
            self._note(message["note"], message["text"])
