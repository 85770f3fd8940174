"""The report of a study: complete, safe, self-contained."""

from __future__ import annotations

import base64
import gzip
import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from unittest.mock import Mock

import pytest
from plotly.offline import get_plotlyjs

from tests.reports.synthetic_study import HOSTILE, PARTS, candidate, fastest_study, full_sources, full_study
from workbench.config import BoostConfig
from workbench.core.records import Choice, ExportedScript, GainPart, StudyResult, TunedPlain, Verdict
from workbench.figures import RunCurve, loss_curves_figure
from workbench.report import Sources, study_report, study_report_html, write_study_report
from workbench.report.page import packed_plotly
from workbench.report.trial_data import trial_data

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SECTIONS = ["speed", "candidates", "history", "trials", "loss-scale", "exponents", "freezing"]
SECTIONS += ["exports", "use", "reproduce"]
FIGURES = ["speed-accuracy", "history", "importance", "curves", "loss-scale", "replay", "exponents", "freezing"]
FIGURES += ["slice-0", "slice-1", "trials-curves"]
VOID = {"meta", "img", "br", "line", "circle"}


class _Page(HTMLParser):
    """What a browser makes of a page: ids, loaded addresses, visible text, balance of tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: Counter[str] = Counter()
        self.loaded: list[str] = []
        self.tags: Counter[str] = Counter()
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name == "id" and value:
                self.ids[value] += 1
            if name in {"src", "data", "poster", "srcset"} or (name == "href" and tag != "a"):
                self.loaded.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in {"script", "style"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def page_of(study: StudyResult) -> _Page:
    """Return the page of a study that has recorded nothing."""
    return _Page(study_report_html(study, Sources(dict.fromkeys(study.exported, BoostConfig()), None, None)))


def page_of_full(**changed: Any) -> _Page:
    """Return the page of a study with every part but for what is changed."""
    return _Page(study_report_html(replace(full_study(), **changed), full_sources()))


@pytest.fixture(scope="module")
def html() -> str:
    return study_report_html(full_study(), full_sources())


@pytest.fixture(scope="module")
def page(html: str) -> _Page:
    return _Page(html)


def test_the_fastest_set_up_is_told_with_its_headline_its_parts_and_its_references() -> None:
    study = fastest_study(attribution={"o1": (*PARTS, GainPart("freezing", 0.97, 0.88, 1.07))})
    page = page_of(study)
    assert page.ids["figure-attribution-o1"] == page.ids["gains"] == page.ids["left-out"] == 1
    assert page.open == []
    for told in (
        study.headlines["o1"],
        "2.00 x as fast, 0.1 points worse",
        "Speed per run",
        "batch x 4 Its runs do not bound the factor. 1.25 x not measured by itself –",
        "freezing no sure effect: its interval includes 1 0.97 x 0.88 to 1.07",
        "all together whole runs of trial 7; the parts multiply to 1.94 x, whole runs were measured at 2.00 x 2.00 x",
        "2.00 x 1.80 to 2.25 –",
        "task as given",
        "1.25 x the export is 1.60 x as fast (1.50 to 1.70)",
        "torch.compile: it does not pay for itself within the time.",
    ):
        assert told in page.text, told
    assert "per step" not in page.text.lower()


def test_tuned_plain_that_was_not_tried_is_not_said_to_be_found() -> None:
    page = page_of(fastest_study(tuned_plain={"o1": TunedPlain("not tried", {}, math.nan)}))
    assert "not tried a tuned length and learning rate and nothing else unknown unknown" in page.text
    assert "0 runs" not in page.text


def test_two_exports_with_the_same_parts_are_told_once() -> None:
    targets, choice = ("o1", "o2"), fastest_study().choices["o1"]
    page = page_of(
        fastest_study(
            choices={target: replace(choice, target=target) for target in targets},
            exported={target: Path(f"boost_config.{target}.json") for target in targets},
            attribution=dict.fromkeys(targets, PARTS),
        )
    )
    assert [page.ids[f"figure-attribution-{target}"] for target in targets] == [1, 0]
    assert "The same as for o1." in page.text


def test_every_section_and_every_figure_is_there_once_and_no_parts_of_another_objective(page: _Page) -> None:
    assert page.ids["gains"] == 0
    assert "where the gain comes from" not in page.text
    for name in SECTIONS + [f"figure-{figure}" for figure in FIGURES]:
        assert page.ids[name] == 1, name
    assert max(page.ids.values()) == 1
    assert page.open == []


def test_nothing_is_loaded_from_anywhere(page: _Page, html: str) -> None:
    assert page.loaded == []
    assert "default-src 'none'" in html
    assert "connect-src 'none'" in html
    assert "@import" not in html


def test_the_page_is_small_and_has_the_plotly_that_its_figures_were_made_for(html: str) -> None:
    assert len(html.encode()) <= 1_500_000
    version = re.compile(r"plotly\.js (?:\([a-z -]+\) )?v([\d.]+)")
    (ours,) = version.findall(gzip.decompress(base64.b64decode(packed_plotly())).decode()[:200])
    (theirs,) = version.findall(get_plotlyjs()[:200])
    assert ours == theirs, "see workbench/report/page.py for how the packed file is made"


def test_a_name_cannot_become_markup(page: _Page) -> None:
    assert page.tags["img"] == 0
    # plotly.js, the page's module, and the data of each figure and of the table of trials: no more than we wrote.
    assert page.tags["script"] == 3 + len(FIGURES)
    assert HOSTILE in page.text
    assert page.text.count('alert("x")') >= 5
    assert page.tags["details"] == 2  # two files


@pytest.mark.parametrize(
    "sentence",
    [
        "trial 1 (freezing). At most 0.4 points.",
        "Where accuracy may be worse by 3 points at most.",
        "1.50 x the speed of O0",
        *("✓ confirmed", "? undecided", "✗ refuted"),
        "frozen steps: 30 %",
        *('boost_level="O1"', "Model does not read the file"),  # what MindSpore's users pass
        '"freeze_p": 0.3',  # the exported file as written
    ],
)
def test_the_page_answers_and_says_how_to_use_the_answer(page: _Page, sentence: str) -> None:
    assert sentence in page.text


def test_an_export_without_candidate_says_its_frozen_steps() -> None:
    assert "Frozen steps: 70 %." in page_of_full(candidates=[], choices={}).text  # the exported freeze_p is 0.3


def test_the_page_shows_the_choice_and_no_other_winner() -> None:
    fast, sure = candidate(Verdict.UNDECIDED, label="trial 7", speedup=2.0), candidate()
    told = ("trial 1 (freezing). Confirmed: faster.", "Not trial 7 (freezing). Undecided.", "1.42 x")
    chosen = {"o1": Choice("o1", sure, told[0], (told[1],))}
    html = study_report_html(replace(full_study(), candidates=[fast, sure], choices=chosen), full_sources())
    page = _Page(html)
    assert [sentence for sentence in told if sentence not in page.text] == []
    assert "Exported: trial 1" in html  # title of the figure
    for claim in ("Trial 7 is", "best so far", "unchecked"):
        assert claim not in html
    rows = html.split('id="candidates"')[1].split("</section>")[0].split("<tr>")
    assert ["exported" in row for row in rows if "strong" in row] == [False, True]


def test_o0_is_an_answer_with_its_reason_and_no_empty_section() -> None:
    told = "O0 is exported: no set-up was faster than O0 within the allowed drop of 0.005; 11 set-ups were tried."
    study = replace(full_study(), candidates=[], choices={"o1": Choice("o1", None, told)})
    html = study_report_html(study, replace(full_sources(), recording=None, freezing=None))
    page = _Page(html)
    assert told in page.text
    assert "keep training as you do today" in page.text
    assert "boost_config_dict" not in page.text  # nor how to apply what does nothing
    assert "Exported: O0, as nothing is surely faster and as good" in html  # title of the figure
    for name in ("candidates", "loss-scale", "exponents", "freezing"):
        assert page.ids[name] == 0
    assert "Not part of this study: candidates, loss scale, gradients in float16, freezing schedule." in page.text


def test_the_reference_is_o0_over_the_seeds_of_the_confirmation_and_parts_that_make_another_total_say_so() -> None:
    taken = candidate(label="trial 7", trial_number=7, speedup=1.5, metrics=((0.90, 0.91), (0.94, 0.92), (0.92, 0.93)))
    page = page_of(fastest_study(candidates=[taken], choices={"o1": Choice("o1", taken, "trial 7.")}))
    assert "what everything is compared with 1.00 x 92.00 %" in page.text
    assert "the parts multiply to 2.00 x, whole runs were measured at 1.50 x" in page.text


def test_missing_parts_have_no_section_and_need_no_plotly() -> None:
    html = study_report_html(StudyResult("Empty", Path("empty"), "task", "loss", False, "speed", 0, []), Sources())
    page = _Page(html)
    for name in SECTIONS:
        assert page.ids[name] == (name in {"use", "reproduce"})
    for sentence in ("Nothing has been exported yet", "Not part of this study: speed", "The hardware was not recorded"):
        assert sentence in page.text
    assert page.tags["script"] == 0
    assert len(html) < 40_000


def test_the_report_replaces_an_older_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")
    assert write_study_report(path, full_study(), full_sources()) == path
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def wait_until(view: Page, condition: str) -> None:
    """Wait for a condition in JavaScript; the page's policy forbids the ``eval`` that Playwright would wait with."""
    for _ in range(1200):
        if view.evaluate(condition):
            return
        view.wait_for_timeout(50)
    raise AssertionError(f"it has not come true in a minute: {condition}")


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width", "other_width"), [("light", 1300, 900), ("dark", 900, 1300)])
def test_a_real_browser_draws_it_without_a_complaint(
    chromium: Browser, html: str, tmp_path: Path, scheme: Literal["light", "dark"], width: int, other_width: int
) -> None:
    path = tmp_path / "report.html"
    path.write_text(html, encoding="utf-8")
    complaints: list[str] = []
    requests: list[str] = []
    view = chromium.new_page(viewport={"width": width, "height": 1000}, color_scheme=scheme)
    view.on("console", lambda message: complaints.append(message.text))
    view.on("pageerror", lambda error: complaints.append(str(error)))
    view.on("dialog", lambda dialog: complaints.append(dialog.message))
    view.on("request", lambda request: requests.append(request.url))
    view.goto(path.as_uri())
    wait_until(view, f"document.querySelectorAll('.plot .main-svg .gtitle').length >= {len(FIGURES)}")
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    view.set_viewport_size({"width": other_width, "height": 1000})
    wait_until(view, f"document.documentElement.scrollWidth <= {other_width}")
    page_colour = view.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = view.evaluate("getComputedStyle(document.querySelector('.gtitle')).fill")
    view.get_by_text("boost_config.o1.json").last.scroll_into_view_if_needed()
    view.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    light = ("rgb(255, 255, 255)", "rgb(31, 35, 40)")
    assert (page_colour, ink) == light if scheme == "light" else page_colour != light[0] and ink != light[1]


