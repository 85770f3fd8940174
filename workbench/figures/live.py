"""Figures that live in a notebook: the only place where figures meet widgets.

A panel hands plain figures to ``LiveFigure.update``, which brings one widget up to date in place: plotly's widgets are
never freed by the garbage collector. Only what differs from the figure that was shown before is sent, so a zoom, a
hidden trace or a chosen menu entry of the reader's survives the next update.
"""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import plotly
import plotly.graph_objects as go
import plotly.io as pio
from plotly.serializers import custom_serializers

from workbench.figures.drawing import Drawing, figure_text
from workbench.figures.figure_widget import FigureWidget
from workbench.figures.theme import FIGURE_CONFIG, Theme, template_json

Leaves: TypeAlias = dict[str, Any]
Pick: TypeAlias = Callable[[Any], object]

_WHOLE: Final = frozenset({"template", "annotations", "shapes", "updatemenus", "sliders", "images", "colorscale"})
_PLOTLY_MIME: Final = "application/vnd.plotly.v1+json"
_LOADER: Final = Path(__file__).with_name("live_figure.js").read_text(encoding="utf-8")


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
        self._theme: Theme = theme
        self._on_pick = on_pick
        self._lock = threading.RLock()
        self.closed = False
        first = figure if figure is not None else Drawing.empty("", "Nothing to show yet.", theme=theme)
        if isinstance(first, Drawing):
            first = first.figure()
        template = template_json(theme)
        self.widget = _Widget(first.data, first.layout)  # plotly copies what it takes
        if self.widget.layout.template.to_plotly_json() != template:
            self.widget.layout.template = template
        traces, properties = _properties(first)
        self._traces = [_leaves(trace) for trace in traces]
        self._keys = _keys(self._traces)
        self._layout = self._layout_leaves(properties)
        self._listen()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.widget.data)} traces, theme {self._theme}"
        return f"<LiveFigure {figure_text(self.widget).splitlines()[0]!r}: {state}>"

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        return self.widget._repr_mimebundle_(**options)

    def update(self, figure: go.Figure | Drawing, *, reset_axes: bool = False) -> None:
        """Show a newly computed figure, or the drawing of one, which is made in a twentieth of the time.

        Args:
            figure: It is only read, and shown in the ink of this widget; labels with one of their own keep it.
            reset_axes: Whether it answers another question, so that its axes are its own, whatever the reader zoomed.
        """
        with self._lock:
            if not self.closed:
                self._show(figure, reset_axes)

    def close(self) -> None:
        """Close the widget and let go of its data; may be called again."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._on_pick = None
            self.widget.close()
            # Only now: the page must not hear of it, as a view that is gone already would complain about lost traces.
            self.widget.data = ()
            self._keys, self._traces = [], []

    # -- one figure becomes the next ----------------------------------------------------------------------------------

    def _show(self, figure: go.Figure | Drawing, reset_axes: bool) -> None:
        traces, properties = _properties(figure)
        new = [_leaves(trace) for trace in traces]
        keys = _keys(new)
        if keys != self._keys:
            self._rearrange(traces, keys, new)
        layout, shown = self._layout_leaves(properties), self.widget.layout
        if reset_axes:
            self._forget_zoom(layout)
        if layout.get("height") != self._layout.get("height"):
            # With a height that changes plotly's page gives up following the width, unless the same message asks for
            # it; and plotly sends only what it believes to be new.
            shown.autosize = None
            self._layout.pop("autosize", None)
            layout["autosize"] = True
        old_axes, axes = _numbered_axes(self._layout), _numbered_axes(layout)
        for axis in sorted(axes - old_axes):  # plotly knows xaxis2 only once it has been there as a whole
            shown[axis] = {}
        with self.widget.batch_update():
            for trace, old, now in zip(self.widget.data, self._traces, new, strict=True):
                for path, value in _changes(old, now):
                    trace[path] = value
            for path, value in _changes(self._layout, layout):
                gone = path.partition(".")[0] in old_axes - axes
                if not gone and not (path in self._layout and self._is_zoomed(path)):
                    shown[path] = value
        for axis in sorted(old_axes - axes):
            shown[axis] = None
        self._traces, self._layout = new, layout

    def _forget_zoom(self, layout: Leaves) -> None:
        """Give axes that the reader zoomed the range of a new layout."""
        shown = self.widget.layout
        zoomed = [
            axis
            for axis in shown
            if axis[1:5] == "axis"
            and (self._is_zoomed(f"{axis}.range") or shown[axis].autorange != self._layout.get(f"{axis}.autorange"))
        ]
        if not zoomed:
            return
        # First nothing, then the new: a page keeps to its reader's range until it gets another, and plotly sends it
        # only what is new here.
        with self.widget.batch_update():
            for axis in zoomed:
                shown[axis].range = shown[axis].autorange = None
        with self.widget.batch_update():
            for axis in zoomed:
                chosen = layout.get(f"{axis}.range")
                shown[axis].range = chosen
                shown[axis].autorange = layout.get(f"{axis}.autorange", True if chosen is None else None)
        for path in (f"{axis}.{name}" for axis in zoomed for name in ("range", "autorange")):
            self._layout.pop(path, None)
            if path in layout:
                self._layout[path] = layout[path]

    def _is_zoomed(self, path: str) -> bool:
        """Whether this is the range of an axis, and the reader's own: not the one that was last sent."""
        if not path.endswith(".range"):
            return False
        shown, sent = self.widget.layout[path], self._layout.get(path)
        return shown is not None and (sent is None or not _same(list(shown), list(sent)))

    def _rearrange(self, traces: Sequence[Mapping[str, Any]], keys: Sequence[str], new: Sequence[Leaves]) -> None:
        """Drop traces that are gone, add those that are new, and bring all into the new order."""
        held = zip(self._keys, self.widget.data, self._traces, strict=True)
        kept = {key: (trace, shown) for key, trace, shown in held}
        self.widget.data = tuple(kept[key][0] for key in keys if key in kept)
        added = [index for index, key in enumerate(keys) if key not in kept]
        if added:
            self.widget.add_traces([traces[index] for index in added])
            fresh = dict(zip(added, self.widget.data[-len(added) :], strict=True))
            order = [fresh[index] if index in fresh else kept[key][0] for index, key in enumerate(keys)]
            if list(self.widget.data) != order:
                self.widget.data = tuple(order)
        self._traces = [new[index] if index in added else kept[key][1] for index, key in enumerate(keys)]
        self._keys = list(keys)
        self._listen()

    def _layout_leaves(self, properties: Mapping[str, Any]) -> Leaves:
        return {**_leaves(properties), "template": template_json(self._theme)}

    def _listen(self) -> None:
        for trace in self.widget.data:
            trace.on_click(self._clicked)  # replaces what was there

    def _clicked(self, trace: Any, points: Any, _state: Any) -> None:
        callback = self._on_pick
        if callback is None or trace.customdata is None:
            return
        for index in points.point_inds:
            if isinstance(index, int) and index < len(trace.customdata):  # cells of a heat map have two indices
                carried = trace.customdata[index]
                first = carried if isinstance(carried, str) or not hasattr(carried, "__getitem__") else carried[0]
                callback(first.item() if isinstance(first, np.generic) else first)


