"""Notebooks that tell their story in figures: run all, and every figure stands where its cell says so."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, watched_page
from tests.browser.notebook_page import A_NOTEBOOK, choose_from_menu, open_notebook

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(600)]

NOTEBOOKS = ("05_thor_and_adam_offload", "07_online_recommender")


def code_of(lab: Lab, notebook: str) -> list[str]:
    """Return the cells of code as the lab has them."""
    cells = json.loads((lab.folder / "notebooks" / f"{notebook}.ipynb").read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def look_at_figures(page: Page, sources: list[str]) -> int:
    """Scroll to every cell that ends in a figure; return how many there are."""
    drawing = [number for number, source in enumerate(sources) if re.search(r"^\w+_figure\(", source, re.MULTILINE)]
    for number in drawing:
        cell = page.locator(".jp-Notebook .jp-CodeCell").nth(number)
        cell.scroll_into_view_if_needed()
        expect(cell.locator(".js-plotly-plot .gtitle")).to_have_text(re.compile(r"\w+"))
        assert cell.locator(".js-plotly-plot .trace").count() > 0, sources[number]
    return len(drawing)


def test_run_all_shows_every_figure_and_no_error(lab: Lab, reader: BrowserContext) -> None:
    with ExitStack() as stack:
        # Both at once: a kernel keeps one core busy.
        pages = {notebook: stack.enter_context(watched_page(reader)).page for notebook in NOTEBOOKS}
        for notebook, page in pages.items():
            open_notebook(page, lab, notebook)
            choose_from_menu(page, "Run", "Run All Cells")
        for notebook, page in pages.items():
            sources = code_of(lab, notebook)
            last = page.locator(".jp-CodeCell .jp-InputPrompt").get_by_text(f"[{len(sources)}]:", exact=True)
            last.wait_for(timeout=A_NOTEBOOK)
            assert look_at_figures(page, sources) >= 2
            for complaint in ("application/vnd.jupyter.stderr", "application/vnd.jupyter.error"):
                assert page.locator(f'[data-mime-type="{complaint}"]').count() == 0
