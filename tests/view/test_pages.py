"""What a page shows of a run, a folder and a study, and when it is a new one."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from tests.kit.fake_runner import SHORT, make_fake, write_study
from tests.view.conftest import Visitor, record_run
from workbench.core.records import StepRecord
from workbench.runs import RunRecorder
from workbench.study.answer.result import read_result
from workbench.study.run.search_and_confirm import tune
from workbench.study.store.status_file import stamp_of, write_status
from workbench.study.store.storage import default_storage, open_storage

Visit = Callable[[Path], Visitor]


@pytest.fixture(autouse=True)
def without_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a page again at once: it rests some times as long as it took to make, which may be seconds."""
    monkeypatch.setattr("workbench.view.pages._PAUSE", 0.0)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study that has run to its end, to be copied."""
    folder = write_study(tmp_path_factory.mktemp("ended") / "mine", SHORT)
    tune(folder, make_experimenter=make_fake)
    return folder


def version_of(page: str) -> str:
    found = re.search(r'<main data-version="(\w+)"', page)
    assert found is not None
    return found.group(1)


def test_a_run_shows_its_curves_its_events_and_its_configuration(tmp_path: Path, visit: Visit) -> None:
    record_run(tmp_path, "one")
    status, page = visit(tmp_path / "one").get("")
    assert status == 200
    for said in ("This run has ended.", 'id="figure-curves"', "accuracy 0.9", 'data-name="config.json"', "90.00"):
        assert said in page, said
    assert "figure-loss-scale" not in page  # float32 has none
    assert 'href="../"' not in page  # what is above the served folder is not shown


@pytest.mark.parametrize("environment", [{}, {"task": "clicks"}], ids=str)
def test_a_run_shows_itself_though_whoever_recorded_it_said_little(
    tmp_path: Path, visit: Visit, environment: dict[str, str]
) -> None:
    """As the recorder of the guide to online training."""
    with RunRecorder.create(tmp_path, {}, environment, "one") as recorder:
        recorder.write([StepRecord(step, step * 0.01, 10.0, 1.0) for step in range(5)])
    status, page = visit(tmp_path / "one").get("")
    assert status == 200
    assert ("clicks" in page) is bool(environment)


def test_a_diverged_run_does_not_call_its_last_good_loss_that_of_the_last_step(tmp_path: Path, visit: Visit) -> None:
    with RunRecorder.create(tmp_path, {}, {}, "one") as recorder:
        recorder.write([StepRecord(step, step * 0.01, 10.0, loss) for step, loss in enumerate((0.8, 0.442, math.nan))])
    page = visit(tmp_path / "one").get("")[1]
    assert "of the last step" not in page
    assert re.search(r"0\.442.*the last before it was NaN", page, re.DOTALL)


def test_a_run_that_goes_on_is_news_when_it_has_more_steps(tmp_path: Path, visit: Visit) -> None:
    recorder = record_run(tmp_path, "one", finish=False)
    visitor = visit(tmp_path)
    page = visitor.get("one/")[1]
    assert "Live: 40 steps so far" in page
    assert 'href="../"' in page
    known = version_of(page)
    assert visitor.get(f"one/?part=main&known={known}") == (204, "")
    recorder.write([StepRecord(40, 0.4, 10.0, 0.02)])
    status, part = visitor.get(f"one/?part=main&known={known}")
    assert (status, part[:5]) == (200, "<main")
    assert "Live: 41 steps so far" in part
    recorder.close()


def test_a_folder_lists_its_studies_and_runs_and_offers_o0_first(tmp_path: Path, visit: Visit) -> None:
    names = ("20260101-a", "20260102-b", "20260103-c")
    for name, level in zip(names, ("O0", "O1", "O1"), strict=True):
        record_run(tmp_path / "runs", name, level=level)
    write_study(tmp_path / "mine")
    visitor = visit(tmp_path)
    page = visitor.get("")[1]
    told = ('<a class="strong" href="mine/">mine</a>', "not begun", 'scope="col" class="number">Trials, at most</th>')
    for part in (*told, *(f'href="runs/{name}/"' for name in names)):
        assert part in page
    chosen = re.findall(r'name="run" value="([^"]*)//[^"]*" checked', page)
    assert [one.partition(" ")[0] for one in chosen] == ["runs/20260103-c", "runs/20260101-a"]
    runs = "run=first%2F%2Fruns/20260101-a&run=second%2F%2Fruns/20260102-b"
    status, drawn = visitor.get(f"?part=overlay&{runs}&window=4&x=seconds")
    assert status == 200
    for part in ('"name":"first"', '"name":"second"', "running mean over 4 steps"):
        assert part in drawn


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("window=soon", "`window` must be a whole number"),
        ("x=parsec", "`x` must be one of step, seconds"),
        ("&".join(["run=a%2F%2Fone"] * 12), "13 runs are chosen, and at most 12 are drawn"),
        ("run=a%2F%2Fgone", "gone: there is no such run here any more"),
    ],
)
def test_an_overlay_that_cannot_be_drawn_is_a_sentence(tmp_path: Path, visit: Visit, query: str, said: str) -> None:
    record_run(tmp_path, "one")
    status, text = visit(tmp_path).get(f"?part=overlay&run=a%2F%2Fone&{query}")
    assert status == 422
    assert said in text


def test_an_empty_folder_says_what_would_fill_it(tmp_path: Path, visit: Visit) -> None:
    assert "<code>workbench tune</code> and <code>workbench train</code> make them" in visit(tmp_path).get("")[1]


def test_a_study_shows_its_report_and_its_answer_though_a_trial_of_it_waits(
    tmp_path: Path, visit: Visit, ended: Path
) -> None:
    folder = write_study(tmp_path / "mine", SHORT)
    visitor = visit(folder)
    page = visitor.get("")[1]
    assert "This study has not begun" in page
    shutil.copytree(ended, folder, dirs_exist_ok=True)
    page, before = visitor.get("")[1], page
    assert version_of(page) != version_of(before)
    said = "This study has ended; 4 of 4 trials finished."
    for part in (said, 'class="trials"', "figure-speed-accuracy", "boost_config.o1.json"):
        assert part in page

    optuna.load_study(study_name="mine", storage=open_storage(default_storage(folder))).enqueue_trial({"level": "O1"})
    (folder / "result" / "report.html").touch()
    page = visit(folder).get("")[1]
    assert "This study has its answer; 4 of 4 trials finished. <code>workbench tune " in page
    assert "`" not in re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    assert "4 of 4 trials finished. This page follows." not in page


def test_a_study_that_cannot_be_read_says_why(tmp_path: Path, visit: Visit) -> None:
    folder = write_study(tmp_path / "mine", "[study]\nnonsense = 3\n")
    (folder / "study.db").touch()
    status, page = visit(folder).get("")
    assert status == 200
    assert "unknown key &#34;nonsense&#34; in section &#34;study&#34;" in page


def test_a_study_that_has_only_its_report_shows_that(tmp_path: Path, visit: Visit) -> None:
    folder = write_study(tmp_path / "mine")
    (folder / "result").mkdir()
    (folder / "result" / "report.html").write_text("<main>what was found</main>", encoding="utf-8")
    assert visit(folder).get("")[1] == "<main>what was found</main>"


def test_a_study_at_work_says_its_phase(tmp_path: Path, visit: Visit, ended: Path) -> None:
    folder = shutil.copytree(ended, tmp_path / "mine")
    visitor = visit(folder)
    at_work = "Live: attribution, 4 of 4 trials finished. This page follows."
    for phase, said in (("attribution", at_work), ("", "This study has ended")):
        write_status(folder, read_result(folder), stamp_of(folder), phase=phase)
        assert said in visitor.get("")[1]
