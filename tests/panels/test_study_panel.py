from __future__ import annotations

import contextlib
import math
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import pytest
import torch
from torch import nn

from tests.kit.processes import wait_until
from tests.panels.looking import LONG, ended, everything, missing, one_of, run, text_in
from tests.reports.synthetic_study import candidate, fastest_study, full_study
from workbench.config import BoostConfig
from workbench.core.records import Choice, StudyResult, TrialRecord
from workbench.panels.export_panel import ExportPanel
from workbench.panels.panel import PanelState
from workbench.panels.shared_config import SharedConfig
from workbench.panels.study_panel import StudyPanel
from workbench.study import StudyStoppedError, read_result, read_study
from workbench.study.answer.result import open_begun
from workbench.study.ask.study_text import values_of
from workbench.study.store.status_file import stamp_of, write_status
from workbench.study.store.storage import holding_study
from workbench.tasks import Task

Make = Callable[..., Any]
Told = Callable[[], list[dict[str, Any]]]
QUICK = {"confirm.seeds_min": 2, "confirm.seeds_max": 2, "confirm.candidates": 1, "speed.rounds": 2} | {
    "allowed_drop.o1": 9.0,
    "allowed_drop.o2": 9.0,
    "study.objective": "time_to_target",
}
SPACE = {
    "level": ["O1"],
    "boost.less_bn": [False],
    "boost.grad_freeze": [False],
    "boost.grad_accumulation": [True, False],
    "grad_accumulation.grad_accumulation_step": [2, 3],
}


class Loss:
    """A loss that counts, that can be held at a step, and that can break."""

    def __init__(self) -> None:
        self.computed = 0
        self.hold_at = -1
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.factor = 1.0
        self.error: Exception | None = None

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.computed += 1
        if self.computed == self.hold_at:
            self.reached.set()
            assert self.go_on.wait(LONG)
        if self.error is not None:
            raise self.error
        return self.factor * nn.functional.mse_loss(model(batch[0]), batch[1])


def tiny_task(loss: Loss | None = None) -> Task:
    def batches(seed: int) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(8, 3, generator=generator)
        return iter([(x, x.sum(1, keepdim=True))] * 4)

    return Task(
        name="tiny",
        model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)),
        loss=loss or Loss(),
        optimizer=lambda named: torch.optim.SGD([p for _, p in named], 0.01),
        train=batches,
        evaluate=batches,
        metric="mse",
    )


def with_a_small_question(panel: StudyPanel, **values: Any) -> StudyPanel:
    for path, value in (QUICK | values).items():
        panel.entries[path].set(value)
    panel.space.set(SPACE)
    panel.form.show_baseline()
    return panel


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: Callable[[StudyPanel], StudyPanel]) -> Make:
    """Make panels in an empty folder; a new study is a small one."""
    monkeypatch.chdir(tmp_path)

    def make(given: Any, shared: SharedConfig | None = None) -> StudyPanel:
        panel = keep(StudyPanel(given, shared, trials=2, steps=6))
        assert panel.wait(LONG)
        is_new = not (Path(panel.folder.value) / "study.toml").exists()
        return with_a_small_question(panel) if is_new else panel

    return make


@pytest.fixture
def searching(tmp_path: Path, keep: Callable[[StudyPanel], StudyPanel]) -> Make:
    """Make panels that search whole set-ups of a task, where none is given of one that takes 16 steps."""

    def make(task: Task | str | None = None) -> Any:
        return keep(StudyPanel(task or replace(tiny_task(), steps=16), studies=tmp_path))

    return make


@pytest.fixture(scope="module")
def finished_panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StudyPanel, list[Path]]]:
    """Return a panel whose study has run to its end, to be looked at, and the studies that were opened meanwhile."""
    opened: list[Path] = []

    def noted(folder: Path, storage: str | None) -> Any:
        opened.append(folder)
        return open_begun(folder, storage)

    with StudyPanel(tiny_task(), studies=tmp_path_factory.mktemp("finished"), trials=2, steps=6) as panel:
        # No pruner: on a busy machine a trial may be timed slower than O0, and is then not worth finishing.
        with pytest.MonkeyPatch.context() as watched:
            watched.setattr("workbench.study.answer.result.open_begun", noted)
            run(with_a_small_question(panel, **{"pruner.name": "none"}))
        yield panel, opened


