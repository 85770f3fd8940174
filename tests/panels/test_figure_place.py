from __future__ import annotations

from tests.panels.looking import missing
from workbench.figures.drawing import Drawing
from workbench.figures.live import LiveFigure
from workbench.panels.figure_place import FigurePlace
from workbench.panels.panel import Panel


def line(*values: float) -> Drawing:
    drawing = Drawing("How far?", height=300)
    drawing.add("scatter", x=[0, 1], y=list(values), name="line", customdata=[[7], [8]])
    return drawing


def test_a_place_says_what_is_missing_and_has_one_figure_from_the_first_numbers_on() -> None:
    with Panel("Test") as panel:
        place = FigurePlace(panel, "Is <it> so?", "Run it first.")
        panel.plots.children = (place.widget,)
        (notice,) = place.widget.children
        assert "Is &lt;it&gt; so?" in notice.value
        assert "height:430px" in notice.value
        assert (missing(panel, "Run it first."), place.figure) == ([], None)
        place.update(line(1.0, 2.0))
        first = place.figure
        assert isinstance(first, LiveFigure)
        assert place.widget.children == (first.widget,)
        place.update(line(1.0, 3.0))
        assert place.figure is first
        assert list(first.shown.data[0].y) == [1.0, 3.0]
    assert (place.closed, first.closed, notice.comm) == (True, True, None)


def test_a_closed_place_makes_no_figure() -> None:
    with Panel("Test") as panel:
        place = FigurePlace(panel, "Is it so?", "Run it first.")
    place.update(line(1.0, 2.0))
    assert place.figure is None
    place.close()
