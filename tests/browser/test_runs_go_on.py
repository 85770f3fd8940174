"""A run lives in the kernel, not on the page: a closed tab, an interrupt and a cell that runs again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import (
    add_and_run_cell,
    choose_from_menu,
    open_notebook,
    opened,
    run_all,
    start,
    task_of_the_readme,
    write_notebook,
)

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(300)]

WORKBENCH = "from workbench import Workbench\n\ntorch.set_num_threads(1)\napp = Workbench(task, out=None)\napp"
THREADS = """\
import threading

sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("workbench"))"""

_TOLD = re.compile(r"^\d.* of 10.000.000 steps")


def begin_a_long_run(workbench: Locator) -> Locator:
    """Start a run that ends by Stop alone, and wait until it trains."""
    train = opened(workbench, "Train")
    start(train, 10_000_000)
    expect(train.locator(".wb-badge")).to_contain_text("running")
    expect(train.get_by_text(_TOLD)).to_be_visible()
    return train


def steps_done(train: Locator) -> int:
    """Return the number of steps that the panel tells."""
    told = train.get_by_text(_TOLD).inner_text()
    return int(re.sub(r"\D", "", told.partition(" of ")[0]))


def test_a_run_outlives_its_page_and_an_interrupt_and_ends_with_its_cell(lab: Lab, view: View) -> None:
    write_notebook(lab, "going_on", task_of_the_readme(), WORKBENCH)
    train = begin_a_long_run(run_all(view.page, lab, "going_on"))
    choose_from_menu(view.page, "File", "Save Notebook")
    expect(view.page.locator(".jp-mod-dirty")).to_have_count(0)
    done = steps_done(train)

    page = view.reopened()
    open_notebook(page, lab, "going_on")
    train = page.locator(".wb-panel .wb-panel:visible").first
    expect(train.locator(".wb-badge")).to_contain_text("running")
    expect(train.locator(".wb-title")).to_have_text("Train")
    assert steps_done(train) > done
    expect(train.locator(".scatterlayer .trace path.js-line").first).to_be_visible()

    choose_from_menu(page, "Kernel", "Interrupt Kernel")
    assert add_and_run_cell(page, "6 * 7").inner_text() == "42"
    expect(train.locator(".wb-badge")).to_contain_text("running")
    train.get_by_role("button", name="Stop", exact=True).click()
    expect(train.locator(".wb-badge")).to_contain_text("stopped")
    expect(train.get_by_role("button", name="Start", exact=True)).to_be_enabled()
    expect(train.get_by_text("stopped").first).to_be_visible()
    assert add_and_run_cell(page, "app.panel('Train').result.steps > 0").inner_text() == "True", "the same kernel"

    begin_a_long_run(page.locator(".wb-panel").first)
    assert "Train" in add_and_run_cell(page, THREADS).inner_text()
    second = page.locator(".jp-Notebook .jp-CodeCell").nth(1)
    second.get_by_role("textbox").first.click()
    page.keyboard.press("Control+Enter")
    expect(second.locator(".jp-InputPrompt")).to_have_text("[6]:")
    expect(page.locator(".wb-panel").first).to_be_visible()
    assert add_and_run_cell(page, THREADS).inner_text() == "[]"


def test_a_panel_whose_kernel_was_restarted_says_so_and_is_no_longer_running(lab: Lab, view: View) -> None:
    write_notebook(lab, "restarted", task_of_the_readme(), WORKBENCH)
    workbench = run_all(view.page, lab, "restarted")
    train = begin_a_long_run(workbench)
    choose_from_menu(view.page, "Kernel", "Restart Kernel…")
    view.page.get_by_role("button", name="Confirm Kernel Restart").click()
    expect(train.locator(".wb-badge")).to_be_hidden()
    said = [part.evaluate("(part) => getComputedStyle(part, '::before').content") for part in (workbench, train)]
    assert "kernel of this panel is gone" in said[0]
    assert said[1] == "none"  # once is enough
