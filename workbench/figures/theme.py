"""One place for how figures look: colours, template, mode bar.

Colours are Okabe and Ito's palette, which stays apart for the common kinds of colour blindness; black and yellow
are left out because one of them disappears on a dark page and the other on a white one. A colour never carries a
meaning alone: marks differ in shape and are named in the legend.

Reference:
    Okabe and Ito, "Color Universal Design", 2008, https://jfly.uni-koeln.de/color/.
"""

from __future__ import annotations

import functools
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import plotly.graph_objects as go

Theme: TypeAlias = Literal["auto", "light", "dark"]

BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
GREEN: Final = "#009E73"
VERMILLION: Final = "#D55E00"
SKY: Final = "#56B4E9"
PURPLE: Final = "#CC79A7"
GREY: Final = "#8A8F98"
COLORWAY: Final = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, GREY)
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

# From nothing to much. The ends are translucent or mid-toned on purpose: the same cells are read on a white page
# and on a dark one, so the scale must not run into either background.
DENSITY_SCALE: Final = (
    (0.0, "rgba(86,180,233,0.10)"),
    (0.35, "rgba(86,180,233,0.55)"),
    (0.7, "rgba(0,114,178,0.85)"),
    (1.0, "rgba(110,64,170,1.0)"),
)

FIGURE_CONFIG: Final[dict[str, Any]] = {
    "displaylogo": False,
    "responsive": True,
    # plotly.js offers to upload the chart to a server; results stay where they are.
    "modeBarButtonsToRemove": ["sendChartToCloud", "lasso2d", "select2d", "autoScale2d"],
    "plotlyServerURL": "",
    "toImageButtonOptions": {"format": "svg"},
}

TOP_MARGIN, TITLE_PAD = 84, 12  # pixels, around a title of one line
_FONT_FAMILY = 'system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif'
_CLEAR = "rgba(0,0,0,0)"


class _Inks(NamedTuple):
    ink: str
    muted: str
    grid: str
    label: str  # behind labels that stand on lines; neither page is known for "auto", so there it only dims
    hover_background: str
    hover_ink: str


_INKS: Final[dict[str, _Inks]] = {
    "auto": _Inks("#7A818C", "#7A818C", "rgba(128,136,148,0.22)", "rgba(128,136,148,0.22)", "#24292F", "#F6F8FA"),
    "light": _Inks("#24292F", "#57606A", "rgba(36,41,47,0.12)", "rgba(255,255,255,0.8)", "#FFFFFF", "#24292F"),
    "dark": _Inks("#D8DDE4", "#9AA4B0", "rgba(216,221,228,0.14)", "rgba(17,20,24,0.75)", "#1C2128", "#E6EDF3"),
}


def inks(theme: Theme) -> _Inks:
    """Return the colours of a page: ``"auto"`` takes a grey that is legible on a light and on a dark one.

    Neither a kernel nor a saved notebook knows the colour of the page, so ``"auto"`` is the default everywhere.
    """
    if theme not in _INKS:
        raise ValueError(f'`theme` must be "auto", "light" or "dark", got {theme!r}')
    return _INKS[theme]


def translucent(colour: str, opacity: float) -> str:
    """Return a ``#RRGGBB`` colour as ``rgba(...)`` with an opacity in [0, 1]."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


@functools.cache
def template_json(theme: Theme = "auto") -> dict[str, Any]:
    """Return the template of every figure (transparent background, neutral grid) as plain properties.

    It is the same object each time, to be read and not to be changed: plotly takes milliseconds to make one of its own.
    """
    page = inks(theme)
    axis = {
        "gridcolor": page.grid,
        "zeroline": False,
        "linecolor": page.grid,
        "showline": True,
        "ticks": "outside",
        "tickcolor": page.grid,
        "ticklen": 4,
        "automargin": True,
        "title": {"standoff": 10, "font": {"size": 13, "color": page.muted}},
        "tickfont": {"size": 12, "color": page.muted},
    }
    layout = {
        "colorway": COLORWAY,
        "font": {"family": _FONT_FAMILY, "size": 13, "color": page.ink},
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "title": {
            "x": 0.0,
            "xanchor": "left",
            "xref": "container",
            "y": 1.0,
            "yanchor": "top",
            "yref": "container",
            "pad": {"t": TITLE_PAD, "l": 0},
            "font": {"size": 15, "color": page.ink, "weight": 600},
            "subtitle": {"font": {"size": 13, "color": page.muted}},
        },
        "margin": {"l": 64, "r": 24, "t": TOP_MARGIN, "b": 52},
        "legend": {
            "orientation": "h",
            "x": 0.0,
            "xanchor": "left",
            "y": 0.0,
            "yanchor": "bottom",
            "yref": "container",
            "font": {"size": 12, "color": page.ink},
            "bgcolor": _CLEAR,
        },
        "hoverlabel": {
            "bgcolor": page.hover_background,
            "bordercolor": page.grid,
            "align": "left",
            "font": {"color": page.hover_ink, "size": 12, "family": _FONT_FAMILY},
        },
        "hovermode": "closest",
        "modebar": {"bgcolor": _CLEAR, "color": page.muted, "activecolor": page.ink, "orientation": "h"},
        "xaxis": axis,
        "yaxis": axis,
    }
    properties: dict[str, Any] = go.layout.Template(layout=layout).to_plotly_json()
    return properties
