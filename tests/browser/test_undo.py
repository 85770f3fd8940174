"""Edits are taken back, made again, kept by name, and stand side by side."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import View
from tests.browser.notebook_page import add_and_run_cell, control, enter, open_section, opened

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_edits_are_taken_back_and_kept_by_name(notebook: View) -> None:
    workbench = add_and_run_cell(notebook.page, "Workbench('digits-resnet', out=None)").locator(".wb-panel").first
    configure = opened(workbench, "Configure")
    undo, redo = (workbench.get_by_role("button", name=name, exact=True) for name in ("Undo", "Redo"))
    expect(undo).to_be_disabled()
    open_section(configure, "Gradient freezing")
    share = control(configure, "Share of full steps")
    box = configure.locator(".wb-json textarea")
    before = box.input_value()
    for _ in range(3):
        share.get_by_role("slider").press("ArrowLeft")
    expect(undo).to_be_enabled()
    expect(undo).to_have_attribute("title", re.compile(r"grad_freeze\.freeze_p"))
    expect(share.get_by_role("textbox")).to_have_value("0.67")
    expect(box).to_have_value(re.compile('"freeze_p": 0.67'))
    dragged = box.input_value()
    undo.click()
    expect(share.get_by_role("textbox")).to_have_value("0.7")
    expect(box).to_have_value(before)
    expect(undo).to_be_disabled()  # three moves of a slider are one edit
    redo.click()
    expect(redo).to_be_disabled()
    expect(box).to_have_value(dragged)

    enter(configure.get_by_title("Name under which"), "careful")
    configure.get_by_role("button", name="Keep", exact=True).click()
    expect(configure.get_by_text("kept as careful")).to_be_visible()
    enter(share.get_by_role("textbox"), "0.3")
    row = configure.locator("tr").filter(has_text="grad_freeze.freeze_p").last
    expect(row).to_contain_text("0.30.67")
    configure.get_by_role("button", name="Use", exact=True).click()
    expect(configure.get_by_text("Careful would replace your edits of the configuration")).to_be_visible()
    configure.get_by_role("button", name="Replace my edits", exact=True).click()
    expect(share.get_by_role("textbox")).to_have_value("0.67")
