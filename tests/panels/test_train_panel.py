from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ipywidgets as widgets
import pytest
import torch

from tests.experiments.small_tasks import small_task
from tests.panels.looking import everything, our_threads, text_in
from workbench.config import BoostConfig
from workbench.core.records import Event, StepRecord
from workbench.panels.live_trace import LiveTrace
from workbench.panels.panel import PanelState
from workbench.panels.shared_config import SharedConfig
from workbench.panels.train_panel import TrainPanel
from workbench.runs import read_run
from workbench.tasks import Task

LONG = 60.0


@pytest.fixture
def made() -> Iterator[Callable[..., TrainPanel]]:
    """Make panels that are closed afterwards, whatever happened; none may leave a thread."""
    panels: list[TrainPanel] = []

    def make(task: Task | str, **options: Any) -> TrainPanel:
        given: dict[str, Any] = {"shared": SharedConfig(level="O0"), "steps": 12, "out": None, "measure": False}
        panels.append(TrainPanel(task, **(given | options)))
        return panels[-1]

    yield make
    for panel in panels:
        panel.close()
    assert our_threads() == []


def state_of(panel: TrainPanel) -> PanelState:
    """Return the state; a function, because a checker believes that attributes stay what they were."""
    return panel.state


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


def test_a_run_ends_in_done_with_its_result(made: Callable[..., TrainPanel]) -> None:
    panel = made(small_task(), steps=20, evaluate_every=10)
    assert state_of(panel) is PanelState.IDLE
    panel.start_button.click()
    assert panel.wait(LONG)
    assert state_of(panel) is PanelState.DONE
    assert panel.result is not None
    assert [step for step, _ in panel.result.curve] == [10, 20]
    assert panel.trace.steps["step"].tolist() == list(range(20))
    assert panel.trace.evaluations == list(panel.result.curve)
    assert panel.bar.value == panel.bar.max == 20
    assert "20 steps in" in text_in(panel)
    assert "accuracy" in text_in(panel)
    assert "20 steps in" in panel.static_html()


def test_the_figure_shows_what_was_trained(made: Callable[..., TrainPanel]) -> None:
    panel = made(small_task(), steps=20, evaluate_every=10)
    assert "No run has recorded a step yet." in str(panel.live.widget.layout.annotations)
    panel.start()
    assert panel.wait(LONG)
    loss, metric = panel.live.widget.data
    assert list(loss.x) == list(range(20))
    assert list(loss.y) == pytest.approx(panel.trace.steps["loss"].tolist())
    assert list(metric.x) == [10, 20]
    assert list(metric.y) == pytest.approx([100 * value for _, value in panel.trace.evaluations])
    for name, axis in (("Loss scale", "Loss scale (log2 axis)"), ("Loss and metric", "Training loss (nats)")):
        panel.choice.value = name
        assert panel.live.widget.layout.yaxis.title.text == axis
    panel.choice.value = "Step time"
    assert [bar.name for bar in panel.live.widget.data] == ["data", "forward", "backward", "update", "other"]


@pytest.mark.parametrize(
    ("optimizer", "view", "axis"),
    [
        pytest.param({"name": "thor", "frequency": 5}, "Second order", "Layers", id="thor"),
        pytest.param({"name": "adam_offload"}, "Offload", "Time per step (ms)", id="adam_offload"),
    ],
)
def test_a_view_is_offered_while_a_run_tells_its_columns(
    made: Callable[..., TrainPanel], optimizer: dict[str, Any], view: str, axis: str
) -> None:
    always = ("Loss and metric", "Loss scale", "Step time")
    shared = SharedConfig(BoostConfig.from_dict({"optimizer": optimizer}), "O0")
    panel = made(small_task(), shared=shared)
    panel.choice.value = "Loss scale"
    assert panel.choice.options == always
    panel.start()
    assert panel.wait(LONG)
    assert panel.choice.options == (*always, view)
    assert panel.choice.value == "Loss scale", "what was looked at stays"
    panel.choice.value = view
    assert panel.live.widget.layout.yaxis.title.text == axis

    shared.set(BoostConfig())
    panel.start()
    assert panel.wait(LONG)
    assert panel.choice.options == always
    assert panel.choice.value == "Loss and metric", "a run without the view leaves it"
    assert panel.live.widget.layout.yaxis.title.text == "Training loss (nats)"


