"""What a user gets wrong: a sentence in the panel, the traceback folded beneath, and the panel usable again."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View
from tests.browser.notebook_page import (
    control,
    document_of,
    enter,
    open_section,
    opened,
    run_all,
    set_steps,
    task_of_the_readme,
    write_notebook,
)

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

RAISING = """\
from workbench import Workbench

torch.set_num_threads(1)


def loss(model, batch):
    raise RuntimeError("the cable is out")


bad = Task(name="bad", model=task.model, loss=loss, optimizer=task.optimizer, train=batches, evaluate=batches,
           metric="loss")
Workbench(bad, out=None)"""


def test_what_cannot_be_used_is_refused_beside_its_field(lab: Lab, view: View) -> None:
    write_notebook(lab, "refused", "from workbench import Workbench\n\nWorkbench('digits-lenet')")
    configure = opened(run_all(view.page, lab, "refused"), "Configure")
    before = document_of(configure)
    open_section(configure, "Gradient freezing")
    share = control(configure, "Share of full steps")
    enter(share.get_by_role("textbox"), "half")
    expect(share.get_by_role("alert")).to_contain_text("grad_freeze.freeze_p must be a finite number in [0, 1)")
    assert document_of(configure) == before

    broken = lab.folder / "notebooks" / "broken.json"
    broken.write_text('{"boost": {"mode": "manual", "grad_freez": true}}')
    enter(configure.get_by_title("File that Save writes and Load reads"), "broken.json")
    configure.get_by_role("button", name="Load", exact=True).click()
    expect(configure.get_by_role("alert").filter(has_text="broken.json")).to_contain_text('did you mean "grad_freeze"?')
    text = configure.locator(".wb-json textarea")
    text.fill('{"boost": ')
    text.press("Tab")
    expect(configure.get_by_role("alert").filter(has_text="boost_config.json")).to_be_visible()
    text.fill('{"boost": {"mode": "disable_all"}}')
    text.press("Tab")
    expect(configure.get_by_role("alert")).to_have_count(0)
    assert document_of(configure)["boost"]["mode"] == "disable_all", "usable again at once"


@pytest.mark.long
def test_a_task_that_raises_at_its_first_step(lab: Lab, view: View) -> None:
    write_notebook(lab, "raising", task_of_the_readme(), RAISING)
    train = opened(run_all(view.page, lab, "raising"), "Train")
    set_steps(train, "many")
    train.get_by_role("button", name="Start", exact=True).click()
    refused = control(train, "Steps").get_by_role("alert")
    expect(refused).to_contain_text("steps must be a whole number, 1 or more")
    expect(train.locator(".wb-badge")).to_contain_text("idle")

    set_steps(train, 10)
    expect(refused).to_have_count(0)
    train.get_by_role("button", name="Start", exact=True).click()
    expect(train.locator(".wb-badge")).to_contain_text("failed")
    told = train.get_by_role("alert")
    expect(told).to_contain_text(re.compile("RuntimeError: the cable is out"))
    trace = told.locator("pre")
    expect(trace).to_be_hidden()
    told.get_by_text("Traceback", exact=True).click()
    expect(trace).to_be_visible()
    expect(trace).to_contain_text("in loss")
    expect(train.get_by_role("button", name="Start", exact=True)).to_be_enabled()
