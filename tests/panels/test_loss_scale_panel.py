from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.panels.looking import LONG, drawn, missing, our_threads, text_in
from tests.panels.recorded_runs import POLICY, recorded_run
from workbench.config import BoostConfig
from workbench.figures.drawing import Drawing
from workbench.loss_scale import ScalePolicy, simulate
from workbench.panels.loss_scale_panel import LossScalePanel
from workbench.panels.panel import PanelState
from workbench.panels.replay_text import error_sentence
from workbench.runs import Run, read_run
from workbench.runs.replayed_run import ReplayedRun

INIT, FACTOR, WINDOW = "loss_scale.init", "loss_scale.factor", "loss_scale.window"


def settled(panel: LossScalePanel) -> LossScalePanel:
    assert panel.machine.wait_for(PanelState.DONE, PanelState.STOPPED, PanelState.FAILED, timeout=LONG)
    assert panel.wait(LONG)  # until what is locked meanwhile has been unlocked, too
    assert panel.wait_for_answer(LONG)
    return panel


@pytest.fixture
def panel(tmp_path: Path) -> Iterator[LossScalePanel]:
    with LossScalePanel(recorded_run(tmp_path)) as made:
        yield settled(made)


# What is shown


def test_a_run_is_opened_with_its_trace_its_map_fifty_policies_and_what_the_replay_rests_on(
    panel: LossScalePanel,
) -> None:
    assert panel.state is PanelState.DONE
    assert drawn(panel.trace).layout.title.text.startswith("The loss scale stands at")
    assert drawn(panel.exponents).data[0].type == "heatmap"
    assert len(panel.policies) == len(panel.choice.options) == 50  # the recorded one is among them
    wasted = simulate(
        ReplayedRun(panel.run).thresholds.scale,  # type: ignore[arg-type]
        [panel.policies[number] for _, number in panel.choice.options],
    ).wasted_share
    assert np.all(np.diff(wasted) >= 0), "the list begins with the least waste"
    assert not panel.groups.widget.is_present
    assert {trace.name for trace in drawn(panel.scatter).data} >= {"replayed policy"}
    rests_on = "Calibrated on 9 overflows; 0 % of the updates are misjudged"
    told = ("toy, O1, 60 steps, 9 overflows", "Assumes the recorded trajectory", "may be off by a factor of")
    assert missing(panel, *told, rests_on) == []
    assert panel.policy == POLICY, "the sliders begin at the recorded one, and predict what happened"
    assert missing(panel, "9 overflows in 60 updates (likely", "The recorded run had 9 overflows.") == []


@pytest.mark.parametrize(("error_log2", "told"), [(1.0, "by a factor of 2 either way"), (0.01, "calibrated.")])
def test_thresholds_that_are_off_by_nothing_are_not_said_to_be_off(error_log2: float, told: str) -> None:
    thresholds = SimpleNamespace(calibrated=False, error_log2=error_log2)
    assert told in error_sentence(SimpleNamespace(thresholds=thresholds))  # type: ignore[arg-type]


