"""A figure as plain properties, before plotly has checked them, and what all figures draw with.

Plotly takes tens of milliseconds to check a figure, too long for one that is redrawn several times a second beside a
training. ``LiveFigure`` takes a drawing as it is; everybody else asks for ``Drawing.figure``.
"""

from __future__ import annotations

import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from workbench.figures.labels import compact, power_ticks, sentence, unmarked, wrapped
from workbench.figures.theme import VERMILLION, Theme, inks, template_json

if TYPE_CHECKING:
    from workbench.figures.frames import EventPoints

Properties = dict[str, Any]
Points = tuple[Any, Any]  # positions and heights
P = ParamSpec("P")


class Mark(NamedTuple):
    """How points look; a line of ``edge`` pixels has their colour."""

    symbol: str
    size: float
    colour: Any
    edge: float = 0


class Stroke(NamedTuple):
    """How a line looks: plotly's dashes, and plotly's shape ``"hv"`` for a staircase."""

    colour: str
    width: float = 2
    dash: str | None = None
    shape: str | None = None


OVERFLOW = Mark("x", 9, VERMILLION)
"""How what went wrong in a step is marked, in every figure."""

_MOST_TICKS = 6  # of a logarithmic axis
# Beside a panel's controls a figure is 376 pixels wide or more; plotly breaks no lines by itself.
_TITLE_WIDTH, _SUBTITLE_WIDTH, _REASON_WIDTH, _HOVER_WIDTH = 43, 57, 48, 48  # characters of a wide font
_FEWEST_NUMBERS = 8  # from here on plotly chooses whole numbers by itself


