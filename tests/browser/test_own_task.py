"""A new user's way: the README's ten lines in a new notebook, a workbench on them, runs, a file, and a mistake."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import (
    A_RUN,
    add_and_run_cell,
    enter,
    last_step_drawn,
    opened,
    start,
    task_of_the_readme,
)
from workbench.config import BoostConfig
from workbench.runs import find_runs, read_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

RAISING = """\
def loss(model, batch):
    raise RuntimeError("the cable is out")


bad = Task(name="bad", model=task.model, loss=loss, optimizer=task.optimizer, train=batches, evaluate=batches,
           metric="loss")
Workbench(bad, out=None)"""


def test_from_ten_lines_to_a_file_and_a_sentence(lab: Lab, notebook: View) -> None:
    notebooks = lab.folder / "notebooks"
    cell = f"{task_of_the_readme()}\n\nWorkbench(task, out='own_runs')"
    workbench = add_and_run_cell(notebook.page, cell).locator(".wb-panel").first
    expect(workbench.locator(".wb-title").first).to_have_text("Boost Workbench: mine")
    opened(workbench, "Configure").get_by_role("button", name="O0", exact=True).click()
    train = opened(workbench, "Train")
    begin, badge = train.get_by_role("button", name="Start", exact=True), train.locator(".wb-badge")
    start(train, 1_000_000)
    expect(badge).to_contain_text("running")
    expect(begin).to_be_disabled()
    early = last_step_drawn(train)
    train.get_by_role("button", name="Stop", exact=True).click()
    expect(badge).to_contain_text("stopped")
    last_step_drawn(train, after=early)
    expect(begin).to_be_enabled()
    (stopped,) = find_runs(notebooks / "own_runs")
    assert 0 < len(read_run(stopped).steps) < 1_000_000

    start(train, 150)
    expect(train.get_by_text(re.compile(r"150 steps in [\d.]+ m?s; accuracy [\d.]+")).first).to_be_visible(
        timeout=A_RUN
    )
    expect(badge).to_contain_text("done")
    expect(train.get_by_text("as fast as O0's")).to_have_count(0)  # it is O0 itself
    (recorded,) = set(find_runs(notebooks / "own_runs")) - {stopped}
    run = read_run(recorded)
    assert (len(run.steps), run.environment["task"], run.environment["level"]) == (150, "mine", "O0")

    export = opened(workbench, "Export")
    enter(export.get_by_title("Name of the file"), "mine.json")
    export.get_by_role("button", name="Save", exact=True).click()
    expect(export.get_by_text(re.compile("wrote .*mine.json")).first).to_be_visible()
    assert BoostConfig.from_json(notebooks / "mine.json") == BoostConfig()

    train = opened(add_and_run_cell(notebook.page, RAISING).locator(".wb-panel").first, "Train")
    start(train, 10)
    expect(train.locator(".wb-badge")).to_contain_text("failed")
    told = train.get_by_role("alert")
    expect(told).to_contain_text("RuntimeError: the cable is out")
    trace = told.locator("pre")
    expect(trace).to_be_hidden()
    told.get_by_text("Traceback", exact=True).click()
    expect(trace).to_be_visible()
    expect(trace).to_contain_text("in loss")
    expect(train.get_by_role("button", name="Start", exact=True)).to_be_enabled()
