"""One place for how figures look: colours, template, mode bar, empty state.

Colours are Okabe and Ito's palette, which stays apart for the common kinds of colour blindness; black and yellow
are left out because one of them disappears on a dark page and the other on a white one. A colour never carries a
meaning alone: marks differ in shape and are named in the legend.

Reference:
    Okabe and Ito, "Color Universal Design", 2008, https://jfly.uni-koeln.de/color/.
"""

from __future__ import annotations

import functools
from typing import Any, Final, Literal, TypeAlias

import plotly.graph_objects as go

from workbench.figures.labels import unmarked, wrapped

__all__ = [
    "BLUE",
    "COLORWAY",
    "DENSITY_SCALE",
    "FIGURE_CONFIG",
    "GREEN",
    "GREY",
    "LABEL_BACKGROUND",
    "ORANGE",
    "PURPLE",
    "SKY",
    "VERMILLION",
    "Theme",
    "bare_figure",
    "empty_figure",
    "empty_layout",
    "figure_text",
    "new_figure",
    "set_title",
    "template_json",
    "title_layout",
    "translucent",
]

Theme: TypeAlias = Literal["auto", "light", "dark"]

BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
GREEN: Final = "#009E73"
VERMILLION: Final = "#D55E00"
SKY: Final = "#56B4E9"
PURPLE: Final = "#CC79A7"
GREY: Final = "#8A8F98"
COLORWAY: Final = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, GREY)

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

# Beside a panel's controls a figure is 376 pixels wide or more; plotly breaks no lines by itself.
_TITLE_WIDTH, _SUBTITLE_WIDTH, _REASON_WIDTH = 43, 57, 48  # characters of a wide font
_TOP, _TITLE_PAD = 84, 12  # pixels

FONT_FAMILY: Final = 'system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif'

_INK: Final[dict[Theme, str]] = {"auto": "#7A818C", "light": "#24292F", "dark": "#D8DDE4"}
_MUTED: Final[dict[Theme, str]] = {"auto": "#7A818C", "light": "#57606A", "dark": "#9AA4B0"}
_GRID: Final[dict[Theme, str]] = {
    "auto": "rgba(128,136,148,0.22)",
    "light": "rgba(36,41,47,0.12)",
    "dark": "rgba(216,221,228,0.14)",
}
# Behind labels that stand on lines; neither page is known for "auto", so it only dims what is behind.
LABEL_BACKGROUND: Final[dict[Theme, str]] = {
    "auto": "rgba(128,136,148,0.22)",
    "light": "rgba(255,255,255,0.8)",
    "dark": "rgba(17,20,24,0.75)",
}

_HOVER: Final[dict[Theme, tuple[str, str]]] = {
    "auto": ("#24292F", "#F6F8FA"),
    "light": ("#FFFFFF", "#24292F"),
    "dark": ("#1C2128", "#E6EDF3"),
}