@pytest.fixture
def finished(finished_panel: tuple[StudyPanel, list[Path]], tmp_path: Path) -> Path:
    """Return the folder of that study, the test's own copy."""
    return shutil.copytree(finished_panel[0].folder.value, tmp_path / "studies" / "tiny")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, finished: Path) -> Told:
    """Return a function from whose call on no study is run: options are noted, and the finished one is the answer."""
    options, answer = list[dict[str, Any]](), read_result(finished)

    def tune(folder: Path, *, on_progress: Any, stop: Any, **asked: Any) -> StudyResult:
        assert not stop()
        options.append(asked)
        return answer

    def instead() -> list[dict[str, Any]]:
        monkeypatch.setattr("workbench.api.tune", tune)
        return options

    return instead


def titles(panel: StudyPanel) -> dict[str, str]:
    return {name: str(live.shown.layout.title.text) for name, live in panel.live.items()}


def trials_ended(panel: Any) -> list[int]:
    return [one.number for one in panel.study.trials if one.state in {"complete", "pruned"}]


def test_a_new_panel_says_what_it_will_ask_and_makes_no_figure_yet(made: Make) -> None:
    panel = made(tiny_task(), SharedConfig(BoostConfig().with_values({"optimizer.name": "Adam", "optimizer.lr": 0.01})))
    assert (panel.state, panel.start_button.description) == (PanelState.IDLE, "Start")
    assert panel.entries["study.task"].disabled
    assert missing(panel, "optimizer.name = Adam", "No trial has ended yet") == []
    for view, question in (("Parameters", "Which values do the good trials have in common?"), ("Overview", "faster")):
        panel.view.value = view
        assert question in text_in(panel)
    assert titles(panel) == {}
    assert not Path("studies").exists()


