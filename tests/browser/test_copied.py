"""What the copy buttons of the Export tab and of report.html leave in the clipboard: the file, letter by letter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import add_and_run_cell
from tests.reports.synthetic_study import HOSTILE, full_sources, full_study
from workbench.config import BoostConfig
from workbench.core.records import ExportedScript
from workbench.report.study_report import study_report_html

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

SCRIPT = f'"""A loop."""\n\nfor _ in range(3):\n\tprint({HOSTILE!r}, "ü")  # <b>\n'


def pasted(page: Page) -> str:
    """Return what Ctrl+V writes into an empty field of the page."""
    page.evaluate(
        """() => {
          document.getElementById("pasted")?.remove();
          document.body.append(Object.assign(document.createElement("textarea"), {id: "pasted"}));
          document.getElementById("pasted").focus();
        }"""
    )
    page.keyboard.press("Control+V")
    found = page.locator("#pasted").input_value()
    page.locator("#pasted").evaluate("field => field.remove()")  # other tests use the page after this one
    return found


@pytest.mark.parametrize("clipboard", [True, False], ids=["clipboard", "selection"])
def test_the_report_copies_each_file(view: View, tmp_path: Path, clipboard: bool) -> None:
    study, sources = full_study(), full_sources()
    script = ExportedScript("torch", "o1", "train_torch_o1.py", SCRIPT, "it needs nothing of workbench")
    path = tmp_path / "report.html"
    path.write_text(study_report_html(replace(study, scripts=(script,)), sources), encoding="utf-8")
    page = view.page
    if not clipboard:  # as where a page is shown by a server without TLS
        page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.context.grant_permissions(["clipboard-write", "clipboard-read"])
    page.goto(path.as_uri())
    for details in page.locator("details").all():
        details.evaluate("element => element.open = true")
    seen = []
    buttons = page.get_by_role("button", name="Copy", exact=True)
    for number in range(len(sources.exported) + 1):
        file = page.locator("div.file").nth(number)
        button = file.locator("button.copy")
        button.click()
        expect(button).to_have_text("Copied")
        seen.append(pasted(page))
        assert seen[-1].strip() == file.locator("pre").inner_text().strip()
    expect(buttons).to_have_count(len(seen))  # each says Copy again
    assert SCRIPT.strip() in [text.strip() for text in seen]
    assert [BoostConfig.from_dict(json.loads(text)) for text in seen if text.startswith("{")] == list(
        sources.exported.values()
    )


def test_the_export_tab_copies_the_format_that_is_chosen(lab: Lab, notebook: View) -> None:
    result = lab.folder / "notebooks/studies/copied/result"
    result.mkdir(parents=True)
    config = BoostConfig().with_values({"optimizer.name": "AdamW"})
    config.save(result / "boost_config.o1.json")
    (result / "train_torch_o1.py").write_text(SCRIPT, encoding="utf-8")
    notebook.page.context.grant_permissions(["clipboard-write", "clipboard-read"])
    panel = add_and_run_cell(notebook.page, 'ExportPanel("studies/copied")').locator(".wb-panel").first
    copy = panel.get_by_role("button", name="Copy", exact=True)
    shown = panel.locator(".wb-json textarea")
    expect(shown).to_have_value((result / "boost_config.o1.json").read_text(encoding="utf-8").rstrip("\n"))
    copied = panel.get_by_role("button", name="Copied", exact=True)
    copy.click()
    expect(copied).to_be_visible()
    assert BoostConfig.from_dict(json.loads(pasted(notebook.page))) == config
    panel.get_by_role("button", name="torch").click()
    expect(shown).to_have_value(SCRIPT)
    copy.click()  # once it says Copy again
    expect(copied).to_be_visible()
    assert pasted(notebook.page) == SCRIPT
