from __future__ import annotations

import dataclasses
import functools
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.small_tasks import small_task
from tests.kit.processes import wait_until
from tests.panels.looking import LONG, drawn, ended, missing, our_threads, run, text_in
from workbench.config import BoostConfig, ConfigError
from workbench.config.facts import NetworkFacts
from workbench.panels.compare_panel import ComparePanel, seeds_of
from workbench.panels.panel import PanelState
from workbench.panels.shared_config import SharedConfig
from workbench.tasks import Task
from workbench.training.speed import SpeedRatio, measure_speed_ratio

Make = Callable[..., Any]
OFF: dict[str, Any] = {"mode": "manual", "less_bn": False, "grad_freeze": False, "adasum": False}
ACCUMULATING = {"boost": OFF | {"grad_accumulation": True}, "grad_accumulation": {"grad_accumulation_step": 2}}


@pytest.fixture
def made(keep: Callable[[ComparePanel], ComparePanel], monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make panels that compare two steps of accumulation with O0, over few steps and seeds, and time nothing."""
    timed = SpeedRatio(0.8, 0.7, 0.9, 1.0, 0.8, 8)
    monkeypatch.setattr("workbench.training.compare.measure_speed_ratio", lambda *_, **__: timed)

    def make(task: Task | str | None = None, **options: Any) -> ComparePanel:
        quick: dict[str, Any] = {"steps": 4, "seeds": 2, "shared": SharedConfig(BoostConfig.from_dict(ACCUMULATING))}
        return keep(ComparePanel(small_task() if task is None else task, **(quick | options)))

    return make


def choose(side: Any, source: str, given: object) -> None:
    """Choose what a side is: a file of this name, or this JSON."""
    side.source.value = source
    (side.path if source == "A file" else side.json).value = str(given)


def labels(panel: Any) -> list[str]:
    return [side.label for side in panel.comparison.sides]


def failing(task: Task, when: Callable[[], None]) -> Task:
    def loss(model: Any, batch: Any) -> Any:
        when()
        return task.compute_loss(model, batch)

    return dataclasses.replace(task, loss=loss)


# Values on their own


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("5", (0, 1, 2, 3, 4)), ("0, 3,7", (0, 3, 7)), ("2-4", (2, 3, 4)), ("1, 4 - 5", (1, 4, 5)), ("3,", (0, 1, 2))],
)
def test_seeds_are_a_number_or_named(text: str, seeds: tuple[int, ...]) -> None:
    assert seeds_of(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "five", "1, 1", "4-2", "21", "0-99", "-1", "1.5", "1-3, 2", "9" * 30])
def test_seeds_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="`seeds` must be"):
        seeds_of(text)


# The panel


def test_the_configuration_is_compared_with_o0_the_verdict_is_a_sentence_and_the_curves_are_kept(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly = functools.partial(measure_speed_ratio, rounds=2, precision=math.inf)
    monkeypatch.setattr("workbench.training.compare.measure_speed_ratio", quickly)
    panel = made(steps=20)
    assert (panel.state, panel.view.value, panel.stop_button.disabled) == (PanelState.IDLE, "Verdict", True)
    run(panel)
    compared = panel.comparison
    assert (labels(panel), compared.seeds) == (["O0", "this configuration"], (0, 1))
    assert "accumulation over 2" in compared.sides[1].summary
    assert missing(panel, *compared.sentences(), "Configuration") == []
    assert panel.bar.value == 1.0
    title = drawn(panel.figure).layout.title.text.replace("<br>", " ")
    assert title.startswith("Against O0, this configuration is ")
    assert len(drawn(panel.figure).data[2].x) == 2

    assert (panel.view.value, panel.figure.widget.is_present) == ("Verdict", True)
    panel.view.value = "Learning curves"
    traces = {(trace.name, trace.yaxis): trace for trace in drawn(panel.curves).data}
    assert {name for name, _ in traces} == {"O0", "this configuration"}
    assert list(traces["O0", "y2"].x) == list(range(2, 21, 2)), "each is evaluated ten times"
    assert not panel.figure.widget.is_present


def test_four_sides_with_a_file_and_json_text_twice_in_a_row(made: Make, tmp_path: Path) -> None:
    mine = BoostConfig.from_dict(ACCUMULATING)
    file, other = mine.save(tmp_path / "mine.json"), tmp_path / "other" / "mine.json"
    other.parent.mkdir()
    mine.with_values({"grad_accumulation.grad_accumulation_step": 3}).save(other)
    panel = made(seeds=1, steps=3)
    choose(panel.sides[1], "A file", file)
    choose(panel.sides[2], "JSON text", '{"boost": {"mode": "disable_all"}, "optimizer": {"lr": 0.01}}')
    choose(panel.sides[3], "A file", other)
    for _ in range(2):
        assert "one seed bounds nothing" in run(panel)
        assert labels(panel) == ["O0", "mine.json", "JSON text", "mine.json (2)"]
        assert list(drawn(panel.figure).layout.yaxis.ticktext) == labels(panel)[1:]


def test_equal_set_ups_are_refused_beside_the_second_and_nothing_starts(made: Make) -> None:
    panel = made()
    wait_until(lambda: panel.shared.network is not None)
    panel.shared.learn(NetworkFacts(4, 4, 8, 4, 4, 4))
    panel.sides[1].source.value, panel.sides[2].source.value = "O1", "O2"  # alike on one device
    panel.start_button.click()
    assert panel.state is PanelState.IDLE
    assert "the same set-up as O1 (LessBN)" in text_in(panel.sides[2].widget)
    assert text_in(panel.sides[1].widget).strip() == "2"
    panel.sides[2].source.value = "This configuration"
    assert "same set-up" not in text_in(panel.sides[2].widget)
    panel.shared.learn(NetworkFacts(0, 0, 3, 3, 0, 3))  # in which O1 finds nothing to do
    panel.start_button.click()
    assert "the same set-up as O0 (nothing switched on)" in text_in(panel.sides[1].widget)


def test_what_is_wrong_with_a_side_stands_beside_it_and_nothing_starts(made: Make, tmp_path: Path) -> None:
    panel = made()
    for file, told, json, refused in (
        ("", "name a boost_config.json", '{"boost": {"grad_freez": true}}', 'did you mean "grad_freeze"'),
        (tmp_path / "missing.json", "missing.json", "[1", "JSON text"),
        (tmp_path / "missing.json", "missing.json", "[1]", "must hold an object of sections, got [1]"),
        ("", "name a", '{"boost": {"mode": "manual", "dim_reduce": true}}', "dim_reduce"),
    ):
        choose(panel.sides[1], "A file", file)
        choose(panel.sides[2], "JSON text", json)
        panel.start_button.click()
        assert panel.state is PanelState.IDLE
        assert told in text_in(panel.sides[1].widget)
        assert refused in text_in(panel.sides[2].widget)
    panel.sides[1].source.value = "This configuration"
    panel.sides[2].source.value = "none"
    assert text_in(panel.sides[1].widget).strip() == "2"
    panel.seeds.set("none")
    panel.steps.set(1.5)
    panel.start_button.click()
    assert panel.state is PanelState.IDLE
    told = ("seeds must be a number of seeds", "steps must be a whole number, 1 or more, got 1.5")
    assert missing(panel, *told) == []
    panel.seeds.set("1")
    panel.steps.set(2)
    run(panel)


@pytest.mark.parametrize("folder", ["~nobody-of-this-name", "x" * 300], ids=["no home", "too long"])
def test_a_start_that_fails_before_its_work_begins_leaves_the_panel_usable(made: Make, folder: str) -> None:
    panel = made()
    usual, panel.where.out.value = panel.where.out.value, folder
    panel.start_button.click()
    ended(panel, PanelState.FAILED)
    panel.where.out.value = usual
    run(panel)


def test_what_is_kept_under_the_name_of_a_source_is_told_apart_from_it(made: Make) -> None:
    panel = made()
    panel.shared.set(BoostConfig.from_dict({"loss_scale": {"window": 77}}), "O2")
    for name in ("O1", "none", "mine"):
        panel.shared.keep(name)
    side = panel.sides[1]
    side.source.value = "O1"
    assert side.read()[1].loss_scale.window != 77
    for name in ("O1 (kept)", "none (kept)", "mine"):
        side.source.value = name
        assert (side.read()[0], side.read()[1].loss_scale.window) == (name, 77)


def test_two_clicks_are_one_comparison_and_stop_ends_it_within_a_step(made: Make) -> None:
    reached, go = threading.Semaphore(0), threading.Event()
    steps: list[int] = []

    def step() -> None:
        steps.append(1)
        reached.release()
        if len(steps) == 7:  # in the second run
            assert go.wait(LONG)

    panel = made(failing(small_task(), step))
    panel.start_button.click()
    panel.start_button.click()
    for _ in range(7):
        assert reached.acquire(timeout=LONG)
    inputs = (panel.start_button, panel.sides[0].source, panel.stop_button)
    assert (panel.state, [one.disabled for one in inputs]) == (PanelState.RUNNING, [True, True, False])
    panel.stop_button.click()
    assert (panel.state, panel.stop_button.disabled) == (PanelState.STOPPING, True)
    go.set()
    assert "no verdict" in ended(panel, PanelState.STOPPED)
    assert len(steps) == 7  # the step under way was the last
    assert panel.comparison is None
    assert not panel.start_button.disabled


@pytest.mark.parametrize("at", [1, 3], ids=["at the first step", "later"])
def test_a_task_that_raises_is_a_sentence_and_the_panel_is_usable_again(made: Make, at: int) -> None:
    steps: list[int] = []

    def step() -> None:
        steps.append(1)
        if len(steps) == at:
            raise KeyError("labels")

    panel = made(failing(small_task(), step))
    run(panel, PanelState.FAILED)
    assert missing(panel, "KeyError: 'labels'", "Traceback") == []
    run(panel)


def test_a_task_that_cannot_be_found_is_a_sentence_and_can_be_named_anew(made: Make) -> None:
    panel = made("digits-lenett")
    assert "digits-lenett" in run(panel, PanelState.FAILED)
    assert not panel.task.disabled


def test_progress_is_told_with_what_is_left(made: Make) -> None:
    from workbench.panels.compare_panel import _Comparing
    from workbench.training.run import RunProgress

    panel = made()
    sides = (("O0", BoostConfig(), "O0"), ("O1", BoostConfig(), "O1"))
    panel._comparing = asked = _Comparing(sides, (4, 9), 100)
    panel._show_progress(asked, 1, RunProgress(50, 100, 0.25, float("nan"), 1.0, 2.0))
    told = ("run 2 of 4 · O1, seed 4 · 50 of 100 steps · loss 0.25", "left, plus the timing")
    assert missing(panel, *told) == []
    assert panel.bar.value == pytest.approx(0.95 * 1.5 / 4)
    for number in range(4):
        panel._show_progress(asked, number, RunProgress(100, 100, 0.2, 0.5 + number % 2, 1.0, 2.0))
    assert "all 4 runs done; now timing steps side by side" in text_in(panel)
    assert asked.metrics == [[0.5, 0.5], [1.5, 1.5]]
    assert list(drawn(panel.figure).data[2].x) == [1.0, 1.0]


def test_closing_in_the_middle_leaves_no_thread(made: Make) -> None:
    reached = threading.Event()
    panel = made(failing(small_task(), reached.set), steps=100_000)
    panel.start_button.click()
    assert reached.wait(LONG)
    panel.close()
    assert our_threads() == []


def test_a_configuration_kept_by_name_can_be_a_side_and_one_that_diverges_is_said(made: Make) -> None:
    panel = made(small_task(), steps=8, seeds=1)
    panel.shared.change({"loss_scale.window": 500})
    panel.shared.keep("careful")
    panel.sides[1].source.value = "careful"
    steep = '{"boost": {"mode": "disable_all"}, "optimizer": {"name": "SGD", "lr": 3e38}}'
    choose(panel.sides[2], "JSON text", steep)
    assert "JSON text diverged on 1 of 1 seeds" in run(panel)
    assert labels(panel) == ["O0", "careful", "JSON text"]
    panel.shared.forget("careful")
    assert panel.sides[1].source.value == "This configuration"