def test_the_run_is_recorded_with_the_shared_configuration(made: Callable[..., TrainPanel], tmp_path: Path) -> None:
    config = BoostConfig.from_dict({"loss_scale": {"kind": "dynamic", "init": 8.0}})
    panel = made(small_task(), shared=SharedConfig(config, "O0"), out=tmp_path)
    assert "dynamic loss scale" in text_in(panel)
    panel.start()
    assert panel.wait(LONG)
    assert panel.result is not None
    assert panel.result.path is not None
    assert BoostConfig.from_dict(read_run(panel.result.path).config) == config
    assert str(panel.result.path) in text_in(panel)


def test_the_buttons_follow_the_state(made: Callable[..., TrainPanel]) -> None:
    steps = Steps()
    panel = made(small_task(on_loss=steps))

    def enabled() -> list[str]:
        buttons = (panel.start_button, panel.pause_button, panel.stop_button, panel.measure_button)
        return [button.description for button in buttons if not button.disabled]

    assert enabled() == ["Start", "Compare now"]
    panel.start()
    steps.until(2)
    assert state_of(panel) is PanelState.RUNNING
    assert enabled() == ["Pause", "Stop"]
    assert panel.steps.disabled
    panel.pause_button.click()
    assert state_of(panel) is PanelState.PAUSED
    assert enabled() == ["Resume", "Stop"]
    panel.pause_button.click()
    assert enabled() == ["Pause", "Stop"]
    panel.stop_button.click()
    assert state_of(panel) is PanelState.STOPPING
    assert enabled() == []
    steps.release()
    assert panel.wait(LONG)
    assert state_of(panel) is PanelState.DONE
    assert enabled() == ["Start", "Compare now"]
    assert not panel.steps.disabled


def test_stop_ends_the_run_within_one_step(made: Callable[..., TrainPanel]) -> None:
    steps = Steps()
    panel = made(small_task(on_loss=steps), steps=1000, measure=True)
    panel.start()
    steps.until(4)
    panel.stop()
    steps.release()
    assert panel.wait(LONG)
    assert panel.result is not None
    assert (panel.result.stopped, panel.result.steps) == (True, 5)
    assert panel.speed is None, "who stops wants no measurement"
    assert "stopped on request after 5 steps" in text_in(panel)


def test_a_paused_run_waits_and_goes_on(made: Callable[..., TrainPanel]) -> None:
    steps = Steps()
    panel = made(small_task(on_loss=steps), steps=10)
    panel.start()
    steps.until(3)
    panel.pause_or_resume()
    steps.release()
    assert not panel.wait(0.3)
    assert not steps.reached.acquire(blocking=False), "no further step was begun"
    assert panel.trace.steps["step"].tolist() == [0, 1, 2, 3], "what was trained is shown while it waits"
    panel.pause_or_resume()
    assert panel.wait(LONG)
    assert panel.result is not None
    assert panel.result.steps == 10


def test_a_paused_run_can_be_stopped(made: Callable[..., TrainPanel]) -> None:
    steps = Steps()
    panel = made(small_task(on_loss=steps), steps=1000)
    panel.start()
    steps.until(1)
    panel.pause_or_resume()
    steps.release()
    panel.stop()
    assert panel.wait(LONG)
    assert panel.result is not None
    assert (panel.result.stopped, panel.result.steps) == (True, 2)


def runs_again(panel: TrainPanel, task: Task) -> None:
    panel.where.given = task
    panel.start_button.click()
    assert panel.wait(LONG)
    assert state_of(panel) is PanelState.DONE
    assert panel.error is None
    assert "Traceback" not in text_in(panel)


def test_a_task_that_fails_in_a_step_is_a_sentence_with_its_traceback_folded(made: Callable[..., TrainPanel]) -> None:
    panel = made(small_task(fail_at=1))
    panel.start()
    assert panel.wait(LONG)
    assert state_of(panel) is PanelState.FAILED
    text = text_in(panel)
    assert "ZeroDivisionError: the loss of the user's task failed (line " in text
    assert "Traceback (most recent call last)" in text
    assert isinstance(panel.error, ZeroDivisionError)
    runs_again(panel, small_task())


