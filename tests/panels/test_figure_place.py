from __future__ import annotations

import plotly.graph_objects as go

from tests.panels.looking import text_in
from workbench.figures.live import LiveFigure
from workbench.panels.figure_place import FigurePlace
from workbench.panels.panel import Panel


def line(*values: float) -> go.Figure:
    return go.Figure(go.Scatter(y=list(values), name="line", customdata=[[7], [8]]))


def place_in(panel: Panel) -> FigurePlace:
    place = FigurePlace(panel, "Is <it> so?", "Run it first.")
    panel.plots.children = (place.widget,)
    return place


def test_a_place_says_what_is_missing_until_there_are_numbers() -> None:
    with Panel("Test") as panel:
        place = place_in(panel)
        assert place.figure is None
        assert "Is &lt;it&gt; so?" in place.widget.children[0].value
        assert "Run it first." in text_in(panel)
        assert "height:430px" in place.widget.children[0].value
        (notice,) = place.widget.children
        place.update(line(1.0, 2.0))
        assert isinstance(place.figure, LiveFigure)
        assert place.widget.children == (place.figure.widget,)
        assert notice.comm is None, "the sentence is closed"


def test_one_figure_lives_as_long_as_the_place() -> None:
    with Panel("Test") as panel:
        place = place_in(panel)
        place.update(line(1.0, 2.0))
        first = place.figure
        place.update(line(1.0, 3.0))
        assert place.figure is first
        assert first is not None
        assert list(first.widget.data[0].y) == [1.0, 3.0]
    assert place.closed
    assert first.closed


def test_a_closed_place_makes_no_figure() -> None:
    with Panel("Test") as panel:
        place = place_in(panel)
    place.update(line(1.0, 2.0))
    assert place.figure is None
    place.close()