def test_a_warm_up_is_told_and_moves_the_learning_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = Mock(side_effect=loss_curves_figure)
    monkeypatch.setattr(study_report, "loss_curves_figure", drawing)
    study = full_study()
    plain, warm = study.trials[6], replace(study.trials[7], warm_up_steps=96)
    study = replace(study, trials=[study.trials[0], plain, warm])
    study_report_html(study, full_sources())
    drawn: list[RunCurve] = [curve for call in drawing.call_args_list for curve in call.args[0]]
    notes = [row["notes"] for row in trial_data(study)["trials"]]
    assert notes[:2] == [[], []]
    assert "After a warm-up of 96 batches of O0" in notes[2][0]
    curve = next(curve for curve in drawn if curve.label == f"trial {warm.number}")
    began = [step * warm.relative_step_time for step, _ in curve.evaluations]
    assert began == pytest.approx([96 + step * warm.relative_step_time for step, _ in warm.curve], abs=0.5)


def test_a_script_is_offered_with_a_button_that_copies_it() -> None:
    script = ExportedScript("torch", "o1", "train_torch_o1.py", f"print({HOSTILE!r})", "it needs nothing of workbench")
    page = study_report_html(replace(full_study(), scripts=(script,)), full_sources())
    assert page.count('<button type="button" class="copy">') == len(full_sources().exported) + 1
    assert page.count("async function copy(button") == 1
    for told in ("train_torch_o1.py", "torch; it needs nothing of workbench", "--as torch"):
        assert told in page
    assert HOSTILE not in page
