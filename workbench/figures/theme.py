"""One place for how figures look: colours, template, mode bar.

Colours are Okabe and Ito's palette, which stays apart for the common kinds of colour blindness; black and yellow
are left out because one of them disappears on a dark page and the other on a white one. A colour never carries a
meaning alone: marks differ in shape and are named in the legend.

Reference:
    Okabe and Ito, "Color Universal Design", 2008, https://jfly.uni-koeln.de/color/.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
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

_TEMPLATE: Final = Path(__file__).with_name("template.json").read_text(encoding="utf-8")


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
    ``template.json`` names the colours of a page as ``inks`` does.
    """
    page = inks(theme)._asdict()

    def coloured(found: dict[str, Any]) -> dict[str, Any]:
        return {name: page.get(value, value) if isinstance(value, str) else value for name, value in found.items()}

    layout = json.loads(_TEMPLATE, object_hook=coloured)
    layout |= {"colorway": COLORWAY, "yaxis": layout["xaxis"]}
    contour = {"colorbar": layout["coloraxis"]["colorbar"]}
    properties: dict[str, Any] = go.layout.Template(layout=layout, data={"contour": [contour]}).to_plotly_json()
    return properties
