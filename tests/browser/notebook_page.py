"""What a person does in JupyterLab: opens a notebook, runs it, looks at a panel's tabs, types, drags, clicks a point.

Everything is found by its role or its text, and every step ends in a state that was waited for.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Lab

_README = Path(__file__).parents[2] / "README.md"

A_NOTEBOOK = 400_000  # milliseconds for run all
A_RUN = 120_000  # for a run, with its comparison of step times
expect.set_options(timeout=60_000)  # for any state that is waited for: the first panel that needs torch loads it

# Pixel of the first point whose own number (customdata) is asked for, in the figure that shows it.
_PLACE_OF_POINT = """(plot, number) => {
  for (const points of plot.calcdata) {
    const trace = points[0].trace;
    if (trace.type !== "scatter" || !trace.customdata) continue;
    for (const point of points) {
      const carried = trace.customdata[point.i];
      if ((Array.isArray(carried) ? carried[0] : carried) !== number) continue;
      const {_fullLayout: {xaxis, yaxis}} = plot, box = plot.getBoundingClientRect();
      return [box.x + xaxis._offset + xaxis.c2p(point.x), box.y + yaxis._offset + yaxis.c2p(point.y)];
    }
  }
  return null;
}"""


def task_of_the_readme() -> str:
    """Return the ten lines that the README shows as a task of one's own; a run of it takes milliseconds per step."""
    found = re.search(r"```python\n(# my_task\.py\n.*?)```", _README.read_text(encoding="utf-8"), re.DOTALL)
    assert found, "README.md shows no task of one's own"
    return found.group(1)


def normalised_task_of_the_readme() -> str:
    """Return the same task with a BatchNorm behind its first layer, so that LessBN has something to remove."""
    normalised, n = re.subn(
        r"(Linear\(\d+, (\d+)\)), ", r"\1, torch.nn.BatchNorm1d(\2), ", task_of_the_readme(), count=1
    )
    assert n == 1, "the network of the README's task looks different now"
    return normalised


def write_notebook(lab: Lab, name: str, *cells: str) -> None:
    """Write a notebook of code cells beside the shipped ones, as a person would have typed it."""
    empty = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    notebook = {
        "cells": [{**empty, "id": f"cell-{index}", "source": source} for index, source in enumerate(cells)],
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (lab.folder / "notebooks" / f"{name}.ipynb").write_text(json.dumps(notebook))


def open_notebook(page: Page, lab: Lab, notebook: str) -> None:
    """Open a notebook and wait for its kernel."""
    page.goto(lab.address(notebook))
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible(timeout=120_000)


def choose_from_menu(page: Page, *entries: str) -> None:
    """Click through a menu of JupyterLab: its name, then the entries down to the one that acts."""
    page.get_by_role("menuitem", name=entries[0], exact=True).click()
    for entry in entries[1:]:
        page.locator(".lm-Menu-itemLabel").get_by_text(entry, exact=True).click()  # submenus have no role


def run_cells(page: Page, lab: Lab, notebook: str) -> None:
    """Open a notebook, run all of its cells from the menu, and wait until the last one is done."""
    open_notebook(page, lab, notebook)
    cells = json.loads((lab.folder / "notebooks" / f"{notebook}.ipynb").read_text())["cells"]
    n_code = sum(cell["cell_type"] == "code" for cell in cells)
    choose_from_menu(page, "Run", "Run All Cells")
    last = page.locator(".jp-CodeCell .jp-InputPrompt").get_by_text(f"[{n_code}]:", exact=True)
    last.wait_for(timeout=A_NOTEBOOK)


def run_all(page: Page, lab: Lab, notebook: str) -> Locator:
    """Open a notebook, run all of its cells, and return its panel."""
    run_cells(page, lab, notebook)
    panel = page.locator(".wb-panel").first
    expect(panel).to_be_visible()
    return panel


def add_and_run_cell(page: Page, source: str) -> Locator:
    """Type a cell at the end of the notebook, run it, wait for it, and return its output."""
    n_before = page.locator(".jp-Notebook .jp-CodeCell").count()
    page.get_by_role("button", name=re.compile("Click to add a cell")).click()
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(n_before)
    cell.get_by_role("textbox").first.fill(source)
    page.keyboard.press("Control+Enter")
    expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"), timeout=A_RUN)
    return cell.locator(".jp-OutputArea-output")


def opened(panel: Locator, tab: str) -> Locator:
    """Open a tab of the workbench and return what it shows."""
    panel.get_by_role("tab", name=tab, exact=True).click()
    shown = panel.locator(".wb-panel").filter(has=panel.page.locator(".wb-title").get_by_text(tab, exact=True))
    expect(shown).to_be_visible()
    return shown


def open_section(panel: Locator, title: str) -> None:
    """Unfold a section of an accordion; its heads have no role."""
    panel.locator(".jupyter-widget-Collapse-header").get_by_text(title, exact=True).click()


def control(panel: Locator, title: str) -> Locator:
    """Return the control with a title: label, inputs, and what is said beneath them."""
    # Boxes stand in boxes: the last one that holds the label is the control itself.
    label = panel.page.locator(".wb-label").get_by_text(title, exact=True)
    return panel.locator(".widget-vbox").filter(has=label).last


def enter(field: Locator, text: str) -> None:
    """Type into a text box, and leave it."""
    field.fill(text)
    field.press("Enter")


def start(train: Locator, steps: int) -> None:
    """Type the number of steps into the training panel and start the run."""
    enter(control(train, "Steps").get_by_role("textbox"), str(steps))
    train.get_by_role("button", name="Start", exact=True).click()


def document_of(configure: Locator) -> dict[str, Any]:
    """Return the JSON that the Configure panel shows."""
    found: dict[str, Any] = json.loads(configure.locator(".wb-json textarea").input_value())
    return found


def last_step_drawn(panel: Locator, after: float = -1.0) -> float:
    """Wait until the first line of the panel's figure ends after a step, and return where it ends."""
    plot, end = panel.locator(".js-plotly-plot").first.element_handle(), "(plot) => plot.calcdata?.[0]?.at(-1)?.x ?? -1"
    panel.page.wait_for_function(f"([plot, step]) => ({end})(plot) > step", arg=[plot, after])
    return float(plot.evaluate(end))


def click_point(plot: Locator, number: int) -> None:
    """Click the point that stands for a number (a trial, a policy) in a figure, with the mouse."""
    page, element = plot.page, plot.element_handle()
    plot.scroll_into_view_if_needed()
    for _ in range(30):
        place = plot.evaluate(_PLACE_OF_POINT, number)
        assert place is not None, f"no point stands for {number}"
        page.mouse.move(place[0] + 1, place[1])
        page.mouse.move(*place)
        try:  # plotly clicks what it hovers over; where the figure has moved meanwhile, it is looked for again
            page.wait_for_function("(plot) => plot._hoverdata?.length > 0", arg=element, timeout=2_000)
        except PlaywrightTimeoutError:
            continue
        page.mouse.click(*place)
        return
    raise AssertionError(f"the mouse finds no point for {number}")