class Drawing:
    """Traces and layout under the names that plotly.js gives them, nested: ``marker={"color": ...}``.

    The title is a question, or its answer in one short line, and the subtitle a line of numbers that support it;
    both are broken into lines that fit beside a panel's controls. Further lines take their room from the plot: a
    page must not jump when a running figure has more to say. ``rows`` are shares of the rows from the top, of any
    sum, and ``spacing`` is the room between two as a share of the whole height. Rows share the x axis of the lowest
    one, where its numbers are written.
    """

    def __init__(
        self,
        title: str,
        subtitle: str = "",
        *,
        theme: Theme = "auto",
        height: int,
        rows: Sequence[float] = (1.0,),
        spacing: float = 0.06,
    ) -> None:
        head, below = wrapped(title, _TITLE_WIDTH), wrapped(subtitle, _SUBTITLE_WIDTH)
        template = template_json(theme)
        pad, margin = template["layout"]["title"]["pad"]["t"], template["layout"]["margin"]["t"]  # for one line each
        self.traces: list[Properties] = []
        self.layout: Properties = {
            "template": template,
            "height": height,
            "autosize": True,
            "title": {
                "text": "<br>".join(head),
                "subtitle": {"text": "<br>".join(below)},
                "pad": {"t": pad + 10 * (len(head) - 1) + 8 * (len(below) - 1)},  # else lines grow out of the top
            },
            "margin": {"t": margin + 19 * (len(head) - 1) + 17 * (len(below) - 1)},
        }
        self._n_rows = len(rows)
        if self._n_rows > 1:
            self._divide(rows, spacing)

    @classmethod
    def empty(cls, title: str, reason: str, *, theme: Theme = "auto", height: int = 220) -> Drawing:
        """Return a drawing without axes that says in one sentence what is missing and how it would come to be there."""
        drawing = cls(title, theme=theme, height=height)
        lines = wrapped(reason, _REASON_WIDTH)
        font = {"size": 14, "color": inks(theme).muted}
        middle = {"showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "font": font}
        notes = [
            {"text": line, **middle, "yshift": 10 * (len(lines) - 1) - 20 * index} for index, line in enumerate(lines)
        ]
        drawing.set(xaxis={"visible": False}, yaxis={"visible": False}, annotations=notes)
        return drawing

    def figure(self) -> go.Figure:
        """Return the figure, checked by plotly, which raises a ValueError for what it does not know; it is a copy."""
        return go.Figure(self.traces, self.layout)

    def add(self, kind: str, hover: str = "", *, row: int = 1, **properties: Any) -> None:
        """Add a trace of one of plotly's kinds, with plotly's own properties, of which None leaves one out.

        ``hover`` is a sentence about a point, plotly's ``hovertemplate``, empty for none; the axes of a row
        have its number. Of a kind of points that there are none of, nothing is added, to the legend neither. Words
        in ``customdata`` are broken into lines: a box wider than the figure would be cut off.
        """
        if not len(properties["x"]):
            return
        if isinstance(properties.get("customdata"), list):
            properties["customdata"] = [list(map(_broken, carried)) for carried in properties["customdata"]]
        box = "" if "<extra>" in hover else "<extra></extra>"  # else plotly writes the trace's name beside
        shown = {"hovertemplate": hover + box} if hover else {"hoverinfo": "skip"}
        number = _numbered(row)
        # Axes are named also where there is one row: a live figure then knows the trace again when there are two.
        trace = {"type": kind, "xaxis": f"x{number}", "yaxis": f"y{number}", **properties, **shown}
        self.traces.append({name: value for name, value in trace.items() if value is not None})

    def line(self, points: Points, stroke: Stroke, hover: str = "", **properties: Any) -> None:
        """Add a line, of one point a dot, since plotly draws none; further properties as in ``add``."""
        look = {name: value for name, value in stroke._asdict().items() if value is not None}
        look["color"] = look.pop("colour")
        mode = "lines" if len(points[0]) > 1 else "markers"
        self.add("scatter", hover, x=points[0], y=points[1], **{"mode": mode, "line": look, **properties})

    def marks(self, points: Points, mark: Mark, hover: str = "", *, text: Any = None, **properties: Any) -> None:
        """Add points with ``text`` beside them; further properties as in ``add``."""
        marker: Properties = {"symbol": mark.symbol, "size": mark.size, "color": mark.colour}
        if mark.edge:
            marker["line"] = {"width": mark.edge, "color": mark.colour}
        mode = "markers" if text is None else "markers+text"
        self.add("scatter", hover, x=points[0], y=points[1], mode=mode, text=text, marker=marker, **properties)

    def bars(self, points: Points, colour: Any, hover: str, *, edge: str | None = None, **properties: Any) -> None:
        """Add level bars, of one colour or one each, with an edge of another; further properties as in ``add``."""
        line = {"width": 0} if edge is None else {"width": 1.4, "color": edge}
        marker = {"color": colour, "line": line}
        self.add("bar", hover, x=points[0], y=points[1], orientation="h", marker=marker, **properties)

    def events(self, events: EventPoints, mark: Mark, **properties: Any) -> None:
        """Add points that say each its message; properties as in ``add``."""
        carried = [[sentence(message)] for message in events.messages]
        self.marks(events[:2], mark, "%{customdata[0]}", customdata=carried, **properties)

    def rule(self, stroke: Stroke, *, x: float | None = None, y: float | None = None, row: int | None = 1) -> None:
        """Add a line behind the points of a row, upright at ``x`` or level at ``y``; with row None through all rows."""
        number = _numbered(row or 1)
        across = {"x0": 0, "x1": 1, "xref": f"x{number} domain"}
        upward = {"y0": 0, "y1": 1, "yref": f"y{number} domain" if row else "paper"}
        if x is not None:
            across = {"x0": x, "x1": x, "xref": f"x{number}"}
        if y is not None:
            upward = {"y0": y, "y1": y, "yref": f"y{number}"}
        look = {"color": stroke.colour, "width": stroke.width, "dash": stroke.dash}
        self.layout.setdefault("shapes", []).append(
            {"type": "line", "layer": "below", "line": look, **across, **upward}
        )

    def note(self, text: str, **properties: Any) -> None:
        """Add a text without an arrow; properties are those of plotly's annotations."""
        self.layout.setdefault("annotations", []).append({"text": text, "showarrow": False, **properties})

    def set(self, **properties: Any) -> None:
        """Set properties of plotly's ``layout``, nested ones beside those that are there."""
        _merge(self.layout, properties)

    def set_x(self, title: str, *, row: int | None = None, **properties: Any) -> None:
        """Describe the x axis of a row, else the one that all rows share: what it counts, with its unit."""
        self.set(**{f"xaxis{_numbered(row or self._n_rows)}": {"title": {"text": title}, **properties}})

    def set_y(self, title: str, *, row: int = 1, **properties: Any) -> None:
        """Describe the y axis of a row: what it measures, with its unit."""
        self.set(**{f"yaxis{_numbered(row)}": {"title": {"text": title}, **properties}})

    def set_powers(self, title: str) -> None:
        """Make the y axis of all that is drawn one of powers of two, drawn as their exponents, with a few ticks."""
        heights = np.concatenate([np.asarray(trace["y"], dtype=np.float64) for trace in self.traces])
        low, high = float(np.nanmin(heights)), float(np.nanmax(heights))
        positions, texts = power_ticks(low, high)
        self.set_y(title, tickvals=positions, ticktext=texts, range=[low - 0.9, high + 0.9])

    def set_log_y(self, title: str, values: Any, *, row: int = 1) -> None:
        """Make the y axis of a row a logarithmic one that ends at 1, 2 or 5 around values, with a few ticks there."""
        good = values[np.isfinite(values) & (values > 0)]
        self.set_y(title, row=row, type="log")
        if not good.size:
            return
        powers = range(math.floor(math.log10(good.min())) - 1, math.ceil(math.log10(good.max())) + 2)
        steps = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
        low, high = max(x for x in steps if x < good.min()), min(x for x in steps if x > good.max())
        ticks = [x for x in steps if low <= x <= high]
        if len(ticks) > _MOST_TICKS:
            decades = [x for x in ticks if math.log10(x).is_integer()]
            ticks = decades[:: -(-len(decades) // _MOST_TICKS)]
        ends = [math.log10(low), math.log10(high)]
        self.set_y(title, row=row, tickvals=ticks, ticktext=list(map(compact, ticks)), range=ends)

    def set_steps(self, *, row: int | None = None, **properties: Any) -> None:
        """Make the x axis, as in `set_x`, one of the steps of what is drawn along it."""
        along = [trace["x"] for trace in self.traces if row is None or trace["xaxis"] == f"x{_numbered(row)}"]
        steps = np.concatenate([np.asarray(x, dtype=np.float64) for x in along]) if along else np.zeros(1)
        self.set_x("Step (batches)", row=row, tickformat=",~f", **whole_ticks(steps), **properties)

    def show_legend(self, room: int = 92) -> None:
        """Show the legend below the plot, where it and the axis get so many pixels."""
        self.set(showlegend=True, margin={"b": room})

    def _divide(self, heights: Sequence[float], spacing: float) -> None:
        lowest = _numbered(len(heights))
        for row, (below, above) in enumerate(shares_of(heights[::-1], spacing)[::-1], 1):
            number = _numbered(row)
            shared = {} if number == lowest else {"matches": f"x{lowest}", "showticklabels": False}
            self.layout[f"xaxis{number}"] = {"anchor": f"y{number}", "domain": [0.0, 1.0], **shared}
            self.layout[f"yaxis{number}"] = {"anchor": f"x{number}", "domain": [below, above]}


def figure_of(draw: Callable[P, Drawing]) -> Callable[P, go.Figure]:
    """Return the public form of a function ``x_drawing``: plotly's figure of the same drawing, ``x_figure``."""

    @functools.wraps(draw)
    def checked(*args: P.args, **options: P.kwargs) -> go.Figure:
        return draw(*args, **options).figure()

    checked.__name__ = checked.__qualname__ = draw.__name__.replace("_drawing", "_figure")
    vars(checked)["__signature__"] = inspect.signature(draw).replace(return_annotation="go.Figure")
    return checked


def empty_figure(title: str, reason: str, *, theme: Theme = "auto", height: int = 220) -> go.Figure:
    """Return a figure that says in one sentence what is missing and how it would come to be there."""
    return Drawing.empty(title, reason, theme=theme, height=height).figure()


def figure_text(figure: go.Figure) -> str:
    """Return a figure's title, subtitle and, when it is empty, its reason as plain text, one per line."""
    title = figure.layout.title
    parts = [title.text, title.subtitle.text]
    if not figure.data:
        parts.append(" ".join(str(note.text) for note in figure.layout.annotations))
    return "\n".join(unmarked(part) for part in parts if part) or "an empty figure"


def interval(middle: Any, low: Any, high: Any, colour: str, *, thickness: float = 1.8) -> Properties:
    """Return error bars to the ends of each point's interval, none to an end that is not known (NaN)."""
    below, above = np.subtract(middle, low), np.subtract(high, middle)
    bars = {"array": np.nan_to_num(above), "arrayminus": np.nan_to_num(below)}
    is_known = bool(np.isfinite([below, above]).any())
    return {"type": "data", "symmetric": False, **bars, "color": colour, "thickness": thickness, "visible": is_known}


def whole_ticks(values: npt.ArrayLike) -> Properties:
    """Return what keeps an axis of whole numbers, NaN aside, from being numbered between them where it is short."""
    return {"dtick": 1} if np.nanmax(values) - np.nanmin(values) < _FEWEST_NUMBERS else {}


def shares_of(sizes: Sequence[float], spacing: float) -> list[tuple[float, float]]:
    """Divide [0, 1] into parts of these relative sizes, with so much room between two; return the ends of each."""
    room = (1.0 - spacing * (len(sizes) - 1)) / sum(sizes)
    ends, begin = [], 0.0
    for size in sizes:
        ends.append((begin, min(1.0, begin + size * room)))
        begin += size * room + spacing
    return ends


def _numbered(row: int) -> str:
    """Return what plotly writes behind the name of a row's axis."""
    return "" if row == 1 else str(row)


def _broken(carried: Any) -> Any:
    """Return a sentence of a hover box in lines, and anything else as it is."""
    if not isinstance(carried, str) or len(unmarked(carried)) <= _HOVER_WIDTH:
        return carried
    lines = (textwrap.wrap(line, _HOVER_WIDTH, break_long_words=False) for line in carried.split("<br>"))
    return "<br>".join(line for broken in lines for line in broken)


def _merge(into: Properties, properties: Mapping[str, Any]) -> None:
    for name, value in properties.items():
        held = into.get(name)
        if isinstance(value, dict) and isinstance(held, dict):
            into[name] = dict(held)  # it may belong to somebody else
            _merge(into[name], value)
        else:
            into[name] = value