class _Widget(FigureWidget):  # type: ignore[misc]  # plotly ships no types
    """A figure widget that a page opened later finds up to date, and a saved notebook shows without a kernel.

    Plotly has no public way to say how its widget is configured, loaded, and restored on a page: the private names that
    takes (``_config``, ``_esm``, ``_widget_data``, ``_widget_layout``) stand in this class and nowhere else.
    """

    _esm = _LOADER.replace("VERSION", plotly.__version__)
    _is_made = False

    def __init__(self, *arguments: Any) -> None:
        self.on_msg(self._answer)  # first: a page may ask while another thread still makes the figure
        super().__init__(*arguments)
        self._config = deepcopy(FIGURE_CONFIG)  # with lists of its own: plotly changes the dictionary it is given
        self._is_made = True

    def _answer(self, _widget: Any, content: Any, _buffers: Any) -> None:
        """Give a page what ``live_figure.js`` asks for."""
        if content == {"plotly": "module"}:
            self.send({"plotly": "module"}, buffers=[str(FigureWidget._esm).encode()])
        elif content == {"plotly": "state"} and self._is_made:
            self.send_state(["_widget_data", "_widget_layout"])
            self.send({"plotly": "state"})

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """Return the state for a browser; plotly itself would send the one the widget was made with."""
        state: dict[str, Any] = super().get_state(key, drop_defaults)
        if self._is_made and "_widget_data" in state:  # most messages hold neither of the two
            state["_widget_data"] = _to_json([trace.to_plotly_json() for trace in self.data], self)
        if self._is_made and "_widget_layout" in state:
            state["_widget_layout"] = _to_json(self.layout.to_plotly_json(), self)
        return state

    def trait_metadata(self, traitname: str, key: str, default: Any = None) -> Any:
        """Return how a trait is sent: as plotly does, with an empty place for each NaN, which JSON does not know."""
        found = super().trait_metadata(traitname, key, default)
        return _to_json if found is custom_serializers["to_json"] else found

    def _repr_mimebundle_(self, *args: Any, **options: Any) -> dict[str, Any]:
        live: dict[str, Any] = super()._repr_mimebundle_(*args, **options)
        return {**static_mimebundle(self), **live}


