"""Drawings: what plotly would have made of the same rows, before it has checked anything."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from plotly.subplots import make_subplots

from workbench.figures import empty_figure
from workbench.figures.drawing import Drawing, Stroke
from workbench.figures.theme import template_json

BLUE_LINE = Stroke("#0072B2")


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
    for ours, theirs in zip(figure.select_xaxes(), plotlys.select_xaxes(), strict=True):
        assert (ours.matches, ours.showticklabels) == (theirs.matches, theirs.showticklabels)
        assert len(heights) == 1 or (ours.anchor, ours.domain) == (theirs.anchor, theirs.domain)
    for ours, theirs in zip(figure.select_yaxes(), plotlys.select_yaxes(), strict=True):
        assert len(heights) == 1 or (ours.anchor, ours.domain) == (theirs.anchor, pytest.approx(theirs.domain))


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
    drawing.line(([1.0] * n_points, [2.0] * n_points), BLUE_LINE)
    assert drawing.traces[0]["mode"] == mode
    assert drawing.figure().data[0].line.color == "#0072B2"


def test_words_of_a_hover_box_stand_in_lines_that_fit_into_a_narrow_figure() -> None:
    summary = "length 0.226, linear + batch x 2 + label smoothing 0.2 + SGD (lr 0.0536, momentum 0.9)"
    drawing = Drawing("Why?", height=300)
    said = [[7, f"Trial 7 ({summary}) is faster.<br>Drop 0.1 points."], [8, "Trial 8 is not."]]
    drawing.add("scatter", "%{customdata[1]}", x=[1, 2], y=[1, 2], customdata=said)
    (number, text), other = drawing.traces[0]["customdata"]
    lines = text.split("<br>")
    assert (number, other, lines[-1]) == (7, [8, "Trial 8 is not."], "Drop 0.1 points.")
    assert " ".join(lines[:-1]) == f"Trial 7 ({summary}) is faster."
    assert max(map(len, lines)) <= 48


@pytest.mark.parametrize(("last", "ticks"), [(3, 1), (7, 1), (8, None), (300, None)])
def test_steps_are_numbered_by_whole_numbers_however_few_they_are(last: int, ticks: int | None) -> None:
    drawing = Drawing("Why?", height=300, rows=(1, 1))
    drawing.line(([0.0, None, 2.0], [1.0, None, 2.0]), BLUE_LINE)
    drawing.line(([0.0, float(last)], [1.0, 2.0]), BLUE_LINE, row=2)
    drawing.set_steps()
    axis = drawing.figure().layout.xaxis2
    assert (axis.dtick, axis.title.text) == (ticks, "Step (batches)")


def test_steps_of_one_row_are_numbered_by_what_stands_in_it() -> None:
    drawing = Drawing("Why?", height=300)
    drawing.line(([0.0, 3.0], [1.0, 2.0]), BLUE_LINE)
    drawing.bars(([0.0, 90.0], [1.0, 2.0]), "#0072B2", "", row=2)
    drawing.set_steps(row=1)
    assert drawing.figure().layout.xaxis.dtick == 1
