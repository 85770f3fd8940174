"""A run beside the newest one of O0; the metric is drawn while it trains, and JSON is checked while it is typed."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import View
from tests.browser.notebook_page import (
    A_RUN,
    add_and_run_cell,
    normalised_task_of_the_readme,
    open_section,
    opened,
    start,
)
from tests.browser.test_screens import scrolls_sideways, unusable_by_some

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

BENCH = "\n\ntorch.set_num_threads(1)\nWorkbench(task, out=None, level='O0')"
TABS = ("Configure", "Train", "Loss scale", "Tune", "Compare", "Export")
_ONLY_MINE = "(plot) => (plot._fullData ?? []).length > 0 && plot._fullData.every((trace) => trace.name === 'mine')"
_EVALUATIONS = "(plot) => plot._fullData.at(-1).x.length"


def test_o0_lies_under_what_follows_and_narrow_pages_need_no_sideways_scrolling(notebook: View) -> None:
    page = notebook.page
    workbench = add_and_run_cell(page, normalised_task_of_the_readme() + BENCH).locator(".wb-panel").first
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt").all_text_contents()  # also of cells out of sight
    train = opened(workbench, "Train")
    badge, plot = train.locator(".wb-badge"), train.locator(".js-plotly-plot").first
    start(train, 60)
    expect(badge).to_contain_text("done", timeout=A_RUN)
    expect(plot.locator(".wb-figure-title")).to_contain_text("How did mine learn?")
    assert plot.evaluate(_EVALUATIONS) == 10, "it was evaluated without being asked to"
    expect(train.get_by_role("button", name="Loss scale", exact=True)).to_have_count(0)

    bar, title = plot.locator(".modebar-group"), plot.locator(".wb-figure-title")
    page.mouse.move(0, 0)
    expect(bar.first).to_have_css("opacity", "0")
    plot.hover(force=True)
    expect(bar.first).to_have_css("opacity", "1")
    tools, words = bar.first.bounding_box(), title.bounding_box()
    assert tools is not None
    assert words is not None
    assert tools["y"] >= words["y"] + words["height"] - 1, "the tools leave the title alone"

    train.get_by_role("button", name="O1", exact=True).click()
    start(train, 60)
    expect(plot.locator(".legendtext").get_by_text("O0, run 1", exact=True)).to_be_visible()  # it has begun
    expect(badge).to_contain_text("done", timeout=A_RUN)
    open_section(train, "Smoothing and other runs")
    train.get_by_role("checkbox", name="O0, run 1").click()
    expect(plot.locator(".legendtext").get_by_text("O0, run 1", exact=True)).to_have_count(0)
    page.wait_for_function(_ONLY_MINE, arg=plot.element_handle())  # a figure drawn anew is empty for a moment

    configure = opened(workbench, "Configure")
    box = configure.locator(".wb-json textarea")
    box.fill('{"grad_freeze": {"freeze_p": 1.5}}')
    expect(configure.get_by_role("alert")).to_contain_text("grad_freeze.freeze_p must lie in [0, 1)")
    box.fill('{"grad_freeze": {"freeze_p": 0.5}}')
    expect(configure.get_by_role("alert")).to_have_count(0)
    assert scrolls_sideways(page, configure) == []
    box.press("Control+Enter")
    expect(configure.locator("tr").filter(has_text="grad_freeze.freeze_p")).to_contain_text("0.50.7")
    assert page.locator(".jp-CodeCell .jp-InputPrompt").all_text_contents() == prompts, "no cell ran"
    expect(configure.locator(".wb-json .wb-key").first).to_have_text('"boost":')

    page.set_viewport_size({"width": 700, "height": 1000})
    page.get_by_role("tab", name="File Browser").click()
    for tab in TABS:
        panel = opened(workbench, tab)
        controls, plots = (panel.locator(f".wb-{part}").first.bounding_box() for part in ("controls", "plots"))
        assert controls is not None
        assert plots is not None
        assert controls["y"] + controls["height"] <= plots["y"], f"{tab}: one column"
        assert scrolls_sideways(page, workbench) == [], tab
        assert unusable_by_some(panel) == [], tab