def test_a_task_that_fails_in_evaluation_is_a_sentence(made: Callable[..., TrainPanel]) -> None:
    class Fails(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.training:
                raise RuntimeError("no such image")
            return super().forward(x)

    panel = made(small_task(model=lambda: Fails(4, 2)))
    panel.start()
    assert panel.wait(LONG)
    assert state_of(panel) is PanelState.FAILED
    assert "RuntimeError: no such image" in text_in(panel)
    runs_again(panel, small_task())


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module' (line 1 of "),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("task = 3\n", "must be a workbench Task or a function that returns one, got int"),
    ],
    ids=["import", "exit", "no task"],
)
def test_a_task_that_cannot_be_loaded_is_a_sentence(
    made: Callable[..., TrainPanel], tmp_path: Path, source: str, told: str
) -> None:
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    panel = made(f"{tmp_path / 'mine.py'}:task")
    panel.start()
    assert panel.wait(LONG)
    assert state_of(panel) is PanelState.FAILED
    assert told in text_in(panel)
    panel.task.value = "digits-lenett"
    panel.start()
    assert panel.wait(LONG)
    assert "unknown task 'digits-lenett'; did you mean 'digits-lenet'?" in text_in(panel)
    runs_again(panel, small_task())


def test_a_loss_that_turns_nan_is_told_and_the_panel_is_usable(made: Callable[..., TrainPanel]) -> None:
    panel = made(small_task(poison_from=4), steps=1000)
    panel.start()
    assert panel.wait(LONG)
    assert state_of(panel) is PanelState.FAILED
    assert panel.result is not None
    assert panel.result.diverged
    assert "step 4: the loss is nan; training diverged" in text_in(panel)
    runs_again(panel, small_task())
    assert "diverged" not in text_in(panel.footer.children[0])


def test_an_interrupted_run_is_told_and_the_panel_is_usable(made: Callable[..., TrainPanel]) -> None:
    def interrupt(step: int) -> None:
        if step == 2:
            raise KeyboardInterrupt

    panel = made(small_task(on_loss=interrupt))
    panel.start()
    assert panel.wait(LONG)
    assert state_of(panel) is PanelState.FAILED
    assert "interrupted; start again when you like" in text_in(panel)
    runs_again(panel, small_task())


def test_a_missing_device_is_a_sentence(made: Callable[..., TrainPanel]) -> None:
    panel = made(small_task(), device="npu")
    panel.start()
    assert panel.wait(LONG)
    assert state_of(panel) is PanelState.FAILED
    assert "✕ `device` must be present on this machine".replace("`", "") in text_in(panel)


def test_a_configuration_that_cannot_be_resolved_is_told_before_and_when_it_is_started(
    made: Callable[..., TrainPanel],
) -> None:
    shared = SharedConfig(BoostConfig.from_dict({"boost": {"mode": "enable_all"}}))
    panel = made(small_task(), shared=shared)
    assert "dim_reduce needs a source of its subspace" in text_in(panel.controls)
    panel.start()
    assert panel.wait(LONG)
    assert state_of(panel) is PanelState.FAILED
    panel.preset.buttons.value = "O0"
    runs_again(panel, small_task())


@pytest.mark.parametrize(
    ("field", "text", "sentence"),
    [
        ("steps", "many", 'steps must be a whole number, 1 or more, got "many"'),
        ("steps", "0", "steps must be a whole number, 1 or more, got 0"),
        ("seed", "-1", "seed must be a whole number, 0 or more, got -1"),
        ("evaluate_every", "2.5", "evaluate_every must be a whole number, 1 or more, got 2.5"),
    ],
)
def test_text_where_a_number_belongs_is_told_beside_the_field(
    made: Callable[..., TrainPanel], field: str, text: str, sentence: str
) -> None:
    panel = made(small_task())
    control = getattr(panel, field)
    box = next(w for w in everything(control.widget) if isinstance(w, widgets.Text))
    box.value = text
    panel.start_button.click()
    assert state_of(panel) is PanelState.IDLE
    assert sentence in text_in(control.widget)
    box.value = "3"
    panel.start_button.click()
    assert panel.wait(LONG)
    assert state_of(panel) is PanelState.DONE


def test_step_time_is_compared_with_o0_after_the_run_and_on_request(made: Callable[..., TrainPanel]) -> None:
    config = BoostConfig.from_dict(
        {
            "boost": {"mode": "manual", "grad_accumulation": True},
            "grad_accumulation": {"grad_accumulation_step": 2},
        }
    )
    panel = made(small_task(), shared=SharedConfig(config, "O0"), measure=True)
    panel.start()
    assert panel.wait(LONG)
    assert state_of(panel) is PanelState.DONE
    assert panel.speed is not None
    assert f"A step takes {panel.speed.ratio:.2f} x the time of O0" in text_in(panel.plots)
    result, first = panel.result, panel.speed
    panel.measure_button.click()
    assert panel.wait(LONG)
    assert panel.speed is not None
    assert panel.speed is not first
    assert panel.result is result, "measuring is no run"