def test_a_moved_slider_is_answered_and_a_clicked_point_and_a_line_of_the_list_set_the_sliders(
    panel: LossScalePanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[Any]()
    with monkeypatch.context() as watched:
        watched.setattr(Drawing, "figure", made.append)
        panel.control(INIT)._take(2.0**8)
        panel.control(WINDOW)._take(1000)
        assert panel.wait_for_answer(LONG)
    assert made == [], "a Plotly figure would take most of the time"
    assert "init 2⁸, factor 2, window 1000: 0 overflows in 60 updates" in text_in(panel)
    assert "replayed: init 2⁸, factor 2, window 1000" in [trace.name for trace in drawn(panel.trace).data]
    chosen = next(trace for trace in drawn(panel.scatter).data if trace.name.startswith("chosen"))
    assert chosen.x[0] == 0.0

    number = next(i for i, p in enumerate(panel.policies) if (p.init, p.factor) == (2.0**12, 4.0))
    panel.scatter.on_pick(number)  # type: ignore[misc]  # what a click calls
    assert panel.wait_for_answer(LONG)
    assert (panel.policy, panel.choice.value) == (panel.policies[number], number)
    assert f"factor 4, window {panel.policies[number].window}" in text_in(panel)
    panel.choice.value = panel.choice.options[0][1]  # picked from the list with the keyboard
    assert panel.wait_for_answer(LONG)
    assert panel.policy == panel.policies[panel.choice.value]


def test_of_requests_that_come_at_once_the_newest_is_answered(
    panel: LossScalePanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    asked: list[float] = []
    judge = ReplayedRun.judge

    def slow(self: ReplayedRun, policies: list[ScalePolicy]) -> pd.DataFrame:
        asked.append(policies[0].init)
        begun.set()
        assert go.wait(LONG)
        return judge(self, policies)

    monkeypatch.setattr(ReplayedRun, "judge", slow)
    panel.control(INIT)._take(2.0**4)
    assert begun.wait(LONG)
    for power in range(5, 13):  # handlers do not wait for answers
        panel.control(INIT)._take(2.0**power)
    go.set()
    assert panel.wait_for_answer(LONG)
    assert asked == [2.0**4, 2.0**12]
    assert "init 2¹², factor 2" in text_in(panel)


def test_a_value_that_is_none_is_refused_and_use_this_policy_writes_it_into_the_configuration_or_says_why_not(
    panel: LossScalePanel,
) -> None:
    for path, value in ((INIT, "much"), (FACTOR, 1.0), (WINDOW, 0), (INIT, float("nan")), (WINDOW, 2.5)):
        panel.control(path)._take(value)
        assert path in panel.control(path).problem
        assert panel.policy is None
        panel.use_button.click()
        assert panel.shared.config == BoostConfig()
        panel.control(path)._take(getattr(POLICY, path.removeprefix("loss_scale.")))
        assert panel.control(path).problem == ""
        assert panel.wait_for_answer(LONG)

    panel.use_button.click()
    assert panel.shared.config.loss_scale.init == 2.0**20
    assert "It is not in effect yet: there is no loss scale" in text_in(panel)

    panel.shared.set(BoostConfig.from_dict({"amp": {"level": "O2"}, "loss_scale": {"maximum": 2.0**24}}))
    panel.control(INIT)._take(2.0**9)
    panel.control(FACTOR)._take(4.0)
    panel.use_button.click()
    rule = panel.shared.config.loss_scale
    assert (rule.init, rule.factor, rule.window) == (512.0, 4.0, 10)
    assert "has it now: init 2⁹, factor 4, window 10." in text_in(panel)
    assert "no say yet" not in text_in(panel)

    panel.control(INIT)._take(2.0**30)
    panel.use_button.click()
    assert panel.shared.config.loss_scale.init == 512.0
    assert "loss_scale.init must be at most loss_scale.maximum" in text_in(panel)
    assert panel.wait_for_answer(LONG)


# Other lists, other runs


def test_other_lists_are_judged_and_a_wrong_one_is_a_sentence(panel: LossScalePanel) -> None:
    panel.lists["init"].value, panel.lists["factor"].value = "2^9, 1024", "2"
    panel.lists["window"].value = "7, 70"
    panel.judge_button.click()
    settled(panel)
    assert [(p.init, p.window) for p in panel.policies[1:]] == [(512, 7), (512, 70), (1024, 7), (1024, 70)]
    assert panel.policies[0] == POLICY
    for text in ("", "a, b", "0", "nan", ",".join(map(str, range(1, 60)))):
        panel.lists["window"].value = text
        panel.judge_button.click()
        assert panel.state is PanelState.DONE
        assert panel.error is not None
        assert "Traceback" not in text_in(panel)
        panel.lists["window"].value = "10"
        panel.judge_button.click()
        settled(panel)
        assert panel.error is None


def test_a_folder_of_runs_is_listed_and_one_is_chosen_and_beside_one_that_was_named_the_others_can_be(
    tmp_path: Path,
) -> None:
    paths = [recorded_run(tmp_path, n, run_id=f"run-{n}") for n in (20, 30)]
    with LossScalePanel(tmp_path) as panel:
        assert panel.chooser.lister.wait(LONG)
        assert (panel.state, panel.use_button.disabled) == (PanelState.IDLE, True)
        assert [value for _, value in panel.runs.options] == paths[::-1]
        assert panel.runs.value is None
        assert "2 runs: choose one" in text_in(panel)
        assert "run-30 · toy · O1 · 30 steps" in panel.runs.options[0][0].replace("\u200b", "")
        for path in paths:  # two in a row
            panel.runs.value = path
            settled(panel)
            assert panel.run is not None
            assert panel.run.path == path
            assert path.name in text_in(panel)
    with LossScalePanel(str(paths[0])) as panel:
        settled(panel)
        assert panel.chooser.lister.wait(LONG)
        assert panel.folder.value == str(tmp_path)
        assert {path for _, path in panel.runs.options} == set(paths)
        assert panel.runs.value == paths[0]
    assert our_threads() == []


def test_no_folder_of_runs_yet_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with LossScalePanel() as panel:
        assert "no folder runs here yet" in text_in(panel)
        recorded_run(tmp_path / "runs")
        panel.look_button.click()
        assert panel.chooser.lister.wait(LONG)
        assert len(panel.runs.options) == 1
        (tmp_path / "file").write_text("x")
        panel.folder.value = "nowhere"
        assert panel.chooser.lister.wait(LONG)
        assert "nowhere is not a folder of runs: there is no such folder" in text_in(panel)


@pytest.mark.parametrize(
    ("options", "sentence", "replays"),
    [
        ({"watched": False}, "without a loss scale or a watch for overflow", True),
        ({"exponents": False}, "recorded no gradient exponents", True),
        ({"n_steps": 0}, "has recorded no step yet", False),
        ({"finish": False}, "Not finished: still running, or killed", True),
        ({"sizes": False}, "recorded no gradient sizes, so there is nothing to replay", False),
        ({"groups": True}, "a replay asks what one scale for all would do", True),
    ],
    ids=["no watch", "no exponents", "empty", "killed", "no sizes", "groups"],
)
def test_a_run_that_lacks_something_is_a_sentence(
    tmp_path: Path, options: dict[str, object], sentence: str, replays: bool
) -> None:
    with LossScalePanel(recorded_run(tmp_path, **options)) as panel:  # type: ignore[arg-type]
        settled(panel)
        assert panel.state is PanelState.DONE
        notes = [note.text for note in drawn(panel.scatter).layout.annotations]
        assert sentence in text_in(panel) + " ".join(notes)
        assert panel.use_button.disabled is not replays
        assert panel.control(INIT).disabled is not replays
        assert panel.groups.widget.is_present is ("groups" in options)
        assert panel.trace.widget.is_present is ("watched" not in options)
        assert not replays or "exponents" in options or len(drawn(panel.scatter).data) > 0


def test_a_run_of_a_newer_version_and_a_file_are_sentences_and_another_run_can_be_opened(tmp_path: Path) -> None:
    path = recorded_run(tmp_path)
    environment = path / "environment.json"
    environment.write_text(json.dumps(json.loads(environment.read_text()) | {"schema_version": 99}))
    with LossScalePanel(path) as panel:
        settled(panel)
        assert panel.state is PanelState.FAILED
        assert "read the run with the version of the workbench that wrote it" in text_in(panel)
        assert not panel.folder.disabled
        (tmp_path / "note.txt").write_text("x")
        panel.open(tmp_path / "note.txt")
        settled(panel)
        assert panel.state is PanelState.FAILED
        assert "is not a run directory: it is a file" in text_in(panel)
        panel.look_button.click()
        assert panel.chooser.lister.wait(LONG)
        assert panel.state is PanelState.IDLE, "a folder has been listed: nothing has failed"
        panel.open(recorded_run(tmp_path, run_id="good"))
        settled(panel)
        assert (panel.state, panel.error) == (PanelState.DONE, None)


def test_opening_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(path: Path, **options: Any) -> Run:
        begun.set()
        assert go.wait(LONG)
        return read_run(path, **options)

    monkeypatch.setattr("workbench.runs.read_run", slow)
    with LossScalePanel(recorded_run(tmp_path)) as panel:
        assert begun.wait(LONG)
        assert (panel.state, panel.folder.disabled) == (PanelState.RUNNING, True)
        panel.stop_button.click()
        assert panel.state is PanelState.STOPPING
        panel.open(tmp_path / "ignored")  # one at a time
        go.set()
        settled(panel)
        assert panel.state is PanelState.STOPPED
        assert "stopped; the trace is shown, nothing was replayed" in text_in(panel)
        assert panel.policies == []


def test_closing_while_a_run_is_read_leaves_no_thread(tmp_path: Path) -> None:
    panel = LossScalePanel(recorded_run(tmp_path))
    panel.close()
    assert our_threads() == []
    assert panel.trace.closed
