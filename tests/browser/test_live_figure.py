"""A live figure outlives the place where it is shown, and is seen however slowly it came into being."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import View
from tests.browser.notebook_page import add_and_run_cell, choose_from_menu

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

FIGURE = """\
import numpy as np
import plotly.graph_objects as go

from workbench.figures.live import LiveFigure



def line(n):
    traces = [go.Scatter(x=np.arange(n), y=np.arange(n), name="line"), go.Scatter(x=[0], y=[0.5], name="other")]
    return go.Figure(traces, {"xaxis": {"range": [-0.5, n - 0.5]}})


live = LiveFigure(line(2))
live.widget"""
LONGER = "live.update(line({n}))"
SLOWLY_MADE = """\
import threading
import time

import anywidget
import ipywidgets
import plotly.graph_objects as go

from workbench.figures.live import LiveFigure

place = ipywidgets.VBox()
at_once = anywidget.AnyWidget.__init__


def then_wait(self, *arguments, **options):
    at_once(self, *arguments, **options)  # the page knows it from here on, and asks
    time.sleep(3)


def make():
    anywidget.AnyWidget.__init__ = then_wait
    try:
        live = LiveFigure(go.Figure(go.Scatter(x=[0.0, 1.0], y=[0.0, 1.0], name="line")))
    finally:
        anywidget.AnyWidget.__init__ = at_once
    place.children = (live.widget,)


threading.Thread(target=make).start()
place"""
DRAWN = "(n) => document.querySelector('.js-plotly-plot')?.calcdata?.[0]?.length === n"


LAYOUT = "document.querySelector('.js-plotly-plot')._fullLayout"
HIDDEN = "() => document.querySelector('.js-plotly-plot')._fullData.map((trace) => trace.visible === 'legendonly')"
AXES = f"() => [{LAYOUT}.yaxis.autorange, {LAYOUT}.yaxis.range, {LAYOUT}.xaxis.range]"


def test_a_figure_keeps_its_zoom_outlives_its_place_and_is_seen_when_it_is_made_slowly(notebook: View) -> None:
    page = notebook.page
    choose_from_menu(page, "Edit", "Clear Outputs of All Cells")
    shown = page.locator(".jp-Notebook .jp-CodeCell").count()
    add_and_run_cell(page, FIGURE)
    page.wait_for_function(DRAWN, arg=2)
    box = page.locator(".nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.6 * box["height"], steps=5)
    page.mouse.up()
    page.wait_for_function(f"() => {LAYOUT}.yaxis.autorange === false")
    page.locator(".legendtoggle").nth(1).click()
    page.wait_for_function(f"() => ({HIDDEN})()[1]")
    add_and_run_cell(page, LONGER.format(n=3))
    page.wait_for_function(DRAWN, arg=3)
    autorange, (low, high), (left, right) = page.evaluate(AXES)
    assert not autorange
    assert 0 < low < high < 1  # what the reader chose stays while the line grows
    assert 0 < left < right < 1  # also on an axis whose ends are given, and given anew
    assert page.evaluate(HIDDEN) == [False, True]
    add_and_run_cell(page, LONGER.format(n=5).replace("))", "), reset_axes=True)"))
    page.wait_for_function(DRAWN, arg=5)
    autorange, (low, high), ends = page.evaluate(AXES)
    assert autorange  # another question: the zoom is over
    assert low < 0
    assert high > 4
    assert ends == [-0.5, 4.5]

    page.locator(".jp-Notebook .jp-CodeCell").nth(shown).locator(".jp-InputPrompt").click()
    choose_from_menu(page, "Edit", "Clear Cell Output")
    expect(page.locator(".js-plotly-plot")).to_have_count(0)
    add_and_run_cell(page, LONGER.format(n=3))
    add_and_run_cell(page, "live.widget")
    page.wait_for_function(DRAWN, arg=3)
    add_and_run_cell(page, LONGER.format(n=4))
    page.wait_for_function(DRAWN, arg=4)

    add_and_run_cell(page, SLOWLY_MADE)  # the page asks too early
    expect(page.locator(".js-plotly-plot")).to_have_count(2, timeout=20_000)
