"""The common look, and what figures may import."""

from __future__ import annotations

import json

import pytest

from workbench.figures import empty_figure
from workbench.figures.drawing import Drawing
from workbench.figures.labels import grouped
from workbench.figures.live import LiveFigure
from workbench.figures.theme import FIGURE_CONFIG, Theme, template_json, translucent


@pytest.mark.parametrize("theme", ["auto", "light", "dark"])
def test_every_theme_is_transparent(theme: Theme) -> None:
    layout = Drawing("Why?", theme=theme, height=420).figure().layout.template.layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert layout.font.color == template_json(theme)["layout"]["font"]["color"]


def test_a_colour_can_be_made_translucent() -> None:
    assert translucent("#0072B2", 0.5) == "rgba(0,114,178,0.5)"


def test_charts_are_not_offered_for_upload() -> None:
    assert "sendChartToCloud" in FIGURE_CONFIG["modeBarButtonsToRemove"]
    assert (FIGURE_CONFIG["plotlyServerURL"], FIGURE_CONFIG["displaylogo"]) == ("", False)


def test_a_long_title_is_broken_and_takes_room_from_the_plot() -> None:
    short = Drawing("Why?", "because", height=400).figure()
    long = Drawing("word " * 20, "word " * 40, height=400).figure()
    head, below = (text.text.split("<br>") for text in (long.layout.title, long.layout.title.subtitle))
    assert (len(head), len(below)) == (3, 4)
    assert max(map(len, head)) <= 43
    assert long.layout.height == 400
    assert [one.layout.margin.t for one in (short, long)] == [84, 84 + 2 * 19 + 3 * 17]


def test_a_long_reason_is_broken_into_lines() -> None:
    notes = empty_figure("Why?", "A sentence that is long enough to be broken once, " * 2).layout.annotations
    assert [notes[0].yshift - note.yshift for note in notes] == [0, 20, 40]


def test_the_shared_template_stays_as_it_is_whoever_takes_it() -> None:
    before = json.dumps(template_json("dark"), sort_keys=True)
    figure = Drawing("What?", theme="dark", height=420).figure()
    figure.update_layout(template_layout_font_color="#123456", font_size=40)
    figure.layout.template.layout.xaxis.gridcolor = "red"
    live = LiveFigure(figure, theme="dark")
    live.close()
    assert json.loads(live.widget.figure)["layout"]["template"] == json.loads(before)
    assert json.dumps(template_json("dark"), sort_keys=True) == before


def test_thousands_on_axes_and_in_hover_text_stand_apart_as_in_titles() -> None:
    decimal, thousands = template_json()["layout"]["separators"]
    assert f"12{thousands}000" == grouped(12_000)
    assert decimal == "."
