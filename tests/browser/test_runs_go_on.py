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
    set_steps,
    task_of_the_readme,
    write_notebook,
)

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

WORKBENCH = "from workbench import Workbench\n\ntorch.set_num_threads(1)\napp = Workbench(task, out=None)\napp"
THREADS = """\
import threading

sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("workbench"))"""

_TOLD = re.compile(r"^\d.* of 10.000.000 steps")


def begin_a_long_run(workbench: Locator) -> Locator:
    """Start a run that ends by Stop alone, and wait until it trains."""
    train = opened(workbench, "Train")
    set_steps(train, 10_000_000)
    train.get_by_role("button", name="Start", exact=True).click()
    expect(train.locator(".wb-badge")).to_contain_text("running")
    expect(train.get_by_text(_TOLD)).to_be_visible()
    return train


def steps_done(train: Locator) -> int:
    """Return the number of steps that the panel tells."""
    told = train.get_by_text(_TOLD).inner_text()
    return int(re.sub(r"\D", "", told.partition(" of ")[0]))


def stop(train: Locator) -> None:
    """Stop, and find the panel ready for the next run."""
    train.get_by_role("button", name="Stop", exact=True).click()
    expect(train.locator(".wb-badge")).to_contain_text("done")
    expect(train.get_by_role("button", name="Start", exact=True)).to_be_enabled()


@pytest.mark.long
def test_a_page_that_is_opened_again_finds_the_run_going_on(lab: Lab, view: View) -> None:
    write_notebook(lab, "reopened", task_of_the_readme(), WORKBENCH)
    train = begin_a_long_run(run_all(view.page, lab, "reopened"))
    choose_from_menu(view.page, "File", "Save Notebook")
    expect(view.page.locator(".jp-mod-dirty")).to_have_count(0)
    done = steps_done(train)

    page = view.reopened()
    open_notebook(page, lab, "reopened")
    train = page.locator(".wb-panel .wb-panel:visible").first
    expect(train.locator(".wb-badge")).to_contain_text("running")
    expect(train.locator(".wb-title")).to_have_text("Train")
    assert steps_done(train) > done
    expect(train.locator(".scatterlayer .trace path.js-line").first).to_be_visible()
    stop(train)
    expect(train.get_by_text("stopped").first).to_be_visible()
    assert add_and_run_cell(page, "app.panel('Train').result.steps > 0").inner_text() == "True", "the same kernel"


@pytest.mark.long
def test_an_interrupted_kernel_leaves_a_usable_panel(lab: Lab, view: View) -> None:
    write_notebook(lab, "interrupted", task_of_the_readme(), WORKBENCH)
    page = view.page
    workbench = run_all(page, lab, "interrupted")
    train = begin_a_long_run(workbench)
    choose_from_menu(page, "Kernel", "Interrupt Kernel")
    assert add_and_run_cell(page, "6 * 7").inner_text() == "42"
    expect(train.locator(".wb-badge")).to_contain_text("running")
    stop(train)


@pytest.mark.long
def test_a_cell_that_runs_again_leaves_no_thread(lab: Lab, view: View) -> None:
    write_notebook(lab, "again", task_of_the_readme(), WORKBENCH)
    page = view.page
    begin_a_long_run(run_all(page, lab, "again"))
    assert "Train" in add_and_run_cell(page, THREADS).inner_text()
    second = page.locator(".jp-Notebook .jp-CodeCell").nth(1)
    second.get_by_role("textbox").first.click()
    page.keyboard.press("Control+Enter")
    expect(second.locator(".jp-InputPrompt")).to_have_text("[4]:")
    expect(page.locator(".wb-panel").first).to_be_visible()
    assert add_and_run_cell(page, THREADS).inner_text() == "[]"