def test_many_clicks_on_start_begin_one_run(made: Callable[..., TrainPanel]) -> None:
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
    assert len(our_threads()) == 2
    steps.release()
    assert panel.wait(LONG)
    assert panel.error is None


def test_closing_a_running_panel_ends_its_run(made: Callable[..., TrainPanel], tmp_path: Path) -> None:
    steps = Steps()
    panel = made(small_task(on_loss=steps), steps=100_000, out=tmp_path)
    panel.start()
    steps.until(3)
    steps.release()
    panel.close()
    assert our_threads() == []
    (run,) = tmp_path.iterdir()
    assert read_run(run).summary["state"] == "stopped"


def test_a_task_object_is_not_to_be_renamed(made: Callable[..., TrainPanel]) -> None:
    assert made(small_task()).task.disabled
    assert not made("digits-lenet").task.disabled


def objects() -> int:
    """Count what the garbage collector knows, after it has run."""
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.long
def test_fifty_runs_leave_neither_threads_nor_widgets_nor_memory(made: Callable[..., TrainPanel]) -> None:
    panel = made(small_task(), steps=4)

    def run(times: int) -> None:
        for _ in range(times):
            panel.start()
            assert panel.wait(LONG)
            assert state_of(panel) is PanelState.DONE

    run(5)
    assert our_threads() == []
    n_widgets, n_threads, n_objects = len(widgets.widget._instances), threading.active_count(), objects()
    run(50)
    assert len(widgets.widget._instances) == n_widgets
    assert threading.active_count() == n_threads
    assert objects() - n_objects < 200, "fewer than four objects a run"


@pytest.mark.long
def test_fifty_panels_leave_neither_threads_nor_widgets_and_hardly_memory(made: Callable[..., TrainPanel]) -> None:
    n_widgets = len(widgets.widget._instances)

    def make(times: int) -> None:
        for _ in range(times):
            with TrainPanel(small_task(), SharedConfig(level="O0"), steps=2, out=None, measure=False) as panel:
                panel.start()
                assert panel.wait(LONG)

    make(5)
    n_objects, n_tables = objects(), tables()
    make(50)
    per_panel = (objects() - n_objects) / 50
    assert len(widgets.widget._instances) == n_widgets
    assert our_threads() == []
    assert tables() == n_tables, "no trace is kept"
    # Plotly's figure widgets are never freed; a closed one is an empty shell of some 200 objects.
    assert per_panel < 900


def tables() -> int:
    return sum(type(thing) is LiveTrace for thing in gc.get_objects())


@pytest.mark.parametrize(("view", "name"), [("Loss and metric", "small"), ("Loss scale", "recorded scale")])
def test_what_is_looked_at_is_drawn_as_often_as_its_cost_allows(view: str, name: str) -> None:
    def told(first: int, last: int) -> tuple[list[StepRecord], list[Event]]:
        return [
            StepRecord(step=i, seconds=i, step_ms=1.0, loss=1.0, loss_scale=2.0**i, loss_scale_after=2.0 ** (i + 1))
            for i in range(first, last)
        ], []

    def last_step() -> float:
        (line,) = (trace for trace in panel.live.widget.data if trace.name == name)
        return float(line.x[-1])

    with TrainPanel(small_task(), out=None) as panel:
        panel.choice.value = view
        with (
            patch("workbench.panels.train_panel.time.monotonic", lambda: now),
            patch("workbench.panels.train_panel.time.thread_time", lambda: next(worked)),
        ):
            now, worked = 1e9, iter([0.0, 0.003, 1.0, 1.1, 2.0, 2.0])
            panel._take([told(0, 4)])
            assert last_step() == 3  # 3 ms: 0.3 % of the second that follows
            now += 0.9
            panel._take([told(4, 9)])
            assert last_step() == 3
            now += 0.2
            panel._take([told(9, 12)])
            assert last_step() == 11  # 100 ms would be 33 s; nobody waits so long
            now += 14.9
            panel._take([told(12, 13)])
            assert last_step() == 11
            now += 0.2
            panel._take([told(13, 14)])
            assert last_step() == 13
