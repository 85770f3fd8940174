"""The quickstart as a person meets it: open it, run all, train in the panel, export, find the file."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import A_RUN, enter, opened, run_all, start
from workbench.config import BoostConfig
from workbench.runs import read_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


def test_from_run_all_to_an_exported_file(lab: Lab, view: View) -> None:
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

    before = set((notebooks / "runs").iterdir())
    train = opened(workbench, "Train")
    expect(train.get_by_role("button", name="Stop", exact=True)).to_be_disabled()
    train.get_by_role("checkbox", name="Compare step time with O0 afterwards").uncheck()  # the notebook has timed it
    start(train, 8)
    expect(train.locator(".wb-badge")).to_contain_text("running")
    expect(train.locator(".wb-badge")).to_contain_text("done", timeout=A_RUN)
    expect(train.get_by_text(re.compile(r"8 steps in [\d.]+ m?s; accuracy")).first).to_be_visible()
    (recorded,) = set((notebooks / "runs").iterdir()) - before
    assert len(read_run(recorded).steps) == 8

    export = opened(workbench, "Export")
    enter(export.get_by_title("Name of the file"), "from_the_panel.json")
    export.get_by_role("button", name="Save", exact=True).click()
    expect(export.get_by_text("reads back as this configuration").first).to_be_visible()
    expect(export.get_by_text("wrote").first).to_be_visible()
    assert BoostConfig.from_json(notebooks / "from_the_panel.json") == BoostConfig()