def test_a_study_runs_to_its_answer_is_opened_once_to_show_it_and_leaves_a_plain_file(
    finished_panel: tuple[StudyPanel, list[Path]],
) -> None:
    panel, opened = finished_panel
    folder = Path(panel.folder.value)
    assert opened == [folder]
    with contextlib.closing(sqlite3.connect(folder / "study.db")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    file = read_study(folder)
    assert (file.study.task, file.study.n_trials, file.study.budget_steps) == ("tiny", 2, 6)
    assert file.base_config().grad_freeze.total_steps == 6
    assert trials_ended(panel)[:2] == [0, 1]
    for target in ("o1", "o2"):
        origin = BoostConfig.from_json(folder / "result" / f"boost_config.{target}.json").provenance
        assert origin is not None
        assert missing(panel, str(origin["sentence"])[:40]) == []
        assert panel.take_buttons[target].is_present
    assert (folder / "result" / "report.html").exists()
    assert "Open report.html" in text_in(panel)
    assert "boost_config.o1.json" in panel.static_html()
    assert len(panel.live["history"].shown.data) > 0
    assert (panel.start_button.description, panel.start_button.button_style) == ("Continue", "")


def test_opening_a_study_shows_its_state_and_trains_nothing(made: Make, finished: Path) -> None:
    before = sorted(path for path in finished.rglob("*") if "runs" in path.parts)
    panel = made(finished)
    assert panel.state is PanelState.DONE
    assert (panel.start_button.description, panel.start_button.button_style) == ("Continue", "")
    assert panel.study.trials == read_result(finished).trials
    assert panel.entries["study.n_trials"].value == panel.entries["confirm.seeds_max"].value == 2
    assert panel.space.value == SPACE
    assert "boost_config.o1.json" in text_in(panel)
    assert text_in(panel.progress_text) == "2 trials; its answer is shown"
    assert panel.bar.value == panel.bar.max
    assert sorted(path for path in finished.rglob("*") if "runs" in path.parts) == before
    panel._opened(replace(panel.study, exported={}, objective="time_to_quality"))
    assert text_in(panel.progress_text) == "2 trials finished; Continue resumes the search"
    write_status(finished, panel.study, stamp_of(finished), phase="attribution")
    panel._opened(panel.study)
    at_work = "attribution, 2 trials finished; another command is at work on it"
    assert text_in(panel.progress_text) == at_work
    panel.folder.value = str(finished.parent / "another")
    assert panel.machine.wait_for(PanelState.IDLE, timeout=0.0)
    assert (panel.start_button.description, panel.start_button.button_style) == ("Start", "success")


@pytest.mark.slow
def test_a_new_study_looks_at_the_task_and_searches_whole_set_ups(searching: Make, tmp_path: Path) -> None:
    panel = searching()
    assert (panel.entries["sampler.name"].disabled, panel.space.widget.is_present) == (True, False)
    assert missing(panel, "searches what applies to it", "15 minutes when unset") == []
    panel.entries["study.objective"].set("speed")
    panel.form.show_baseline()
    assert (panel.entries["sampler.name"].disabled, panel.space.widget.is_present) == (False, True)
    assert "The time of a step." in text_in(panel)
    panel.entries["study.objective"].set("time_to_quality")
    panel.entries["study.timeout_seconds"].set(2.0)  # minutes
    panel.entries["allowed_drop.o1"].set("3 %")
    panel.start()
    path = tmp_path / "tiny" / "study.toml"
    wait_until(path.exists)
    panel.stop()
    ended(panel, PanelState.STOPPED)
    file = read_study(path.parent)
    assert (file.study.objective, file.study.budget_steps) == ("time_to_quality", 16)  # the task's own length
    assert (file.study.timeout_seconds, file.allowed_drop.o1) == (120.0, "3 %")
    assert any(one.path.startswith("schedule.") for one in file.dimensions)
    assert (panel.entries["sampler.name"].disabled, panel.entries["sampler.name"].value) == (False, file.sampler.name)
    assert values_of(panel.form.text()) == values_of(path.read_text())  # Continue asks the same


def test_stop_during_the_look_at_the_task_begins_no_search(searching: Make, told: Told) -> None:
    loss, begun = Loss(), told()
    loss.hold_at = 2
    panel = searching(replace(tiny_task(loss), steps=16))
    panel.start()
    assert loss.reached.wait(LONG)
    panel.stop()
    loss.go_on.set()
    assert "stopped; everything finished is kept; Start resumes it" in ended(panel, PanelState.STOPPED)
    assert loss.computed == 2, "no further batch is looked at"
    assert begun == []
    assert not (panel.form.place / "study.toml").exists()
    assert not panel.start_button.disabled


def test_a_study_whose_runs_are_shorter_than_today_s_says_so_beneath_their_length(
    keep: Callable[[StudyPanel], StudyPanel], tmp_path: Path
) -> None:
    shortened = "The study trains 17 of 100 batches, since 50 runs of 100 would take longer than 3 minutes."
    text = f'[study]\ntask = "mine"\nbudget_steps = 17\n[set_up]\nleft_out = ["Something.", "{shortened}"]\n'
    (tmp_path / "study.toml").write_text(text)
    panel = keep(StudyPanel(tmp_path))
    entry = panel.entries["study.budget_steps"].widget
    assert shortened in text_in(entry)
    panel.open(tmp_path / "another")
    told = ("as long as you train the task today", "the task's own where the task names one")
    assert missing(entry, *told) == []


def test_a_search_of_set_ups_says_what_it_lacks(searching: Make, tmp_path: Path) -> None:
    assert "no_such_task" in run(searching("no_such_task"), PanelState.FAILED)
    assert not (tmp_path / "no_such_task").exists()


def _unfold_more(panel: StudyPanel) -> None:
    sections = one_of(panel.controls, widgets.Accordion)
    sections.selected_index = list(sections.titles).index("More")


def test_stop_between_the_look_and_the_first_run_is_no_failure(
    searching: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = searching()

    def stopped(*_: Any, **__: Any) -> None:
        panel.stop()
        raise StudyStoppedError("before there was a database")

    monkeypatch.setattr("workbench.api.tune", stopped)
    assert "stopped; everything finished is kept; Start resumes it" in run(panel, PanelState.STOPPED)


def test_a_task_that_only_this_program_knows_is_planned_for_one_run_at_a_time(
    searching: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel, asked = searching(), list[int | None]()

    def stopped(_: Task, *, jobs: int | None, **__: Any) -> None:
        asked.append(jobs)
        panel.stop()
        raise StudyStoppedError("during the look")

    monkeypatch.setattr("workbench.study.begin_study", stopped)
    run(panel, PanelState.STOPPED)
    assert asked == [1]


def test_what_the_look_decides_is_said_once_in_a_section_and_what_is_no_number_is_refused_beneath_its_field(
    searching: Make,
) -> None:
    panel = searching(tiny_task())
    for path, value, sentence in (
        ("study.budget_steps", "ten", '✕ it must be a whole number at least 1, got "ten"'),
        ("study.budget_steps", 0.5, "✕ it must be a whole number at least 1, got 0.5"),
        ("study.budget_steps", math.inf, "✕ it must be a whole number at least 1, got inf"),
        ("study.timeout_seconds", -1.0, "✕ it must be a finite number greater than 0"),
        ("study.timeout_seconds", math.inf, "✕ it must be a finite number greater than 0"),
        ("allowed_drop.o1", "much", '✕ it must be a finite number at least 0, got "much"'),
    ):
        before = panel.entries[path].value
        panel.entries[path].set(value)
        panel.start()
        assert panel.state is PanelState.IDLE
        assert sentence in text_in(panel.entries[path].widget)
        panel.entries[path].set(before)
    sections = one_of(panel.controls, widgets.Accordion)
    for index in (0, 2):
        sections.selected_index = index
        assert text_in(sections.children[index]).count("look at the task") == 1
    assert panel.entries["sampler.name"].disabled
    panel.entries["study.objective"].set("speed")
    panel.form.show_baseline()
    assert "look at the task" not in text_in(sections.children[2])


def test_time_and_drop_are_asked_first_and_controls_of_a_folded_section_are_made_when_it_is_unfolded(
    made: Make,
) -> None:
    panel = made(tiny_task())
    first, second, *_ = panel.controls.children
    assert missing(first, "How long may the search take?", "minutes") == []
    assert "How much may the metric drop?" in text_in(second)
    sections = one_of(panel.controls, widgets.Accordion)
    assert (sections.selected_index, sections.titles) == (None, ("Study", "What is searched", "More"))
    assert panel.folder not in everything(panel.controls)
    sections.selected_index = 0
    assert panel.folder in everything(panel.controls)
    assert "Objective" in text_in(panel.controls)
    panel.entries["confirm.seeds_max"].set(7)
    panel.entries["sampler.name"].lock(True)
    assert "Confirmation seeds, most" not in text_in(panel)
    _unfold_more(panel)
    assert "Confirmation seeds, most" in text_in(panel)
    shown = panel.entries["confirm.seeds_max"].widget
    assert shown in everything(panel.controls)
    assert one_of(shown, widgets.Text).value == "7"
    assert one_of(panel.entries["sampler.name"].widget, widgets.Dropdown).disabled
    panel.close()
    assert shown.comm is None


def test_minutes_are_kept_as_seconds(made: Make, tmp_path: Path) -> None:
    panel = made(tiny_task())
    panel.entries["study.timeout_seconds"].set(1.5)
    assert values_of(panel.form.text())["study.timeout_seconds"] == 90.0
    panel.entries["study.timeout_seconds"].set("soon")
    assert values_of(panel.form.text())["study.timeout_seconds"] == "soon", "for the study's rule to refuse"
    folder = tmp_path / "limited"
    folder.mkdir()
    (folder / "study.toml").write_text('[study]\ntask = "digits-mlp"\nbudget_steps = 6\ntimeout_seconds = 100\n')
    opened = made(folder)
    assert opened.entries["study.timeout_seconds"].value == 1.67
    said = values_of(opened.form.text())["study.timeout_seconds"]
    assert (said, type(said)) == (100, int), "what nobody changed stays to the last digit"
    opened.entries["study.timeout_seconds"].set(2)
    assert values_of(opened.form.text())["study.timeout_seconds"] == 120.0


def test_the_answer_has_headline_waterfall_and_tuned_plain(made: Make) -> None:
    panel = made(tiny_task())
    study = fastest_study()
    panel.study = study
    panel._show_study()
    assert missing(panel, study.headlines["o1"], "Tuned plain needs 0.80 of O0's time") == []
    (shown,) = panel.figures.gains.children
    assert shown is panel.live["gain o1"].widget
    names = {str(trace.name) for trace in panel.live["gain o1"].shown.data}
    assert {"all together, 95 % interval", "tuned plain, 1.25 x"} <= names
    assert "tuned plain" in {str(trace.name) for trace in panel.live["speed"].shown.data}
    axes = [panel.live["speed"].shown.layout.xaxis, panel.live["history"].shown.layout.yaxis]
    assert [axis.title.text for axis in axes] == ["Speed: time of O0 / time per run (x)", "Time of a run (O0 = 1)"]
    same = replace(study, attribution={"o1": study.attribution["o1"], "o2": study.attribution["o1"]})
    for other, n_shown in ((same, 1), (replace(study, attribution={}), 0)):
        panel.study = other
        panel._show_study()
        assert len(panel.figures.gains.children) == n_shown


def test_o0_that_does_not_train_is_mended_stop_ends_the_study_within_the_step_and_continue_goes_on(made: Make) -> None:
    loss = Loss()
    panel = made(tiny_task(loss))
    loss.factor = float("nan")
    fails(panel, "O0 itself does not train")
    loss.factor, loss.error = 1.0, ZeroDivisionError("at step 1")
    fails(panel, "at step 1")
    assert "Traceback" in text_in(panel)
    loss.error, loss.hold_at = None, loss.computed + 9
    _unfold_more(panel)
    panel.start_button.click()
    assert loss.reached.wait(LONG)
    assert panel.state.busy
    entries = [w for w in everything(panel.controls) if isinstance(w, (widgets.Text, widgets.Dropdown, widgets.Button))]
    assert len(entries) > 30
    assert [w for w in entries if not w.disabled] == [panel.stop_button]
    panel.stop_button.click()
    assert text_in(panel.header).endswith("stopping ")
    assert panel.stop_button.disabled
    loss.go_on.set()
    assert "stopped; everything finished is kept" in ended(panel, PanelState.STOPPED)
    assert loss.computed == loss.hold_at
    assert trials_ended(panel) == [0]
    assert panel.start_button.description == "Continue"
    run(panel)
    assert trials_ended(panel)[:2] == [0, 1]
    assert set(panel.study.exported) == {"o1", "o2"}


def test_a_refused_question_writes_no_file_and_two_studies_follow_each_other(
    made: Make, finished: Path, told: Told
) -> None:
    task = tiny_task()
    panel = made(task)
    assert panel.study is not None
    panel.folder.value = "studies/other"
    assert (panel.study, panel.start_button.description) == (None, "Start")
    panel.space.set({**SPACE, "grad_freeze.freeze_p": {"low": 0.9, "high": 0.3}})
    fails(panel, "[space] `grad_freeze.freeze_p`: `low` must not exceed `high`, got low 0.9 and high 0.3")
    assert not Path("studies/other/study.toml").exists()
    panel.space.set(SPACE)
    asked = told()
    run(panel)
    assert read_study(Path("studies/other")).study.task == "tiny"
    assert asked == [{"task": task, "jobs": None, "fresh": False}]
    panel.folder.value = str(finished)
    assert panel.wait(LONG)
    assert panel.study.name == "tiny"


def test_another_question_asks_for_a_fresh_start(made: Make, finished: Path, told: Told) -> None:
    task = tiny_task()
    panel = made(task)
    text = (finished / "study.toml").read_text()
    panel.entries["study.budget_steps"].set(5)
    assert "study.budget_steps was 6, is 5" in run(panel, PanelState.FAILED)
    assert panel.fresh_button.is_present
    assert (finished / "study.toml").read_text() == text  # the stored question stands until the user says so
    asked = told()
    panel.fresh_button.click()
    ended(panel)
    assert not panel.fresh_button.is_present
    assert read_study(finished).study.budget_steps == 5
    assert asked == [{"task": task, "jobs": None, "fresh": False}]
    (archived,) = (finished / "archive").iterdir()
    assert (archived / "study.toml").read_text() == text


def test_more_trials_are_no_other_question_but_wait_for_another_process_that_tunes(
    made: Make, finished: Path, told: Told
) -> None:
    task = tiny_task()
    panel = made(task)
    text = (finished / "study.toml").read_text()
    panel.entries["study.n_trials"].set(3)
    panel.space.set({**SPACE})
    with holding_study(finished):
        fails(panel, "this study is being tuned by this program already")
    asked = told()
    run(panel)
    assert (finished / "study.toml").read_text() == text
    assert asked == [{"trials": 3, "task": task, "jobs": None, "fresh": False}]


def test_a_picked_trial_goes_to_the_other_panels_and_its_curves_are_overlaid(made: Make, finished: Path) -> None:
    shared = SharedConfig(level="O0")
    panel = made(finished, shared)
    panel.live["history"]._on_pick(1)  # what a click calls
    assert panel.wait(LONG)
    trial, table = panel.study.trials[1], panel.table.widget
    assert shared.both() == (BoostConfig.from_dict(trial.config), trial.level)
    assert {"O0", "trial 1"} <= {str(trace.name) for trace in panel.live["curves"].shown.data}
    assert [(curve.label, len(curve.steps)) for curve in panel.figures.curves] == [("O0", 6), ("trial 1", 6)]
    assert table.selected == 1
    notes = ["", "the one to try on all data"]
    table._handle_custom_msg({"note": 1, "text": notes[1]}, [])
    assert [row["note"] for row in table.data["trials"]] == notes
    assert [trial.note for trial in read_result(finished).trials] == notes
    panel.pick(0)
    assert panel.wait(LONG)
    assert shared.level == "O0"
    shutil.rmtree(finished / "runs")  # somebody tidied up: the evaluations are left
    panel.pick(1)
    assert panel.wait(LONG)
    assert panel.error is None
    assert [len(curve.evaluations) > 0 for curve in panel.figures.curves] == [True, True]


def test_an_export_goes_to_the_other_panels(made: Make, finished: Path) -> None:
    shared = SharedConfig()
    panel = made(finished, shared)
    panel.take_buttons["o2"].click()
    assert (shared.level, shared.config.provenance) == ("O2", None)
    exported = BoostConfig.from_json(finished / "result" / "boost_config.o2.json")
    assert set(exported.diff(shared.config)) == {"provenance"}
    assert shared.with_provenance() == (exported, "O2")
    with ExportPanel(shared) as export:
        measured = str(exported.provenance and exported.provenance["sentence"]).replace("`", "")
        assert measured in text_in(export)
        assert export.config == exported
        shared.change({"grad_freeze.freeze_p": 0.35})
        assert missing(export, measured, "has not been measured") == [measured]
        shared.undo()
        assert measured in text_in(export)


def test_a_picked_trial_brings_the_verdict_of_an_export_that_means_the_same_and_of_no_other(
    made: Make, finished: Path, tmp_path: Path
) -> None:
    shared = SharedConfig(level="O0")
    panel = made(finished, shared)
    trial = panel.study.trials[1]
    config = BoostConfig.from_dict(trial.config)
    verdict = BoostConfig.from_json(panel.study.exported["o2"]).provenance
    assert verdict
    chosen = Choice("o2", candidate(trial_number=1, target="o2"), "Trial 1 is exported.")
    for exported, brought in ((BoostConfig.from_dict({"boost": {"less_bn": True}}), None), (config, verdict)):
        file = exported.with_values({"provenance": verdict}).save(tmp_path / "boost_config.o2.json")
        panel.study = replace(panel.study, choices={"o2": chosen}, exported={"o2": file})
        panel.pick(1)
        assert shared.both() == (config, trial.level)
        assert shared.with_provenance()[0].provenance == brought


# -- what goes wrong: a sentence, and the panel can be used again at once ----------------------------------------------


def fails(panel: StudyPanel, sentence: str) -> None:
    assert sentence.replace("`", "") in run(panel, PanelState.FAILED)
    assert not panel.start_button.disabled
    assert not panel.folder.disabled


def test_values_that_cannot_be_are_refused_as_are_workers_for_a_task_that_they_cannot_load(made: Make) -> None:
    panel = made(tiny_task())
    for path, value, sentence in (
        ("study.n_trials", "many", "`study.n_trials` must be"),
        ("allowed_drop.o1", -1.0, "`allowed_drop.o1` must be"),
        ("allowed_drop.o1", None, "`allowed_drop.o1` must be given for the metric"),
        ("study.device", "abacus", "abacus"),
    ):
        before = panel.entries[path].value
        panel.entries[path].set(value)
        fails(panel, sentence)
        panel.entries[path].set(before)
    panel.jobs.set(2)
    fails(panel, "`jobs` (in the Tune tab: Workers) must be 1 for a task that only this program knows")
    panel.jobs.set("two")
    assert "jobs must be a whole number" in run(panel, PanelState.FAILED)


def test_a_folder_that_cannot_be_made_is_a_sentence(keep: Callable[[StudyPanel], StudyPanel], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    panel = keep(StudyPanel(tiny_task(), studies=tmp_path / "file", steps=4))
    text = run(panel, PanelState.FAILED)
    assert "cannot be written (Not a directory)" in text
    assert "Traceback" not in text


def test_a_broken_file_of_somebody_else_is_left_alone(made: Make, tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "own"
    folder.mkdir(parents=True)
    question = '[study]\ntask = "a"\nbudget_steps = 5\nn_trials = 2\n[space]\n"grad_freez.freeze_p" = true\n'
    for text, sentence in ((question, "unknown parameter"), ("[study", "Expected")):
        (folder / "study.toml").write_text(text)
        panel = made(folder)
        assert sentence in text_in(panel)
        assert "fix the file, or name another folder" in run(panel, PanelState.IDLE)
        assert (folder / "study.toml").read_text() == text


def test_a_database_that_is_none_is_a_sentence(made: Make, finished: Path) -> None:
    (finished / "study.db").write_bytes(b"this is no database" * 100)
    panel = made(finished)
    assert (panel.state, panel.start_button.disabled) == (PanelState.IDLE, False)
    assert "database is damaged (file is not a database)" in text_in(panel)


def test_a_task_that_cannot_be_loaded_is_a_sentence(made: Make, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise NameError('no such thing')\n")
    fails(made(f"{tmp_path / 'broken.py'}:task"), "NameError: no such thing")


def test_closing_ends_a_study_that_runs(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = Loss()
    loss.hold_at = 4
    panel = made(tiny_task(loss))
    panel.start_button.click()
    assert loss.reached.wait(LONG)
    stop = panel.worker.stop
    monkeypatch.setattr(panel.worker, "stop", lambda: (stop(), loss.go_on.set()))
    panel.close()
    assert loss.computed <= 5
    assert all(live.closed for live in panel.live.values())
    assert panel.widget.comm is None


def test_a_figure_that_is_drawn_while_the_panel_closes_is_closed_too(
    made: Make, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = made(finished)
    draw = panel.figures.draw

    def draw_meanwhile(name: str) -> Any:
        figure = draw(name)
        panel.close()
        return figure

    monkeypatch.setattr(panel.figures, "draw", draw_meanwhile)
    panel.view.value = "Parameters"
    assert panel.live["parameters"].closed


def test_slices_and_curves_of_all_trials_are_in_the_tab_and_a_point_picks_its_trial(made: Make) -> None:
    panel = made(tiny_task())
    trials = [
        TrialRecord(
            number, "complete", "O1", {"batch.factor": 1.0 + number, "optimizer.lr": 0.1 * (1 + number % 3)},
            value=1.0 - 0.01 * number, metric=0.9, metric_deficit=0.0, allowed_drop=0.01, relative_step_time=0.9,
            feasible=True, curve=((5, 0.8), (10, 0.9)), config=BoostConfig().to_dict(),
        )
        for number in range(12)
    ]  # fmt: skip
    panel.study = replace(full_study(), trials=trials, importance={"batch.factor": 0.8, "optimizer.lr": 0.2})
    panel._show_study()
    panel.view.value = "Slices"
    wanted = ["slice batch.factor", "slice optimizer.lr", "contour batch.factor optimizer.lr"]
    assert list(panel.figures.stage.children) == [panel.live[name].widget for name in wanted]
    panel.view.value = "Curves"
    (shown,) = panel.figures.stage.children
    assert shown is panel.live["trial curves"].widget
    assert all(panel.live[name]._on_pick is not None for name in (*wanted, "trial curves"))
