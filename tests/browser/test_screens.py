"""The six panels with something to show, light and dark, on a wide and on a narrow page: pictures to be looked at.

They are written into the folder that ``WORKBENCH_SCREENSHOTS`` names; what a machine can judge is asserted: nothing
has to be scrolled sideways, and no figure is wider than its place.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import (
    A_RUN,
    choose_from_menu,
    click_point,
    control,
    enter,
    normalised_task_of_the_readme,
    open_section,
    opened,
    run_all,
    start,
    write_notebook,
)

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(600)]

TABS = ("Configure", "Train", "Loss scale", "Tune", "Compare", "Export")
TASK = normalised_task_of_the_readme()
# A study and an overflowing run that are there already, as after a while of work.
WORK = """\
from pathlib import Path

from workbench import Workbench, train, tune

torch.set_num_threads(1)
config = {"amp": {"level": "O2", "dtype": "float16"}, "loss_scale": {"init": 2.0**24, "window": 20}}
train(task, config, level="O0", steps=160, out="screens", exponents_every=2)
folder = Path("screen_studies/mine")
folder.mkdir(parents=True, exist_ok=True)
_ = (folder / "study.toml").write_text('''
[study]
task = "mine"
n_trials = 6
budget_steps = 40
objective = "pareto"
[space]
"boost.less_bn" = [true, false]
"boost.grad_freeze" = [true, false]
"grad_freeze.freeze_p" = { low = 0.3, high = 0.9 }
"grad_freeze.param_groups" = { low = 2, high = 4 }
[confirm]
seeds_min = 2
seeds_max = 2
candidates = 1
''')
tune(folder, task=task)"""
BENCH = "Workbench(task, out='screens', studies='screen_studies')"

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


def show_something(workbench: Locator) -> None:
    """Train, open the recorded run, click a trial and compare, so that every panel has something to show."""
    train = opened(workbench, "Train")
    start(train, 200)
    expect(train.locator(".wb-badge")).to_contain_text("done", timeout=A_RUN)

    scale = opened(workbench, "Loss scale")
    scale.get_by_role("button", name="Look", exact=True).click()
    overflowing = scale.get_by_title("Recorded run").locator("option").filter(has_text="overflow")
    scale.get_by_title("Recorded run").select_option(label=overflowing.last.inner_text())
    expect(scale.locator(".wb-badge")).to_contain_text("done")
    control(scale, "Initial scale").get_by_role("slider").press("ArrowLeft")
    expect(scale.get_by_text("2²³").first).to_be_visible()

    tune = opened(workbench, "Tune")
    plane = tune.locator(".js-plotly-plot").filter(has=workbench.page.get_by_text("Speed: time of O0")).first
    expect(plane).to_be_visible()
    click_point(plane, 2)
    expect(tune.get_by_text(re.compile(r"Trial \d: "))).to_be_visible()

    compare = opened(workbench, "Compare")
    enter(compare.get_by_title("A number of paired seeds"), "2")
    enter(compare.get_by_title("Micro-batches per run"), "40")
    compare.get_by_role("button", name="Start", exact=True).click()
    expect(compare.locator(".wb-badge")).to_contain_text("done", timeout=A_RUN)

    export = opened(workbench, "Export")
    enter(export.get_by_title("Folder of a study"), "screen_studies/mine")
    expect(export.get_by_role("button", name="o1", exact=True)).to_be_visible()
    open_section(opened(workbench, "Configure"), "Gradient freezing")


def photograph(page: Page, workbench: Locator, tab: str, width: int, file: Path) -> list[str]:
    """Take a picture of one tab, as high as it is, and return what does not fit into its width."""
    page.set_viewport_size({"width": width, "height": 1000})
    opened(workbench, tab)
    height = workbench.evaluate("(panel) => panel.scrollHeight")
    page.set_viewport_size({"width": width, "height": height + 500})  # a notebook is cut where it would be scrolled
    workbench.scroll_into_view_if_needed()
    handle = workbench.element_handle()
    with contextlib.suppress(PlaywrightTimeoutError):  # then the picture is wanted all the more
        page.wait_for_function(_FITS, arg=handle, timeout=5_000)
    workbench.screenshot(path=file)
    found: list[str] = workbench.evaluate(_SCROLLS_SIDEWAYS)
    return found


def test_pictures_of_all_panels(lab: Lab, view: View, tmp_path: Path) -> None:
    folder = Path(os.environ.get("WORKBENCH_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    page = view.page
    write_notebook(lab, "screens", TASK, WORK, BENCH)
    workbench = run_all(page, lab, "screens")
    show_something(workbench)
    page.get_by_role("tab", name="File Browser").click()  # it folds away, and leaves the page to the notebook
    unfitting: dict[str, Any] = {}
    for theme in ("Light", "Dark"):
        choose_from_menu(page, "Settings", "Theme", f"JupyterLab {theme}")
        expect(page.locator("body")).to_have_attribute("data-jp-theme-name", f"JupyterLab {theme}")
        for width in (1300, 900):
            for tab in TABS:
                name = f"{tab.lower().replace(' ', '_')}_{theme.lower()}_{width}.png"
                found = photograph(page, workbench, tab, width, folder / name)
                if found:
                    unfitting[name] = found
    assert unfitting == {}
    assert len(list(folder.glob("*.png"))) >= len(TABS) * 4
