"""A new user's way: the README's ten lines in a new notebook, a workbench on them, a run, a file."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import A_RUN, enter, opened, run_all, set_steps, task_of_the_readme, write_notebook
from workbench.config import BoostConfig
from workbench.runs import read_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_from_ten_lines_to_a_file(lab: Lab, view: View) -> None:
    write_notebook(
        lab, "own_task", task_of_the_readme(), "from workbench import Workbench\n\nWorkbench(task, out='own_runs')"
    )
    workbench = run_all(view.page, lab, "own_task")
    expect(workbench.locator(".wb-title").first).to_have_text("Boost Workbench: mine")

    configure = opened(workbench, "Configure")
    configure.get_by_role("button", name="O0", exact=True).click()
    train = opened(workbench, "Train")
    set_steps(train, 150)
    train.get_by_role("button", name="Start", exact=True).click()
    expect(train.locator(".wb-badge")).to_contain_text("done", timeout=A_RUN)
    told = train.get_by_text(re.compile(r"150 steps in [\d.]+ m?s; accuracy [\d.]+")).first
    expect(told).to_be_visible()
    expect(train.get_by_text(re.compile(r"A step takes [\d.]+ x the time of O0"))).to_be_visible()
    (recorded,) = (lab.folder / "notebooks" / "own_runs").iterdir()
    run = read_run(recorded)
    assert (len(run.steps), run.environment["task"], run.environment["level"]) == (150, "mine", "O0")

    export = opened(workbench, "Export")
    enter(export.get_by_title("Name of the file"), "mine.json")
    export.get_by_role("button", name="Save", exact=True).click()
    expect(export.get_by_text(re.compile("wrote .*mine.json")).first).to_be_visible()
    assert BoostConfig.from_json(lab.folder / "notebooks" / "mine.json") == BoostConfig()