def translucent(colour: str, opacity: float) -> str:
    """Return a ``#RRGGBB`` colour as ``rgba(...)`` with an opacity in [0, 1]."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


@functools.cache
def template_json(theme: Theme = "auto") -> dict[str, Any]:
    """Return the template of every figure as plain properties; plotly takes milliseconds to make one of its own.

    Args:
        theme: ``"light"`` and ``"dark"`` choose the ink for such a page; ``"auto"`` takes a grey that is legible on
            both, since neither a kernel nor a saved notebook knows the colour of the page.

    Returns:
        The properties (transparent background, neutral grid), the same object each time: to be read, not to be
        changed.

    Raises:
        ValueError: When the theme is not one of the three.
    """
    if theme not in _INK:
        raise ValueError(f'`theme` must be "auto", "light" or "dark", got {theme!r}')
    ink, muted, grid = _INK[theme], _MUTED[theme], _GRID[theme]
    hover_background, hover_ink = _HOVER[theme]
    axis = {
        "gridcolor": grid,
        "zeroline": False,
        "linecolor": grid,
        "showline": True,
        "ticks": "outside",
        "tickcolor": grid,
        "ticklen": 4,
        "automargin": True,
        "title": {"standoff": 10, "font": {"size": 13, "color": muted}},
        "tickfont": {"size": 12, "color": muted},
    }
    template = go.layout.Template(
        layout={
            "colorway": COLORWAY,
            "font": {"family": FONT_FAMILY, "size": 13, "color": ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "title": {
                "x": 0.0,
                "xanchor": "left",
                "xref": "container",
                "y": 1.0,
                "yanchor": "top",
                "yref": "container",
                "pad": {"t": _TITLE_PAD, "l": 0},
                "font": {"size": 15, "color": ink, "weight": 600},
                "subtitle": {"font": {"size": 13, "color": muted}},
            },
            "margin": {"l": 64, "r": 24, "t": _TOP, "b": 52},
            "legend": {
                "orientation": "h",
                "x": 0.0,
                "xanchor": "left",
                "y": 0.0,
                "yanchor": "bottom",
                "yref": "container",
                "font": {"size": 12, "color": ink},
                "bgcolor": "rgba(0,0,0,0)",
            },
            "hoverlabel": {
                "bgcolor": hover_background,
                "bordercolor": grid,
                "align": "left",
                "font": {"color": hover_ink, "size": 12, "family": FONT_FAMILY},
            },
            "hovermode": "closest",
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": muted, "activecolor": ink, "orientation": "h"},
            "xaxis": axis,
            "yaxis": axis,
        }
    )
    properties: dict[str, Any] = template.to_plotly_json()
    return properties


def bare_figure(theme: Theme = "auto") -> go.Figure:
    """Return a figure with the common look and nothing else, for ``make_subplots`` to divide.

    Without a template of its own a figure first gets plotly's default one, which takes longer than everything else.

    Args:
        theme: See ``template_json``.
    """
    return go.Figure(layout={"template": template_json(theme)})


def new_figure(title: str, subtitle: str = "", *, theme: Theme = "auto", height: int = 420) -> go.Figure:
    """Return a figure with the common look, a title and no traces.

    Args:
        title: A question, or its answer in one short line.
        subtitle: One line of figures that support it.
        theme: See ``template_json``.
        height: Height, pixels; the width follows the page.
    """
    # All at once: plotly takes longer to check the same properties one after the other.
    common = {"template": template_json(theme), "height": height}
    return go.Figure(layout=common | title_layout(title, subtitle))


def set_title(figure: go.Figure, title: str, subtitle: str = "") -> None:
    """Give a figure its title, broken into lines that fit beside a panel's controls.

    Further lines take their room from the plot: a page must not jump when a running figure has more to say.

    Args:
        figure: The figure.
        title: A question, or its answer in one short sentence.
        subtitle: One line of figures that support it.
    """
    figure.update_layout(**title_layout(title, subtitle))


def figure_text(figure: go.Figure) -> str:
    """Return a figure's title, subtitle and, when it is empty, its reason as plain text, one per line.

    Args:
        figure: Any figure.
    """
    title = figure.layout.title
    parts = [title.text, title.subtitle.text]
    if not figure.data:
        parts.append(" ".join(str(note.text) for note in figure.layout.annotations))
    return "\n".join(unmarked(part) for part in parts if part) or "an empty figure"


def empty_figure(title: str, reason: str, *, theme: Theme = "auto", height: int = 220) -> go.Figure:
    """Return a figure that says in one sentence why there is nothing to see yet.

    Args:
        title: Title the figure has when it is not empty.
        reason: One sentence: what is missing and how it would come to be there.
        theme: See ``template_json``.
        height: Height, pixels.
    """
    figure = new_figure(title, theme=theme, height=height)
    figure.update_layout(**empty_layout(reason, theme))
    return figure


def empty_layout(reason: str, theme: Theme) -> dict[str, Any]:
    """Return the layout of a figure that has nothing to show: no axes, and a sentence in their place.

    Args:
        reason: The sentence.
        theme: See ``template_json``.
    """
    lines = wrapped(reason, _REASON_WIDTH)
    return {
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
        "annotations": [
            {
                "text": line,
                "showarrow": False,
                "xref": "paper",
                "yref": "paper",
                "x": 0.5,
                "y": 0.5,
                "yshift": 10 * (len(lines) - 1) - 20 * index,
                "font": {"size": 14, "color": _MUTED[theme]},
            }
            for index, line in enumerate(lines)
        ],
    }


def title_layout(title: str, subtitle: str) -> dict[str, Any]:
    """Return the layout that a title needs: its lines, and room for them.

    Args:
        title: A question, or its answer in one short sentence.
        subtitle: One line of figures that support it.
    """
    head, below = wrapped(title, _TITLE_WIDTH), wrapped(subtitle, _SUBTITLE_WIDTH)
    extra = 19 * (len(head) - 1) + 17 * (len(below) - 1)
    # Plotly lets further lines grow upwards, out of the figure.
    pad = {"t": _TITLE_PAD + 10 * (len(head) - 1) + 8 * (len(below) - 1)}
    return {
        "autosize": True,
        "title": {"text": "<br>".join(head), "subtitle": {"text": "<br>".join(below)}, "pad": pad},
        "margin": {"t": _TOP + extra},
    }
