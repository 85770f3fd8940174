"""The page of ``workbench view``: it follows a study without reloading, and lays runs over each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import View
from tests.kit import processes
from tests.kit.fake_runner import STUDY, FakeRunner, write_study
from tests.view.conftest import Visitor, record_run, served
from workbench.study import tune
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import UNMONITORED, Job, Monitor, TrainJob

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

Visit = Callable[[Path], Visitor]


@pytest.fixture
def visit() -> Iterator[Visit]:
    yield from served()


class Patient(FakeRunner):
    """Begins the second half of the trials once somebody has seen the first."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if isinstance(job, TrainJob) and job.run_id >= "trial_0004":
            processes.wait_until((self.directory / "seen").exists)
        return super().run(job, monitor)


def make_patient(file: StudyFile, directory: Path) -> FakeRunner:
    return Patient(directory, seconds=0.01)


def tune_slowly(folder: Path) -> None:
    tune(folder, make_experimenter=make_patient)


def drawn_lines(page: Page) -> int:
    """Return how many curves of losses the overlay shows."""
    count = page.locator("#overlaid .js-plotly-plot").evaluate(
        "gd => gd.data.filter(trace => trace.mode === 'lines').length"
    )
    return int(count)


def test_a_study_is_followed_without_reloading_and_says_when_it_has_ended(
    view: View, visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.view.pages._PAUSE", 0.5)
    short = STUDY.replace("n_trials = 10", "n_trials = 8").replace("candidates = 2", "candidates = 1")
    folder = write_study(tmp_path / "mine", re.sub(r"(seeds_m\w+) = \d", r"\1 = 2", short))
    page = view.page
    page.goto(visit(folder).server.address)
    expect(page.get_by_text("This study has not begun")).to_be_visible()
    page.evaluate("() => { globalThis.neverReloaded = true }")
    process = processes.start(tune_slowly, folder)
    try:
        rows = page.locator(".wbt-box tbody tr")
        expect(rows.nth(2)).to_be_visible(timeout=90_000)
        expect(page.locator("#live-state")).to_have_text(re.compile(r"Live: search, \d+ of 8 trials finished"))
        page.get_by_role("button", name="Trial", exact=True).click()
        page.get_by_role("button", name=re.compile("^Trial")).click()  # the newest first
        page.locator("tr[data-number='0']").click()
        page.locator(".wbt-columns summary").click()
        page.get_by_label("Took").check()
        page.get_by_label("Search trials").fill("trial")
        page.locator(".wbt-config summary").click()
        before = rows.count()
        (folder / "seen").touch()
        expect(rows).not_to_have_count(before, timeout=60_000)  # a new trial came by itself
        expect(page.get_by_role("region", name="Trial 0", exact=True)).to_be_visible()
        expect(page.locator(".wbt-config")).to_have_attribute("open", "")  # as the reader left it
        expect(page.get_by_label("Search trials")).to_have_value("trial")
        expect(page.get_by_role("columnheader", name="Took")).to_be_visible()
        assert page.locator(".wbt-box th[aria-sort]").first.get_attribute("aria-sort") in {"ascending", "descending"}
        expect(page.locator("#live-state")).to_have_text(re.compile("This study has ended; 8 of 8"), timeout=120_000)
        expect(page.locator(".answer .big").first).to_be_visible()
        expect(page.locator("#figure-speed-accuracy .main-svg").first).to_be_attached()
        assert page.evaluate("() => globalThis.neverReloaded")
    finally:
        processes.kill(process)


def test_runs_are_chosen_smoothed_and_drawn_over_o0(view: View, visit: Visit, tmp_path: Path) -> None:
    for name, level in (("20260101-a", "O0"), ("20260102-b", "O1"), ("20260103-c", "O1")):
        record_run(tmp_path / "runs", name, level=level)
    page = view.page
    page.set_viewport_size({"width": 420, "height": 900})
    page.goto(visit(tmp_path).server.address)
    title = page.locator("#overlaid .gtitle-subtitle")
    expect(title).to_have_text(re.compile("2 runs; the loss is a running mean over 16 steps"))
    expect(page.get_by_role("checkbox", name=re.compile("20260101-a.*O0"))).to_be_checked()
    assert drawn_lines(page) == 2
    page.get_by_role("checkbox", name=re.compile("20260102-b")).check()
    expect(title).to_have_text(re.compile("3 runs"))
    assert drawn_lines(page) == 3
    page.get_by_role("slider", name="Smoothing").fill("0")
    expect(title).to_have_text("3 runs")
    page.get_by_role("combobox", name="Against").select_option("seconds")
    expect(page.locator("#overlaid .x2title")).to_have_text("Time since the run began (s)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 420


def test_a_run_is_followed_and_its_configuration_is_taken_away(view: View, visit: Visit, tmp_path: Path) -> None:
    recorder = record_run(tmp_path, "one", finish=False)
    page = view.page
    page.goto(visit(tmp_path).server.address + "one/")
    expect(page.locator("#live-state")).to_have_text(re.compile("Live: 40 steps so far"))
    recorder.finish({"metric": 0.9, "metric_name": "accuracy", "higher_is_better": True})
    expect(page.locator("#live-state")).to_have_text("This run has ended.", timeout=30_000)
    with page.expect_download() as downloaded:
        page.get_by_role("button", name="Download", exact=True).click()
    assert downloaded.value.suggested_filename == "config.json"
    assert downloaded.value.path().read_text() == "{}\n"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    page.get_by_role("link", name=re.compile("↑")).click()
    expect(page.get_by_role("link", name="one")).to_be_visible()
