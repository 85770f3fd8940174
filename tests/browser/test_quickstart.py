"""The quickstart as a person meets it: open it, run all, look at the figure and the workbench."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import run_all

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


def test_run_all_ends_in_a_workbench_and_draws_on_the_way(lab: Lab, view: View) -> None:
    notebooks = lab.folder / "notebooks"
    shipped = (notebooks / "00_quickstart.ipynb").read_text(encoding="utf-8")
    shorter, n = re.subn(r"(TASK, STEPS, SEED = .*), 80, 0", r"\1, 8, 0", shipped)
    assert n == 1, "the quickstart trains for another number of steps now"
    (notebooks / "00_quickstart.ipynb").write_text(shorter, encoding="utf-8")
    workbench = run_all(view.page, lab, "00_quickstart")
    expect(workbench.locator(".wb-title").first).to_have_text("Boost Workbench: digits-resnet")
    drawing = view.page.locator(".jp-Notebook .jp-CodeCell").nth(4)
    drawing.scroll_into_view_if_needed()
    expect(drawing.locator(".js-plotly-plot .gtitle")).to_have_text(re.compile(r"\w+"))