def static_mimebundle(figure: go.Figure) -> dict[str, Any]:
    """Return what a saved notebook shows of a figure when no kernel runs: ``text/plain`` and plotly's own type.

    JupyterLab, VS Code and nbviewer draw the latter. GitHub draws only pictures: when
    ``plotly.io.renderers.default`` names ``png`` (``"plotly_mimetype+png"``), ``image/png`` is there, too, which
    needs Kaleido and a Chromium.
    """
    shown = json.loads(figure.to_json())  # the notebook's own encoder knows no arrays
    content = {"data": shown["data"], "layout": shown["layout"], "config": deepcopy(FIGURE_CONFIG)}
    bundle: dict[str, Any] = {"text/plain": figure_text(figure), _PLOTLY_MIME: content}
    if "png" in str(pio.renderers.default).split("+"):
        bundle["image/png"] = base64.b64encode(go.Figure(shown).to_image(format="png", scale=2)).decode("ascii")
    return bundle


def _to_json(value: Any, widget: Any) -> Any:
    return custom_serializers["to_json"](_sendable(value), widget)


def _sendable(value: Any) -> Any:
    """Return a value whose numbers JSON can hold.

    Plotly sends arrays of one dimension as they are in memory, where NaN is a number like any other, and writes those
    of two dimensions out.
    """
    if isinstance(value, dict):
        return {name: _sendable(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sendable(entry) for entry in value]
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim != 1:
        known = np.isfinite(value)
        if known.all():
            return value
        with_holes = value.astype(object)
        with_holes[~known] = None
        return with_holes
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return [_sendable(entry) for entry in value.tolist()]
    if isinstance(value, (float, np.floating)) and not np.isfinite(value):
        return None
    return value


def _properties(figure: go.Figure | Drawing) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    if isinstance(figure, Drawing):
        return figure.traces, figure.layout
    return [trace.to_plotly_json() for trace in figure.data], figure.layout.to_plotly_json()


def _keys(traces: Sequence[Leaves]) -> list[str]:
    """Name each trace by what it is, so that it is found again in the next figure."""
    seen: Counter[str] = Counter()
    keys = []
    for trace in traces:
        key = "|".join(str(trace.get(part)) for part in ("type", "name", "xaxis", "yaxis"))
        seen[key] += 1
        keys.append(f"{key}|{seen[key]}")
    return keys


def _numbered_axes(layout: Leaves) -> set[str]:
    """Return the axes beyond the first of each direction: ``xaxis2``, ``yaxis3``, ..."""
    first = (path.partition(".")[0] for path in layout)
    return {name for name in first if name[1:5] == "axis" and name[5:].isdigit()}


def _leaves(properties: Mapping[str, Any], prefix: str = "") -> Leaves:
    """Return nested properties as ``{"marker.color": ...}``; arrays and lists of objects are leaves."""
    leaves: Leaves = {}
    for name, value in properties.items():
        if isinstance(value, dict) and name not in _WHOLE:
            leaves |= _leaves(value, f"{prefix}{name}.")
        elif name != "uid":
            leaves[prefix + name] = value
    return leaves


def _changes(old: Leaves, new: Leaves) -> list[tuple[str, Any]]:
    """Return what has to be set to make one from the other; None removes."""
    changed = [(path, value) for path, value in new.items() if path not in old or not _same(old[path], value)]
    return changed + [(path, None) for path in old if path not in new]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        first, second = np.asarray(one), np.asarray(other)
        is_number = first.dtype.kind in "fiu" and second.dtype.kind in "fiu"
        return first.shape == second.shape and bool(np.array_equal(first, second, equal_nan=is_number))
    try:
        return bool(one == other)
    except ValueError:  # arrays inside lists
        return False
