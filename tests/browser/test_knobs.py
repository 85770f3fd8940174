"""Knobs: a moved slider is in the JSON and can be taken back, what is refused says why, a policy can be taken."""

from __future__ import annotations

import contextlib
import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import (
    add_and_run_cell,
    control,
    document_of,
    enter,
    open_section,
    opened,
    run_all,
    task_of_the_readme,
    write_notebook,
)

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

# In float16, from a scale far too large, growing soon: it overflows, which is what a replay needs.
OVERFLOWING = """\
from workbench import Workbench, train

config = {"amp": {"level": "O2", "dtype": "float16"}, "loss_scale": {"init": 2.0**24, "window": 20}}
train(task, config, level="O0", steps=120, out="overflowing", exponents_every=2)
app = Workbench(task, out="overflowing")
app"""


def test_what_is_chosen_is_in_the_json_is_taken_back_and_kept_by_name_and_what_cannot_be_says_why(
    lab: Lab, notebook: View
) -> None:
    workbench = add_and_run_cell(notebook.page, "Workbench('digits-resnet', out=None)").locator(".wb-panel").first
    configure = opened(workbench, "Configure")
    head = configure.get_by_role("button", name="Schedule", exact=True)
    for key, is_open in (("Enter", "true"), (" ", "false")):
        head.press(key)
        expect(head).to_have_attribute("aria-expanded", is_open)

    undo, redo = (workbench.get_by_role("button", name=name, exact=True) for name in ("Undo", "Redo"))
    expect(undo).to_be_disabled()
    open_section(configure, "Gradient freezing")
    share, box = control(configure, "Share of full steps"), configure.locator(".wb-json textarea")
    entry = share.get_by_role("textbox")
    expect(entry).to_have_accessible_name("Share of full steps")  # not its tooltip, which says what it means
    expect(entry).to_have_accessible_description(re.compile("Share of FULL steps"))
    before = box.input_value()
    for chosen in ("0.69", "0.68", "0.67"):
        share.get_by_role("slider").press("ArrowLeft")
        expect(share.get_by_role("slider")).to_have_css("outline-style", "solid")  # where the keyboard is, is seen
        expect(share.get_by_role("textbox")).to_have_value(chosen)
    expect(box).to_have_value(re.compile('"freeze_p": 0.67'))
    dragged = box.input_value()
    expect(share.get_by_text("frozen steps: 33 %")).to_be_visible()
    expect(configure.locator(".wb-table").get_by_text("grad_freeze.freeze_p")).to_be_visible()
    expect(undo).to_have_attribute("title", re.compile(r"grad_freeze\.freeze_p"))
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

    expect(configure.get_by_role("checkbox", name="AdaSum")).to_be_disabled()
    expect(configure.get_by_text("grad_freeze is asked for; switch grad_freeze off to use it")).to_be_visible()
    configure.get_by_role("button", name="O0", exact=True).click()
    expect(share.locator(".noUi-target")).to_have_attribute("disabled", "true")
    expect(share.get_by_role("textbox")).to_be_disabled()
    expect(share.get_by_text("not in effect: Gradient freezing is off")).to_be_visible()
    configure.get_by_role("button", name="O1", exact=True).click()
    expect(share.get_by_role("textbox")).to_be_enabled()
    chosen = document_of(configure)
    assert chosen["grad_freeze"]["freeze_p"] == 0.67, "switched off is not forgotten"

    enter(share.get_by_role("textbox"), "half")
    expect(share.get_by_role("alert")).to_contain_text("grad_freeze.freeze_p must be a finite number in [0, 1)")
    assert document_of(configure) == chosen
    broken = lab.folder / "notebooks" / "broken.json"
    broken.write_text('{"boost": {"mode": "manual", "grad_freez": true}}')
    enter(configure.get_by_title("File that Save writes and Load reads"), "broken.json")
    configure.get_by_role("button", name="Load", exact=True).click()
    expect(configure.get_by_role("alert").filter(has_text="broken.json")).to_contain_text('did you mean "grad_freeze"?')
    refused = configure.get_by_role("alert").filter(has_text="boost_config.json")
    for _ in range(20):
        box.fill('{"boost": ')
        with contextlib.suppress(AssertionError):  # an answer that was still under way may put the file back
            expect(refused).to_be_visible(timeout=3_000)
            break
    box.press("Tab")
    expect(refused).to_be_visible()
    box.fill('{"boost": {"mode": "disable_all"}}')
    box.press("Tab")
    expect(configure.get_by_role("alert")).to_have_count(0)
    assert document_of(configure)["boost"]["mode"] == "disable_all", "usable again at once"


@pytest.mark.long
def test_replay_answers_the_sliders_and_its_policy_goes_into_the_configuration(lab: Lab, view: View) -> None:
    write_notebook(lab, "replay", task_of_the_readme(), OVERFLOWING)
    workbench = run_all(view.page, lab, "replay")
    scale = opened(workbench, "Loss scale")
    runs = scale.get_by_title("Recorded run")
    expect(runs.locator("option")).to_have_count(1)
    assert runs.locator("option").evaluate("line => line.scrollWidth <= line.clientWidth"), "it can be read to its end"
    runs.select_option(index=0)
    expect(scale.locator(".wb-badge")).to_contain_text("done")
    prediction = scale.get_by_text(re.compile(r"overflows? in 120 updates .*The recorded run had \d+ overflow"))
    expect(prediction).to_be_visible()
    recorded = prediction.inner_text()

    initial = control(scale, "Initial scale")
    for _ in range(8):
        initial.get_by_role("slider").press("ArrowLeft")
    expect(initial.get_by_role("textbox")).to_have_value("2^16")
    expect(prediction).to_contain_text("2¹⁶")
    assert prediction.inner_text() != recorded
    expect(scale.locator(".js-plotly-plot").first.locator(".scatterlayer .trace")).not_to_have_count(1)

    scale.get_by_role("button", name="Use this policy", exact=True).click()
    expect(scale.get_by_text("The configuration has it now").first).to_be_visible()
    document = document_of(opened(workbench, "Configure"))
    assert (document["loss_scale"]["init"], document["loss_scale"]["window"]) == (2.0**16, 20)
