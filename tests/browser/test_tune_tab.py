"""A small study by hand: start it, watch it, stop it, go on, click a trial, take its configuration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import (
    A_RUN,
    add_and_run_cell,
    click_point,
    control,
    document_of,
    enter,
    normalised_task_of_the_readme,
    open_section,
    opened,
    run_all,
    write_notebook,
)
from workbench.config import BoostConfig
from workbench.study import read_result

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(400)]

# Deep enough for the ten groups that freezing has by default, and with BatchNorms to remove: many plans differ.
TASK = normalised_task_of_the_readme().replace(
    "torch.nn.ReLU(), ",
    "torch.nn.ReLU(), *(part for _ in range(9) for part in (torch.nn.Linear(128, 128), torch.nn.BatchNorm1d(128))), ",
)
_TRIALS_SHOWN = """(plot) => new Set((plot.calcdata ?? []).map((points) => points[0].trace)
  .flatMap((trace) => [...(trace.customdata ?? [])].map((carried) => carried[0] ?? carried))).size"""
_NAMES = "(plot) => (plot._fullData ?? []).map((trace) => trace.name)"


def figure(tune: Locator, title: str) -> Locator:
    """Return the figure whose axes or legend say something."""
    return tune.locator(".js-plotly-plot").filter(has=tune.page.get_by_text(title).first).first


def wait_for_trials(tune: Locator, least: int) -> None:
    """Wait until the plane shows so many trials, O0 among them."""
    plane = figure(tune, "Speed: time of O0").element_handle()
    tune.page.wait_for_function(f"([plot, least]) => ({_TRIALS_SHOWN})(plot) >= least", arg=[plane, least])


def test_from_start_to_a_chosen_trial(lab: Lab, view: View) -> None:
    write_notebook(lab, "tune", TASK, "from workbench import Workbench\n\ntorch.set_num_threads(1)\nWorkbench(task)")
    workbench = run_all(view.page, lab, "tune")
    tune = opened(workbench, "Tune")
    expect(control(tune, "How long may the search take?")).to_be_visible()
    expect(control(tune, "How much may the metric drop?")).to_be_visible()
    open_section(tune, "Study")
    control(tune, "Objective").get_by_role("combobox").select_option(label="boost methods: metric and step time")
    enter(control(tune, "Trials").get_by_role("textbox"), "5")
    enter(control(tune, "Steps per trial").get_by_role("textbox"), "24")
    open_section(tune, "More")
    for title, number in {"Confirmation seeds, least": 2, "Confirmation seeds, most": 2, "Candidates": 1}.items():
        enter(control(tune, title).get_by_role("textbox"), str(number))
    tune.get_by_role("button", name="Start", exact=True).click()
    badge = tune.locator(".wb-badge")
    expect(badge).to_contain_text("running")

    wait_for_trials(tune, 2)
    tune.get_by_role("button", name="Stop", exact=True).click()
    expect(badge).to_contain_text("stopped", timeout=A_RUN)
    expect(tune.get_by_text("stopped; everything finished is kept")).to_be_visible()
    folder = lab.folder / "notebooks" / "studies" / "mine"
    before = [trial for trial in read_result(folder).trials if trial.state == "complete"]
    assert 2 <= len(before) < 6, "it was stopped between O0 and the last trial"

    tune.get_by_role("button", name="Continue", exact=True).click()
    wait_for_trials(tune, len(before))
    expect(badge).to_contain_text("done", timeout=A_RUN)
    expect(tune.get_by_text(re.compile(r"5 trials in \d"))).to_be_visible()
    study = read_result(folder)
    numbers = {trial.number for trial in before}
    assert [trial for trial in study.trials if trial.number in numbers] == before, "what was finished is kept"
    expect(tune.get_by_text("boost_config.o1.json").first).to_be_visible()

    within = [trial for trial in study.trials if trial.number and trial.state == "complete"]
    chosen = max(within, key=lambda trial: (1 / trial.relative_step_time, trial.number))  # an end of the Pareto front
    click_point(figure(tune, "Speed: time of O0"), chosen.number)
    expect(tune.get_by_role("region", name=f"Trial {chosen.number}", exact=True)).to_be_visible()
    row = tune.locator(f".wbt-box tr[data-number='{chosen.number}']")
    expect(row).to_have_attribute("aria-selected", "true")  # the table of trials goes along
    curves = figure(tune, "Training loss")
    expect(curves).to_be_visible()
    names = curves.evaluate(_NAMES)
    assert set(names) == {"O0", f"trial {chosen.number}"}, "its curves are laid over those of O0"
    tune.get_by_role("button", name="Importance", exact=True).click()
    expect(tune.get_by_text("Importance (%)")).to_be_visible()

    configure = opened(workbench, "Configure")
    assert BoostConfig.from_dict(document_of(configure)) == BoostConfig.from_dict(dict(chosen.config))

    accumulates = configure.get_by_role("checkbox", name="Gradient accumulation")
    configure.get_by_role("button", name="Set micro-batches per update to 2 and switch it on").click()
    expect(accumulates).to_be_checked()  # an edit, and a way out of a dead end
    opened(workbench, "Tune").get_by_role("button", name="Overview", exact=True).click()
    for answer in ("Leave it", "Replace my edits"):
        tune = opened(workbench, "Tune")
        click_point(figure(tune, "Speed: time of O0"), chosen.number)
        question = tune.get_by_text(f"Trial {chosen.number} would replace your edits of the configuration")
        expect(question).to_be_visible()
        expect(
            tune.get_by_role("region", name=f"Trial {chosen.number}", exact=True)
        ).to_be_visible()  # it can be looked at all the same
        tune.get_by_role("button", name=answer, exact=True).click()
        expect(question).to_be_hidden()
        opened(workbench, "Configure")
        expect(accumulates).to_be_checked(checked=answer == "Leave it")
    assert BoostConfig.from_dict(document_of(configure)) == BoostConfig.from_dict(dict(chosen.config))
    workbench.get_by_role("button", name="Undo", exact=True).click()
    expect(accumulates).to_be_checked()

    add_and_run_cell(view.page, "from workbench.panels import StudyPanel\n\nStudyPanel('studies/mine')")
    again = view.page.locator(".wb-panel").filter(has_text="5 trials; its answer is shown").last
    wait_for_trials(again, 5)  # from the storage, without training
