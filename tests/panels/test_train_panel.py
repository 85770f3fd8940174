from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ipywidgets as widgets
import pytest
import torch

from tests.experiments.small_tasks import small_task
from tests.kit.processes import wait_until
from tests.panels.looking import LONG, ended, missing, one_of, our_threads, run, text_in
from workbench.config import BoostConfig
from workbench.core.records import Event, StepRecord
from workbench.panels.live_trace import LiveTrace
from workbench.panels.panel import PanelState
from workbench.panels.shared_config import SharedConfig
from workbench.panels.train_panel import TrainPanel
from workbench.runs import read_run
from workbench.tasks import Task

Make = Callable[..., Any]


@pytest.fixture
def made(keep: Callable[[TrainPanel], TrainPanel]) -> Make:
    """Make panels that train a few steps at O0 and record nothing."""

    def make(task: Task | str, **options: Any) -> TrainPanel:
        given: dict[str, Any] = {"shared": SharedConfig(level="O0"), "steps": 12, "out": None, "measure": False}
        return keep(TrainPanel(task, **(given | options)))

    return make


class Steps:
    """Lets a run do its steps one by one, as a test wants them."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)
        self.free = False

    def __call__(self, step: int) -> None:
        self.reached.release()
        if not self.free:
            assert self.allowed.acquire(timeout=LONG)

    def until(self, step: int) -> None:
        """Wait until the loss of a step is being computed, with all before it done."""
        for number in range(step + 1):
            if number:
                self.allowed.release()
            assert self.reached.acquire(timeout=LONG)

    def release(self) -> None:
        self.free = True
        self.allowed.release()


def test_a_run_ends_in_done_and_its_figures_show_what_was_trained(made: Make) -> None:
    panel = made(small_task(), steps=20, evaluate_every=10)
    assert panel.state is PanelState.IDLE
    assert "Press Start to train; loss and metric are drawn here." in text_in(panel)
    run(panel)
    assert missing(panel, "20 steps in", "accuracy") == []
    assert [step for step, _ in panel.result.curve] == [10, 20]
    assert panel.trace.steps["step"].tolist() == list(range(20))
    assert panel.trace.evaluations == list(panel.result.curve)
    assert panel.bar.value == panel.bar.max == 20
    assert "20 steps in" in panel.static_html()

    loss, metric = panel.live.figure.shown.data
    assert (list(loss.x), list(metric.x)) == (list(range(20)), [10, 20])
    assert list(loss.y) == pytest.approx(panel.trace.steps["loss"].tolist())
    assert list(metric.y) == pytest.approx([100 * value for _, value in panel.trace.evaluations])
    assert panel.choice.options == ("Loss and metric", "Step time"), "float32 has no loss scale to look at"
    panel.choice.value = "Step time"
    assert [bar.name for bar in panel.live.figure.shown.data] == ["data", "forward", "backward", "update", "other"]


def test_a_run_that_its_schedule_shortens_fills_the_bar(made: Make) -> None:
    shared = SharedConfig(BoostConfig.from_dict({"schedule": {"length": 0.5, "shape": "linear"}}), "O0")
    panel = made(small_task(), shared=shared, steps=20)
    assert "10 steps in" in run(panel)
    assert panel.bar.value == panel.bar.max == 10


@pytest.mark.parametrize(
    ("optimizer", "view", "axis"),
    [
        ({"name": "thor", "frequency": 5}, "Second order", "Layers"),
        ({"name": "adam_offload"}, "Offload", "Time per step (ms)"),
    ],
    ids=["thor", "adam_offload"],
)
def test_a_view_is_offered_while_a_run_tells_its_columns(
    made: Make, optimizer: dict[str, Any], view: str, axis: str
) -> None:
    always = ("Loss and metric", "Step time")
    shared = SharedConfig(BoostConfig.from_dict({"optimizer": optimizer}), "O0")
    panel = made(small_task(), shared=shared)
    panel.choice.value = "Step time"
    assert panel.choice.options == always
    run(panel)
    assert panel.choice.options == (*always, view)
    assert panel.choice.value == "Step time", "what was looked at stays"
    panel.choice.value = view
    assert panel.live.figure.shown.layout.yaxis.title.text == axis

    shared.set(BoostConfig())
    run(panel)
    assert panel.choice.options == always
    assert panel.choice.value == "Loss and metric", "a run without the view leaves it"
    assert panel.live.figure.shown.layout.yaxis.title.text == "Training loss (nats)"


def test_the_run_is_recorded_with_the_shared_configuration(made: Make, tmp_path: Path) -> None:
    config = BoostConfig.from_dict({"loss_scale": {"kind": "dynamic", "init": 8.0}})
    panel = made(small_task(), shared=SharedConfig(config, "O0"), out=tmp_path)
    assert "dynamic loss scale" in text_in(panel)
    run(panel)
    assert str(panel.result.path) in text_in(panel)
    assert BoostConfig.from_dict(read_run(panel.result.path).config) == config


def test_the_buttons_follow_the_state_and_stop_ends_the_run_within_one_step(made: Make) -> None:
    steps = Steps()
    panel = made(small_task(on_loss=steps), steps=1000, measure=True)
    enabled_in = {
        PanelState.RUNNING: ["Pause", "Stop"],
        PanelState.PAUSED: ["Resume", "Stop"],
        PanelState.STOPPING: [],
        PanelState.STOPPED: ["Start", "Compare now"],
    }

    def is_in(state: PanelState) -> bool:
        buttons = (panel.start_button, panel.pause_button, panel.stop_button, panel.measure_button)
        enabled = [button.description for button in buttons if not button.disabled]
        return panel.state is state and enabled == enabled_in[state] and panel.steps.disabled is state.busy

    assert (panel.start_button.disabled, panel.stop_button.disabled) == (False, True)
    panel.start()
    steps.until(2)
    assert is_in(PanelState.RUNNING)
    for button, state in (
        (panel.pause_button, PanelState.PAUSED),
        (panel.pause_button, PanelState.RUNNING),
        (panel.stop_button, PanelState.STOPPING),
    ):
        button.click()
        assert is_in(state)
    steps.release()
    assert "stopped on request after 3 steps" in ended(panel, PanelState.STOPPED)
    assert is_in(PanelState.STOPPED)
    assert (panel.result.stopped, panel.result.steps) == (True, 3)
    assert panel.speed is None, "who stops wants no measurement"


@pytest.mark.parametrize("stopped", [False, True], ids=["resumed", "stopped"])
def test_a_paused_run_waits_until_it_is_resumed_or_stopped(made: Make, stopped: bool) -> None:
    steps = Steps()
    panel = made(small_task(on_loss=steps), steps=10, evaluate_every=10)
    panel.start()
    steps.until(3)
    panel._draw_after = math.inf  # as if drawing were costly
    panel.pause_or_resume()
    steps.release()
    wait_until(lambda: len(panel.trace.steps) == 4)
    assert not panel.wait(0.3)
    assert not steps.reached.acquire(blocking=False), "no further step was begun"
    assert panel.trace.steps["step"].tolist() == [0, 1, 2, 3], "what was trained is shown while it waits"
    wait_until(lambda: panel.live.figure is not None and list(panel.live.figure.shown.data[0].x) == [0, 1, 2, 3])
    (panel.stop if stopped else panel.pause_or_resume)()
    ended(panel, PanelState.STOPPED if stopped else PanelState.DONE)
    assert (panel.result.stopped, panel.result.steps) == ((True, 4) if stopped else (False, 10))


# -- what goes wrong: a sentence, and the panel can be used again at once ----------------------------------------------


class FailsInEvaluation(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            raise RuntimeError("no such image")
        return super().forward(x)


def interrupt(step: int) -> None:
    if step == 2:
        raise KeyboardInterrupt


def runs_again(panel: TrainPanel, task: Task) -> None:
    panel.where.given = task
    assert "Traceback" not in run(panel)
    assert text_in(panel._error) == ""


@pytest.mark.parametrize(
    ("task", "told", "error"),
    [
        ({"fail_at": 1}, "ZeroDivisionError: the loss of the user's task failed (line ", ZeroDivisionError),
        ({"model": lambda: FailsInEvaluation(4, 2)}, "RuntimeError: no such image", RuntimeError),
        ({"poison_from": 4}, "step 4: the loss is nan; training diverged", type(None)),
        ({"on_loss": interrupt}, "interrupted; start again when you like", KeyboardInterrupt),
    ],
    ids=["in a step", "in evaluation", "nan", "interrupted"],
)
def test_a_task_that_fails_is_a_sentence_and_its_traceback_is_folded(
    made: Make, task: dict[str, Any], told: str, error: type
) -> None:
    panel = made(small_task(**task))
    text = run(panel, PanelState.FAILED)
    assert told in text
    assert isinstance(panel.error, error)
    assert ("Traceback (most recent call last)" in text) is issubclass(error, BaseException)
    assert (panel.result is not None and panel.result.diverged) is ("diverged" in told)
    runs_again(panel, small_task())


def test_a_task_that_cannot_be_loaded_is_a_sentence(made: Make, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    panel = made(f"{tmp_path / 'mine.py'}:task")
    assert not panel.task.disabled
    assert "SystemExit: 3 (line 1 of " in run(panel, PanelState.FAILED)
    panel.task.value = "digits-lenett"
    assert "unknown task 'digits-lenett'; did you mean 'digits-lenet'?" in run(panel, PanelState.FAILED)
    runs_again(panel, small_task())


def test_a_missing_device_is_a_sentence(made: Make) -> None:
    panel = made(small_task(), device="npu")
    assert panel.task.disabled, "a task object is not to be renamed"
    assert "✕ device must be present on this machine" in run(panel, PanelState.FAILED)


def test_a_configuration_that_cannot_be_resolved_is_told_before_and_when_it_is_started(made: Make) -> None:
    panel = made(small_task(), shared=SharedConfig(BoostConfig.from_dict({"boost": {"mode": "enable_all"}})))
    assert "dim_reduce needs a source for its subspace" in text_in(panel.controls)
    run(panel, PanelState.FAILED)
    panel.preset.buttons.value = "O0"
    runs_again(panel, small_task())


def test_text_where_a_number_belongs_is_told_beside_the_field(made: Make) -> None:
    panel = made(small_task())
    for control, text, sentence in (
        (panel.steps, "many", 'steps must be a whole number, 1 or more, got "many"'),
        (panel.steps, "0", "steps must be a whole number, 1 or more, got 0"),
        (panel.seed, "-1", "seed must be a whole number, 0 or more, got -1"),
        (panel.evaluate_every, "2.5", "evaluate_every must be a whole number, 1 or more, got 2.5"),
    ):
        box = one_of(control.widget, widgets.Text)
        box.value = text
        panel.start_button.click()
        assert panel.state is PanelState.IDLE
        assert sentence in text_in(control.widget)
        box.value = "3"
    run(panel)


def test_step_time_is_compared_with_o0_after_the_run_and_on_request(made: Make) -> None:
    accumulating = {"boost": {"mode": "manual", "grad_accumulation": True}}
    config = BoostConfig.from_dict(accumulating | {"grad_accumulation": {"grad_accumulation_step": 2}})
    panel = made(small_task(), shared=SharedConfig(config, "O0"), measure=True)
    run(panel)
    assert f"Steps are {1 / panel.speed.ratio:.2f} x as fast as O0's" in text_in(panel.plots)
    assert "A run has" not in text_in(panel.plots), "as many as O0's"
    result, first = panel.result, panel.speed
    panel.measure_button.click()
    ended(panel)
    assert panel.speed not in (None, first)
    assert panel.result is result, "measuring is no run"


def test_where_a_run_is_shorter_the_comparison_of_steps_says_what_a_whole_run_gains(made: Make) -> None:
    config = BoostConfig.from_dict({"schedule": {"length": 0.5}, "batch": {"factor": 2.0}})
    panel = made(small_task(), shared=SharedConfig(config, "O0"), measure=True)
    for act in (panel.start_button.click, panel.measure_button.click):
        act()
        said = ended(panel)
        assert f"A run has 3 steps for O0's 12: it is {4 / panel.speed.ratio:.2f} x as fast." in said


def test_o0_is_not_compared_with_itself(made: Make) -> None:
    panel = made(small_task(), measure=True)
    run(panel)
    panel.measure_button.click()
    assert panel.speed is None
    assert "this is O0 itself: there is nothing to compare" in text_in(panel)


def test_many_clicks_on_start_begin_one_run(made: Make) -> None:
    begun: list[int] = []
    steps = Steps()

    def on_loss(step: int) -> None:
        begun.append(step)
        steps(step)

    panel = made(small_task(on_loss=on_loss))
    clicks = [threading.Thread(target=panel.start_button.click) for _ in range(6)]
    for click in clicks:
        click.start()
    for click in clicks:
        click.join(LONG)
    steps.until(0)
    assert begun == [0]
    wait_until(lambda: len(our_threads()) == 2)  # a look at the task may still be on show
    steps.release()
    ended(panel)


def test_closing_a_running_panel_ends_its_run(made: Make, tmp_path: Path) -> None:
    steps = Steps()
    panel = made(small_task(on_loss=steps), steps=100_000, out=tmp_path)
    panel.start()
    steps.until(3)
    steps.release()
    panel.close()
    assert our_threads() == []
    (recorded,) = tmp_path.iterdir()
    assert read_run(recorded).summary["state"] == "stopped"


def objects() -> tuple[int, int]:
    """Count what the garbage collector knows after it has run, and the traces of runs among it."""
    gc.collect()
    known = gc.get_objects()
    return len(known), sum(type(thing) is LiveTrace for thing in known)


@pytest.mark.long
def test_fifty_panels_leave_neither_threads_nor_widgets_and_hardly_memory(made: Make) -> None:
    n_widgets = len(widgets.widget._instances)

    def make(times: int) -> None:
        for _ in range(times):
            with TrainPanel(small_task(), SharedConfig(level="O0"), steps=2, out=None, measure=False) as panel:
                panel.start()
                assert panel.wait(LONG)

    make(5)
    n_objects, n_traces = objects()
    make(50)
    after, traces_after = objects()
    assert len(widgets.widget._instances) == n_widgets
    assert our_threads() == []
    assert traces_after == n_traces, "no trace is kept"
    # Plotly's figure widgets are never freed; a closed one is an empty shell of some 200 objects.
    assert (after - n_objects) / 50 < 900


@pytest.mark.parametrize(("view", "name"), [("Loss and metric", "small"), ("Loss scale", "recorded scale")])
def test_what_is_looked_at_is_drawn_as_often_as_its_cost_allows(view: str, name: str) -> None:
    def told(first: int, last: int) -> tuple[list[StepRecord], list[Event]]:
        return [
            StepRecord(step=i, seconds=i, step_ms=1.0, loss=1.0, loss_scale=2.0**i, loss_scale_after=2.0 ** (i + 1))
            for i in range(first, last)
        ], []

    def last_step() -> float:
        (line,) = (trace for trace in panel.live.figure.shown.data if trace.name == name)
        return float(line.x[-1]) - (view == "Loss scale")  # which ends with the scale that the last step has left

    with TrainPanel(small_task(), out=None) as panel:
        panel._offer_figures(told(1, 2)[0])  # a run that has a loss scale
        panel.choice.value = view
        with (
            patch("workbench.panels.train_panel.time.monotonic", lambda: now),
            patch("workbench.panels.train_panel.time.thread_time", lambda: next(worked)),
        ):
            now, worked = 1e9, iter([0.0, 0.003, 1.0, 1.1, 2.0, 2.0])
            for later, steps, drawn in (
                (0.0, (0, 4), 3),  # in 3 ms: 0.3 % of the second that follows
                (0.9, (4, 9), 3),
                (0.2, (9, 12), 11),  # in 100 ms: it would be 33 s, and nobody waits so long
                (14.9, (12, 13), 11),
                (0.2, (13, 14), 13),
            ):
                now += later
                panel._take([partial(panel._add, *told(*steps))])
                assert last_step() == drawn


def test_a_task_that_does_not_exist_says_so_at_once_and_until_another_is_named(keep: Callable[[Any], Any]) -> None:
    panel = keep(TrainPanel("digits-lenett", SharedConfig(level="O0"), out=None))
    assert panel.where._reader.wait(LONG)
    assert "unknown task 'digits-lenett'; did you mean 'digits-lenet'?" in text_in(panel)
    panel.task.value = "digits-lenet"
    assert panel.where._reader.wait(LONG)
    assert "unknown task" not in text_in(panel)
    assert panel.state is PanelState.IDLE


def test_a_configuration_that_was_found_on_another_task_says_so_where_it_is_trained(made: Make) -> None:
    found = BoostConfig.from_dict({"schedule": {"length": 0.5}, "provenance": {"environment": {"task": "theirs"}}})
    panel = made(small_task(), shared=SharedConfig(found, "O1"))
    wait_until(lambda: "found on the task theirs" in text_in(panel), LONG)
