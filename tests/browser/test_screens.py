"""Every panel in every state, light and dark, wide, middling and narrow: pictures to be looked at one by one.

They are written into the folder that ``WORKBENCH_SCREENSHOTS`` names; ``WORKBENCH_SCREENS`` names the panels wanted
(``train,tune``). What a machine can judge is asserted: nothing has to be scrolled sideways, no figure is wider than its
place, and no words of a figure run into others or over its edge.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import choose_from_menu, run_cells, write_notebook
from tests.browser.panel_states import CELLS, STATES

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(1800)]

WIDTHS = (1440, 1000, 700)
THEMES = ("Light", "Dark")

_SCROLLS_SIDEWAYS = """(panel) => {
  const wide = [];
  for (let part = panel; part && !part.matches(".jp-Notebook"); part = part.parentElement) {
    if (part.scrollWidth > part.clientWidth + 1) wide.push(`around: ${part.className}`);
  }
  const edge = panel.getBoundingClientRect().right;
  for (const part of panel.querySelectorAll("*")) {
    const box = part.getBoundingClientRect();
    if (!box.width || part.closest("svg, pre, textarea, .modebar, .slider-container")) continue;
    if (box.right > edge + 1) wide.push(`${part.tagName} ${part.className}: ${box.right - edge} px too far`);
    const turns = ["auto", "scroll"].includes(getComputedStyle(part).overflowX);
    if (turns && part.scrollWidth > part.clientWidth + 1) wide.push(`inside: ${part.className}`);
  }
  for (const plot of panel.querySelectorAll(".js-plotly-plot")) {
    const place = plot.clientWidth;
    if (place && Math.abs(plot._fullLayout.width - place) > 1) {
      wide.push(`figure of ${plot._fullLayout.width} px in ${place} px`);
    }
  }
  return wide;
}"""
_FITS = f"(panel) => ({_SCROLLS_SIDEWAYS})(panel).length === 0"

# Words of a figure that lie on others, or beyond its edge: titles, axes, ticks, legend, annotations.
_WORDS_COLLIDE = """(panel) => {
  const found = [], parts = ".gtitle, .gtitle-subtitle, .xtitle, .ytitle, .x2title, .y2title, .legendtext, "
    + ".xtick > text, .ytick > text, .annotation-text";
  for (const plot of panel.querySelectorAll(".js-plotly-plot")) {
    const edge = plot.getBoundingClientRect();
    const words = [...plot.querySelectorAll(parts)].filter((one) => one.textContent.trim()
      && getComputedStyle(one).visibility !== "hidden" && Number(getComputedStyle(one).opacity) > 0);
    const boxes = words.map((one) => [one.textContent.trim(), one.getBoundingClientRect()]);
    boxes.forEach(([text, box], i) => {
      if (box.left < edge.left - 2 || box.right > edge.right + 2) found.push(`"${text}" runs over the edge`);
      for (const [other, next] of boxes.slice(i + 1)) {
        const wide = Math.min(box.right, next.right) - Math.max(box.left, next.left);
        const high = Math.min(box.bottom, next.bottom) - Math.max(box.top, next.top);
        if (wide > 2 && high > 3) found.push(`"${text}" lies on "${other}"`);
      }
    });
  }
  return found;
}"""


def scrolls_sideways(page: Page, panel: Locator) -> list[str]:
    """Return what of a panel does not fit into its width, once it had the time to."""
    with contextlib.suppress(PlaywrightTimeoutError):  # then it is said what
        page.wait_for_function(_FITS, arg=panel.element_handle(), timeout=4_000)
    found: list[str] = panel.evaluate(_SCROLLS_SIDEWAYS)
    return found


def photograph(page: Page, panel: Locator, file: Path) -> list[str]:
    """Take a picture of a panel, as high as it is, and return what does not fit."""
    panel.scroll_into_view_if_needed()
    found = scrolls_sideways(page, panel)
    panel.screenshot(path=file)
    return [*found, *panel.evaluate(_WORDS_COLLIDE)]


def test_pictures_of_all_panels(lab: Lab, view: View, tmp_path: Path) -> None:
    folder = Path(os.environ.get("WORKBENCH_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = os.environ.get("WORKBENCH_SCREENS", "").split(",")
    states = {name: cell for name, cell in STATES.items() if name.startswith(tuple(wanted))}
    settings = lab.folder / "own/jupyterlab_settings_dir/@jupyterlab/notebook-extension"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}')  # cells out of sight stay
    page = view.page
    page.set_viewport_size({"width": WIDTHS[0], "height": 2600})  # a notebook is cut where it would be scrolled
    write_notebook(lab, "screens", *CELLS[:2], *states.values())
    run_cells(page, lab, "screens")
    page.get_by_role("tab", name="File Browser").click()  # it folds away, and leaves the page to the notebook
    wrong: dict[str, Any] = {}
    for theme in THEMES:
        choose_from_menu(page, "Settings", "Theme", f"JupyterLab {theme}")
        expect(page.locator("body")).to_have_attribute("data-jp-theme-name", f"JupyterLab {theme}")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 2600})
            for number, name in enumerate(states):
                panel = page.locator(".jp-Notebook .jp-CodeCell").nth(2 + number).locator(".wb-panel").first
                expect(panel).to_be_visible()
                file = folder / f"{name}_{theme.lower()}_{width}.png"
                if found := photograph(page, panel, file):
                    wrong[file.name] = found
    assert wrong == {}
    assert len(list(folder.glob("*.png"))) >= len(states) * len(THEMES) * len(WIDTHS)
