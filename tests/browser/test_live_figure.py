"""A live figure outlives the place where it is shown, and is seen however slowly it came into being."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import add_and_run_cell, choose_from_menu, run_cells, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

FIGURE = """\
import numpy as np
import plotly.graph_objects as go

from workbench.figures.live import LiveFigure

live = LiveFigure(go.Figure(go.Scatter(x=[0.0, 1.0], y=[0.0, 1.0], name="line")), interval=0.0)
live.widget"""
LONGER = 'live.update(go.Figure(go.Scatter(x=np.arange({n}.0), y=np.arange({n}.0), name="line")))'
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
    time.sleep(6)


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


@pytest.mark.long
def test_a_figure_whose_output_was_cleared_goes_on_unseen(lab: Lab, view: View) -> None:
    write_notebook(lab, "figure", FIGURE)
    page = view.page
    run_cells(page, lab, "figure")
    page.wait_for_function(DRAWN, arg=2)
    page.locator(".jp-Notebook .jp-CodeCell").first.locator(".jp-InputPrompt").click()
    choose_from_menu(page, "Edit", "Clear Cell Output")
    expect(page.locator(".js-plotly-plot")).to_have_count(0)
    add_and_run_cell(page, LONGER.format(n=3))
    add_and_run_cell(page, "live.widget")
    page.wait_for_function(DRAWN, arg=3)
    add_and_run_cell(page, LONGER.format(n=4))
    page.wait_for_function(DRAWN, arg=4)


def test_a_figure_made_in_a_thread_is_drawn_although_the_page_asked_too_early(lab: Lab, view: View) -> None:
    write_notebook(lab, "slowly_made", FIGURE, SLOWLY_MADE)
    run_cells(view.page, lab, "slowly_made")
    expect(view.page.locator(".js-plotly-plot")).to_have_count(2, timeout=20_000)


Y_AXIS = "document.querySelector('.js-plotly-plot')._fullLayout.yaxis"


def test_a_zoom_ends_with_the_question_it_was_for(lab: Lab, view: View) -> None:
    write_notebook(lab, "zoom", FIGURE)
    page = view.page
    run_cells(page, lab, "zoom")
    page.wait_for_function(DRAWN, arg=2)
    box = page.locator(".nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.6 * box["height"], steps=5)
    page.mouse.up()
    page.wait_for_function(f"() => {Y_AXIS}.autorange === false")
    add_and_run_cell(page, LONGER.format(n=3))
    page.wait_for_function(DRAWN, arg=3)
    autorange, (low, high) = page.evaluate(f"() => [{Y_AXIS}.autorange, {Y_AXIS}.range]")
    assert not autorange
    assert 0 < low < high < 1  # what the reader chose stays while the line grows
    add_and_run_cell(page, LONGER.format(n=5).replace(")))", ")), anew=True)"))
    page.wait_for_function(DRAWN, arg=5)
    autorange, (low, high) = page.evaluate(f"() => [{Y_AXIS}.autorange, {Y_AXIS}.range]")
    assert autorange
    assert low < 0
    assert high > 4
