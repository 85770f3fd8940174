"""Drawings: what plotly would have made of the same rows, before it has checked anything."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from plotly.subplots import make_subplots

from workbench.figures import empty_figure
from workbench.figures.drawing import Drawing, Stroke
from workbench.figures.theme import template_json


@pytest.mark.parametrize("heights", [(1.0,), (1.0, 1.0), (0.28, 0.3, 0.42), (3.0, 1.0, 1.0, 2.0)])
@pytest.mark.parametrize("spacing", [0.0, 0.06])
def test_rows_stand_where_plotly_puts_them(heights: tuple[float, ...], spacing: float) -> None:
    drawing = Drawing("Why?", height=300, rows=heights, spacing=spacing)
    plotlys = make_subplots(
        rows=len(heights), cols=1, shared_xaxes=True, row_heights=list(heights), vertical_spacing=spacing
    )
    for row in range(1, len(heights) + 1):
        drawing.add("scatter", row=row, x=[1], y=[row])
        plotlys.add_scatter(row=row, col=1, x=[1], y=[row])
    figure = drawing.figure()
    for ours, theirs in zip(figure.data, plotlys.data, strict=True):
        assert (ours.xaxis, ours.yaxis) == (theirs.xaxis, theirs.yaxis)
    for row in range(1, len(heights) + 1):
        number = "" if row == 1 else str(row)
        ours, theirs = figure.layout[f"xaxis{number}"], plotlys.layout[f"xaxis{number}"]
        assert (ours.matches, ours.showticklabels) == (theirs.matches, theirs.showticklabels)
        if len(heights) > 1:
            assert (ours.anchor, ours.domain) == (theirs.anchor, theirs.domain)
            axis = f"yaxis{number}"
            assert figure.layout[axis].anchor == plotlys.layout[axis].anchor
            assert figure.layout[axis].domain == pytest.approx(plotlys.layout[axis].domain)


def test_what_is_set_stands_beside_what_was_set_before() -> None:
    template = deepcopy(template_json("dark"))
    margin: dict[str, Any] = {"b": 96}
    drawing = Drawing("Why?", "so", theme="dark", height=300, rows=(1, 1))
    drawing.set(margin=margin, showlegend=True)
    drawing.set(margin={"l": 3})
    drawing.set_x("Step", tickformat=",d")
    drawing.set_y("Loss (nats)", row=2, rangemode="tozero")
    layout = drawing.figure().layout
    assert (layout.margin.b, layout.margin.l, layout.showlegend) == (96, 3, True)
    assert layout.margin.t is not None  # the title's
    assert (layout.xaxis2.title.text, layout.xaxis2.tickformat, layout.xaxis2.anchor) == ("Step", ",d", "y2")
    assert (layout.yaxis2.title.text, layout.yaxis2.rangemode, layout.yaxis2.anchor) == ("Loss (nats)", "tozero", "x2")
    assert (layout.title.text, layout.title.subtitle.text, layout.height) == ("Why?", "so", 300)
    assert margin == {"b": 96}
    assert template_json("dark") == template == layout.template.to_plotly_json()


def test_properties_that_are_none_are_left_out_and_wrong_ones_are_told() -> None:
    drawing = Drawing("Why?", height=300)
    drawing.add("bar", x=[1], y=[2], text=None)
    assert "text" not in drawing.traces[0]
    assert drawing.figure().data[0].type == "bar"
    drawing.add("scatter", x=[1], y=[2], colour="red")
    with pytest.raises(ValueError, match="colour"):
        drawing.figure()


def test_an_empty_drawing_is_the_empty_figure() -> None:
    reason = "No step has been recorded yet; train a task, and it will be here."
    drawing = Drawing.empty("Why?", reason, theme="light", height=200)
    assert drawing.figure() == empty_figure("Why?", reason, theme="light", height=200)


@pytest.mark.parametrize(("n_points", "mode"), [(1, "markers"), (2, "lines")])
def test_a_line_of_one_point_is_a_dot_in_its_colour_as_plotly_draws_no_such_line(n_points: int, mode: str) -> None:
    drawing = Drawing("Why?", height=300)
    drawing.line(([1.0] * n_points, [2.0] * n_points), Stroke("#0072B2"))
    assert drawing.traces[0]["mode"] == mode
    assert drawing.figure().data[0].line.color == "#0072B2"
