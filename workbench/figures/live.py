"""Figures that live in a notebook: the only place where figures meet widgets.

A panel hands figures to ``LiveFigure.update``, and ``live_figure.js`` brings the page up to date: what a reader zoomed,
hid or chose from a menu survives the next update.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import anywidget
import plotly
import plotly.graph_objects as go
import plotly.io as pio
import traitlets
from plotly.io.base_renderers import PlotlyRenderer, PngRenderer
from plotly.offline import get_plotlyjs

from workbench.figures.drawing import Drawing, figure_text
from workbench.figures.theme import FIGURE_CONFIG, Theme, template_json

Pick: TypeAlias = Callable[[Any], object]

_SCRIPT: Final = Path(__file__).with_name("live_figure.js").read_text(encoding="utf-8")


class LiveFigure:
    """One widget that shows one kind of figure for as long as a panel lives.

    It can be made and updated without a notebook, and from any thread; an update that changes nothing sends nothing.

    Args:
        figure: What to show first, a figure or a drawing; None shows a sentence.
        theme: Ink for a light or dark page, or a grey for both.
        on_pick: Called with ``customdata[0]`` of a clicked point; it must return at once.

    Attributes:
        widget: The widget, to be put into a panel's box.
        closed: Whether the figure was closed; updates are then ignored.
    """

    def __init__(
        self, figure: go.Figure | Drawing | None = None, *, theme: Theme = "auto", on_pick: Pick | None = None
    ) -> None:
        self._template = template_json(theme)
        self._on_pick = on_pick
        self._lock = threading.RLock()
        self._n_questions = 1
        self.closed = False
        self.widget = _Widget()
        self.widget.on_msg(self._heard)
        self.update(figure if figure is not None else Drawing.empty("", "Nothing to show yet.", theme=theme))

    @property
    def shown(self) -> go.Figure:
        """The figure that was shown last."""
        return self._shown.figure() if isinstance(self._shown, Drawing) else self._shown

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        live: Any = self.widget._repr_mimebundle_(**options)  # with metadata
        return {**live[0], **static_mimebundle(self.shown)}

    def update(self, figure: go.Figure | Drawing, *, reset_axes: bool = False) -> None:
        """Show a newly computed figure, or the drawing of one, which is made in a twentieth of the time.

        It is only read, and shown in the ink of this widget; labels with one of their own keep it. With ``reset_axes``
        it answers another question, and its axes are its own, whatever the reader zoomed.
        """
        with self._lock:
            if self.closed:
                return
            self._shown = figure
            self._n_questions += reset_axes
            if isinstance(figure, Drawing):
                traces, layout = figure.traces, figure.layout
            else:
                plain = figure.to_plotly_json()
                traces, layout = plain["data"], plain["layout"]
            own = {"template": self._template, "uirevision": self._n_questions}
            content = {"data": _named(traces), "layout": {**layout, **own}}
            self.widget.figure = pio.to_json(content, validate=False, remove_uids=False)

    def close(self) -> None:
        """Close the widget; may be called again."""
        with self._lock:
            self.closed = True
            self.widget.close()

    def _heard(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        """Give a page plotly, or take the point that a reader has clicked."""
        if "plotly" in content:
            self.widget.send(content, buffers=[get_plotlyjs().encode()])
        elif self._on_pick is not None:
            self._on_pick(content["pick"])


class _Widget(anywidget.AnyWidget):
    _esm = _SCRIPT.replace("VERSION", plotly.__version__).replace("CONFIG", json.dumps(FIGURE_CONFIG))
    figure = traitlets.Unicode().tag(sync=True)


def static_mimebundle(figure: go.Figure) -> dict[str, Any]:
    """Return what a saved notebook shows of a figure when no kernel runs: ``text/plain`` and plotly's own type.

    JupyterLab, VS Code and nbviewer draw the latter. GitHub draws only pictures: when
    ``plotly.io.renderers.default`` names ``png`` (``"plotly_mimetype+png"``), ``image/png`` is there, too, which
    needs Kaleido and a Chromium.
    """
    bundle: dict[str, Any] = {"text/plain": figure_text(figure)}
    pictures = [PngRenderer(scale=2)] if "png" in str(pio.renderers.default).split("+") else []
    for renderer in (PlotlyRenderer(FIGURE_CONFIG), *pictures):
        bundle |= renderer.to_mimebundle(figure.to_dict())
    return bundle


def _named(traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return traces with plotly's name for what each is, so that a page finds it again in the next figure."""
    seen: Counter[str] = Counter()
    named = []
    for trace in traces:
        kind = "|".join(str(trace.get(part)) for part in ("type", "name", "xaxis", "yaxis"))
        seen[kind] += 1
        # In letters and digits, since plotly looks for parts of the page by it.
        named.append({**trace, "uid": hashlib.blake2b(f"{kind}|{seen[kind]}".encode(), digest_size=8).hexdigest()})
    return named
