"""Every panel in every state, light and dark, wide, middling and narrow: pictures to be looked at one by one.

They are written into the folder that ``WORKBENCH_SCREENSHOTS`` names; ``WORKBENCH_SCREENS`` names the panels wanted
(``train,tune``). What a machine can judge is asserted: nothing has to be scrolled sideways, no figure is wider than its
place, no words of a figure run into others or over its edge, every control has a name, and text can be read.
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
    if (!box.width || part.closest("svg, pre, textarea, .modebar, .slider-container, .wbt-box")) continue;
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


# What has the keyboard and no name for a screen reader.
_NAMELESS = """(panel) => [...panel.querySelectorAll("input, select, textarea, button, [role=slider]")]
  .filter((one) => one.checkVisibility() && ![one.title, one.ariaLabel, one.textContent, one.placeholder,
    one.getAttribute("aria-labelledby"), one.closest("[title]")?.title,
    ...[...(one.labels ?? [])].map((label) => label.textContent)].some((name) => name?.trim()))
  .map((one) => `no name: ${one.outerHTML.slice(0, 120)}`)"""

# Text whose contrast with what lies behind it is below 4.5, or 3 where it is large; what is disabled may be fainter.
_FAINT = """(panel) => {
  const dot = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
  const pen = dot.getContext("2d", {willReadFrequently: true});
  const light = () => {
    const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((one) => one / 255)
      .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paint = (colour) => { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); };
  const found = new Set();
  for (const part of panel.querySelectorAll("*")) {
    const texts = [...part.childNodes].filter((one) => one.nodeType === Node.TEXT_NODE);
    const text = texts.map((one) => one.textContent.trim()).join("");
    if (!text || !part.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    if (part.closest("svg, style, option, :disabled, .jupyter-widgets-disconnected, .wb-json > textarea")) continue;
    const around = [];
    for (let one = part; one; one = one.parentElement) around.unshift(getComputedStyle(one));
    if (around.some((one) => Number(one.opacity) < 1)) continue;
    paint("white");
    around.forEach((one) => paint(one.backgroundColor));
    const behind = light(), own = around.at(-1);
    paint(own.color);
    const ink = light(), contrast = (Math.max(ink, behind) + 0.05) / (Math.min(ink, behind) + 0.05);
    const isLarge = parseFloat(own.fontSize) >= 24 || parseFloat(own.fontSize) >= 18.6 && Number(own.fontWeight) >= 700;
    if (contrast < (isLarge ? 3 : 4.5)) found.add(`contrast ${contrast.toFixed(1)}: ${text.slice(0, 60)}`);
  }
  return [...found];
}"""


def unusable_by_some(panel: Locator) -> list[str]:
    """Return what of a panel has no name for a screen reader, or too little contrast to be read."""
    found: list[str] = [*panel.evaluate(_NAMELESS), *panel.evaluate(_FAINT)]
    return found


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
    return [*found, *panel.evaluate(_WORDS_COLLIDE), *unusable_by_some(panel)]


def test_pictures_of_all_panels(lab: Lab, view: View, tmp_path: Path) -> None:
    folder = Path(os.environ.get("WORKBENCH_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = os.environ.get("WORKBENCH_SCREENS", "").split(",")
    states = {name: cell for name, cell in STATES.items() if name.startswith(tuple(wanted))}
    settings = lab.folder / "own/jupyterlab_settings_dir/@jupyterlab/notebook-extension"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}')  # cells out of sight stay
    page = view.page
    page.set_viewport_size({"width": WIDTHS[0], "height": 4200})  # a notebook is cut where it would be scrolled
    write_notebook(lab, "screens", *CELLS[:2], *states.values())
    run_cells(page, lab, "screens")
    page.get_by_role("tab", name="File Browser").click()  # it folds away, and leaves the page to the notebook
    wrong: dict[str, Any] = {}
    for theme in THEMES:
        choose_from_menu(page, "Settings", "Theme", f"JupyterLab {theme}")
        expect(page.locator("body")).to_have_attribute("data-jp-theme-name", f"JupyterLab {theme}")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 4200})
            for number, name in enumerate(states):
                panel = page.locator(".jp-Notebook .jp-CodeCell").nth(2 + number).locator(".wb-panel").first
                expect(panel).to_be_visible()
                file = folder / f"{name}_{theme.lower()}_{width}.png"
                if found := photograph(page, panel, file):
                    wrong[file.name] = found
    assert wrong == {}
    assert len(list(folder.glob("*.png"))) >= len(states) * len(THEMES) * len(WIDTHS)
