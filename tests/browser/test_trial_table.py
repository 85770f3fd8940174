"""The table of trials in a report: sorted, filtered, opened by mouse and keyboard, and linked with the figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Lab, View, watched_page
from tests.browser.notebook_page import add_and_run_cell
from tests.kit.fake_runner import SHORT, make_fake, write_study
from tests.reports.synthetic_study import full_sources, full_study
from workbench.config import BoostConfig
from workbench.core.records import StudyResult, TrialRecord
from workbench.report import study_report_html
from workbench.study import read_result, tune

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

OFF = BoostConfig().to_dict()


def trial(number: int) -> TrialRecord:
    """Return a trial that differs from O0 by its batches; every fourth is beyond the drop, the last has failed."""
    if number == 59:
        return TrialRecord(number, "failed", "O1", config=OFF, message="the loss became NaN at step 31")
    config = BoostConfig.from_dict({"batch": {"factor": 4.0 if number % 2 else 2.0}} if number else {}).to_dict()
    return TrialRecord(
        number, "complete", "O1" if number else "O0", {"batch.factor": config["batch"]["factor"]} if number else {},
        config, f"batch number {number}" if number else "nothing switched on", 1.0 / (1.0 + 0.01 * number),
        0.97, 0.1 if number % 4 == 3 else 0.0, 0.005, 1.0 / (1.0 + 0.01 * ((number * 7) % 60)),
        feasible=number % 4 != 3, curve=((10, 0.5), (20, 0.9), (30, 0.97)), run_path=f"runs/{number}",
    )  # fmt: skip


def study() -> StudyResult:
    return replace(full_study(), trials=[trial(number) for number in range(60)])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(study_report_html(study(), full_sources()), encoding="utf-8")
    return path


@pytest.fixture
def page(reader: BrowserContext, report: Path) -> Iterator[Page]:
    with watched_page(reader) as seen:
        seen.page.set_default_timeout(20_000)
        seen.page.goto(report.as_uri())
        expect(rows(seen.page).first).to_be_visible()
        yield seen.page


def rows(page: Page | Locator) -> Locator:
    return page.locator(".wbt-box tbody tr")


def numbers(page: Page | Locator) -> list[int]:
    return [int(row) for row in rows(page).evaluate_all("rows => rows.map(row => row.dataset.number)")]


def test_its_columns_are_chosen_the_keyboard_goes_through_it_and_it_is_filtered_and_sorted(page: Page) -> None:
    expect(page.get_by_role("columnheader", name="batch.factor")).to_have_count(0)
    page.locator(".wbt-columns summary").click()
    page.get_by_role("checkbox", name="batch.factor").check()
    expect(page.get_by_role("columnheader", name="batch.factor")).to_be_visible()
    expect(rows(page).nth(1).get_by_role("cell", name="4", exact=True)).to_be_visible()

    rows(page).first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    opened = page.get_by_role("region", name="Trial 2", exact=True)
    expect(opened).to_be_focused()
    page.keyboard.press("Escape")
    expect(opened).to_be_hidden()
    expect(rows(page).nth(2)).to_be_focused()
    page.keyboard.press("PageDown")
    assert numbers(page)[0] == 25

    asked = page.locator(".wbt-controls")
    asked.get_by_role("checkbox", name="within the allowed drop").check()
    assert all(number % 4 != 3 for number in numbers(page))
    expect(page.locator(".wbt-count")).to_have_text("45 of 60 trials")
    asked.get_by_role("checkbox", name="within the allowed drop").uncheck()
    asked.get_by_role("combobox", name="State").select_option(label="failed (1)")
    assert numbers(page) == [59]
    asked.get_by_role("combobox", name="State").select_option("")
    asked.get_by_role("combobox", name="Part in effect").select_option(index=1)
    assert 0 not in numbers(page)
    asked.get_by_role("combobox", name="Part in effect").select_option("")
    asked.get_by_role("combobox", name="Level").select_option(label="O0 (1)")
    assert numbers(page) == [0]
    asked.get_by_role("combobox", name="Level").select_option("")
    asked.get_by_label("Search trials").fill("number 42")
    assert numbers(page) == [42]
    asked.get_by_label("Search trials").fill("")

    assert numbers(page) == list(range(25))
    speed = page.get_by_role("button", name="Speed per step")
    speed.click()
    fastest = sorted(range(59), key=lambda number: (-((number * 7) % 60), number))
    assert numbers(page) == fastest[:25]
    expect(page.locator(".wbt-box").get_by_role("columnheader", name="Speed per step")).to_have_attribute(
        "aria-sort", "descending"
    )
    speed.click()
    assert numbers(page)[:3] == sorted(range(59), key=lambda number: (number * 7) % 60)[:3]
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Next").click()
    assert numbers(page)[-1] == 59  # it failed, and has no speed
    expect(page.get_by_text("51 to 60 of 60")).to_be_visible()


def test_a_row_opens_its_trial_and_files_are_downloaded_under_their_names_and_copied(
    page: Page, tmp_path: Path
) -> None:
    rows(page).nth(2).click()
    opened = page.get_by_role("region", name="Trial 2", exact=True)
    expect(opened.get_by_role("heading", name="Trial 2, within the allowed drop")).to_be_visible()
    expect(opened.get_by_role("img")).to_have_attribute(
        "aria-label", "Accuracy (%) against batches: O0, trial 1, trial 2"
    )
    expect(opened.locator("circle.wbt-own")).to_have_count(3)
    expect(opened.get_by_role("region", name="Differences").get_by_role("row")).to_have_text(
        ["SettingTrial 2Trial 1", "batch.factor24"]
    )
    expect(opened.get_by_text("runs/2")).to_be_visible()
    opened.get_by_text("Configuration", exact=True).click()
    with page.expect_download() as downloaded:
        opened.get_by_role("button", name="Download boost_config.trial2.json").click()
    path = tmp_path / "downloaded.json"
    downloaded.value.save_as(path)
    assert BoostConfig.from_json(path) == BoostConfig.from_dict({"batch": {"factor": 2.0}})
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.get_by_role("button", name="Copy").click()
    expect(opened.get_by_role("button", name="Copied")).to_be_visible()
    assert json.loads(opened.locator("pre").inner_text())["batch"]["factor"] == 2.0
    opened.get_by_role("button", name="Close trial 2").click()
    expect(opened).to_be_hidden()

    for target in ("o1", "o2"):
        exported = page.locator("#exports details").filter(has_text=f"boost_config.{target}.json")
        exported.locator("summary").click()
        with page.expect_download() as downloaded:
            exported.get_by_role("button", name="Download").click()
        assert downloaded.value.suggested_filename == f"boost_config.{target}.json"
        path = tmp_path / f"{target}.json"
        downloaded.value.save_as(path)
        assert BoostConfig.from_json(path) == full_sources().exported[target]


def test_a_point_of_the_figure_opens_its_row_and_a_row_marks_its_points(page: Page) -> None:
    figure = page.locator("#figure-history")
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".point").nth(40)).to_be_attached()
    rows(page).nth(5).click()
    marked = (
        "gd => gd.data.filter(trace => trace.customdata)"
        ".flatMap(trace => (trace.selectedpoints ?? []).map(i => trace.customdata[i][0]))"
    )
    for name in ("history", "speed-accuracy"):
        assert page.locator(f"#figure-{name} .js-plotly-plot").evaluate(marked) == [5]
    page.get_by_role("checkbox", name="within the allowed drop").check()
    figure.scroll_into_view_if_needed()
    at = figure.locator(".js-plotly-plot").evaluate(
        "gd => { const r = gd.getBoundingClientRect(), l = gd._fullLayout;"
        " const t = gd.calcdata.flat().find(p => p.data?.[0] === 43);"
        " return [r.x + l.xaxis._offset + l.xaxis.d2p(43), r.y + l.yaxis._offset + l.yaxis.d2p(t.y)] }"
    )
    page.mouse.move(at[0], at[1])
    page.mouse.click(at[0], at[1])
    expect(page.get_by_role("region", name="Trial 43", exact=True)).to_be_visible()  # though a filter hid its row
    expect(page.locator("tr[aria-selected=true]")).to_have_attribute("data-number", "43")


def test_on_a_narrow_page_and_on_a_telephone_only_the_table_scrolls_sideways(page: Page) -> None:
    page.set_viewport_size({"width": 660, "height": 900})
    box = page.locator(".wbt-box")
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth"), "the usual columns fit"
    page.locator(".wbt-columns summary").click()
    for column in page.locator(".wbt-menu input:enabled").all():
        column.check()
    assert box.evaluate("box => { box.scrollLeft = 1e6; return box.scrollLeft }") > 100
    first, edge = rows(page).nth(0).get_by_role("rowheader").bounding_box(), box.bounding_box()
    assert first is not None
    assert edge is not None
    assert first["x"] == pytest.approx(edge["x"] + 1)  # the border

    page.set_viewport_size({"width": 420, "height": 900})
    page.emulate_media(color_scheme="dark")
    page.goto(page.url)
    rows(page).nth(1).click()
    for toggle in page.locator("main summary").all():
        toggle.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")


@pytest.mark.slow
def test_five_thousand_trials_are_sorted_at_once_in_a_page_of_its_size(view: View, tmp_path: Path) -> None:
    many = [replace(trial(number % 59), number=number) for number in range(5000)]
    path = tmp_path / "report.html"
    text = study_report_html(replace(study(), trials=many), full_sources())
    assert len(text.encode()) <= 1_500_000
    path.write_text(text, encoding="utf-8")
    view.page.goto(path.as_uri())
    expect(view.page.get_by_text("5000 trials")).to_be_visible()
    took = view.page.evaluate(
        "() => { const begun = performance.now();"
        " document.querySelector('.wbt-box th:nth-child(3) button').click(); return performance.now() - begun }"
    )
    assert math.isfinite(took)
    assert took < 1000.0  # a tenth of that on an idle machine
    assert len(numbers(view.page)) == 25


def test_the_tune_tab_has_the_same_table_and_takes_a_trial_from_it(lab: Lab, notebook: View) -> None:
    folder = write_study(lab.folder / "notebooks" / "found", SHORT)
    tune(folder, make_experimenter=make_fake)
    source = "from pathlib import Path\n\nStudyPanel(Path('found'))"
    panel = add_and_run_cell(notebook.page, source).locator(".wb-panel").first
    expect(rows(panel).first).to_be_visible()
    assert len(numbers(panel)) == len(read_result(folder).trials)
    row = panel.locator(".wbt-box tr[data-number='1']")
    row.click()
    opened = panel.get_by_role("region", name="Trial 1", exact=True)
    opened.get_by_role("button", name="Use this configuration").click()
    expect(panel.get_by_text("trial 1 is in the configuration now")).to_be_attached()
    note = opened.get_by_label("Note", exact=True)
    note.fill("worth a run on all data")
    opened.get_by_role("button", name="Keep note").click()
    expect(row.get_by_label("has a note")).to_be_visible()
    assert read_result(folder).trials[1].note == "worth a run on all data"
