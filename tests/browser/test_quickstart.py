"""The quickstart as a person meets it: open it, run all, train in the panel, watch, export, find the file."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from workbench.config import BoostConfig
from workbench.telemetry import read_run

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

A_NOTEBOOK = 240_000  # milliseconds for run all
A_RUN = 120_000  # for a run of 300 steps, with its comparison of step times


def run_all(page: Page, lab: Lab, notebook: str) -> None:
    """Open a notebook, run all of its cells from the menu, and wait until the last one is done."""
    page.goto(lab.address(notebook))
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible(timeout=60_000)
    cells = json.loads((lab.folder / "notebooks" / f"{notebook}.ipynb").read_text())["cells"]
    n_code = sum(cell["cell_type"] == "code" for cell in cells)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    last = page.locator(".jp-CodeCell .jp-InputPrompt").get_by_text(f"[{n_code}]:", exact=True)
    last.wait_for(timeout=A_NOTEBOOK)


def opened(panel: Locator, tab: str) -> Locator:
    """Open a tab of the workbench and return what it shows."""
    panel.get_by_role("tab", name=tab, exact=True).click()
    shown = panel.locator(".wb-panel").filter(has=panel.page.locator(".wb-title").get_by_text(tab, exact=True))
    expect(shown).to_be_visible()
    return shown


def set_steps(train: Locator, steps: int) -> None:
    """Type the number of steps into the training panel, after the name of the task."""
    field = train.get_by_role("textbox").nth(1)
    field.fill(str(steps))
    field.press("Enter")


def points_of_first_line(panel: Locator) -> int:
    """Return how many points the first line of the panel's figure has."""
    paths = panel.locator(".js-plotly-plot .scatterlayer .trace path.js-line")
    return len(re.findall(r"[ML]", paths.first.get_attribute("d") or "")) if paths.count() else 0


def test_from_run_all_to_an_exported_file(lab: Lab, view: View) -> None:
    page, notebooks = view.page, lab.folder / "notebooks"
    run_all(page, lab, "00_quickstart")
    workbench = page.locator(".wb-panel").first
    expect(workbench.locator(".wb-title").first).to_have_text("Boost Workbench: digits-resnet")

    before = set((notebooks / "runs").iterdir())
    train = opened(workbench, "Train")
    expect(train.get_by_role("button", name="Stop", exact=True)).to_be_disabled()
    set_steps(train, 300)
    train.get_by_role("button", name="Start", exact=True).click()
    badge = train.locator(".wb-badge")
    expect(badge).to_contain_text("running")
    expect(train.get_by_role("button", name="Start", exact=True)).to_be_disabled()
    page.wait_for_function("() => document.querySelectorAll('.wb-panel .scatterlayer .trace path.js-line').length > 0")
    early = points_of_first_line(train)
    expect(badge).to_contain_text("done", timeout=A_RUN)
    expect(train.get_by_text(re.compile(r"300 steps in [\d.]+ s; accuracy")).first).to_be_visible()
    assert points_of_first_line(train) > early, "the trace grew while it was watched"
    (recorded,) = set((notebooks / "runs").iterdir()) - before
    assert len(read_run(recorded).steps) == 300

    export = opened(workbench, "Export")
    export.get_by_title("Name of the file").fill("from_the_panel.json")
    export.get_by_title("Name of the file").press("Enter")
    export.get_by_role("button", name="Save", exact=True).click()
    expect(export.get_by_text("read back, it is the same configuration").first).to_be_visible()
    expect(export.get_by_text("wrote").first).to_be_visible()
    assert BoostConfig.from_json(notebooks / "from_the_panel.json") == BoostConfig()


def test_stop_ends_a_run_and_the_panel_is_usable_again(lab: Lab, view: View) -> None:
    page = view.page
    run_all(page, lab, "08_bring_your_own_model")
    train = opened(page.locator(".wb-panel").first, "Train")
    set_steps(train, 100_000)
    train.get_by_role("button", name="Start", exact=True).click()
    expect(train.locator(".wb-badge")).to_contain_text("running")
    train.get_by_role("button", name="Stop", exact=True).click()
    expect(train.locator(".wb-badge")).to_contain_text("done", timeout=A_RUN)
    expect(train.get_by_role("button", name="Start", exact=True)).to_be_enabled()
    last = max((lab.folder / "notebooks" / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    assert 0 < len(read_run(last).steps) < 100_000
