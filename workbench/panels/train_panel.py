"""Train: start, pause and stop a run, watch it learn, and see what the configuration does to the time of a step.

The run goes on in a thread beside the kernel, so cells can be executed meanwhile; a kernel's interrupt does not reach
it, the Stop button does. A page that was closed and opened again finds the run still going.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ipywidgets as widgets

from workbench.config import BoostConfig, ConfigError, ParameterInfo
from workbench.config.errors import shown
from workbench.core.text import format_duration
from workbench.figures import MetricScale, RunCurve
from workbench.figures.drawing import Drawing
from workbench.figures.labels import compact, counted
from workbench.figures.live import LiveFigure
from workbench.figures.loss_curves import loss_curves_drawing
from workbench.figures.loss_scale import loss_scale_drawing
from workbench.figures.offload import offload_drawing
from workbench.figures.second_order import second_order_drawing
from workbench.figures.step_time import step_time_drawing
from workbench.figures.thinning import MAXIMUM_POINTS
from workbench.panels import placed_widgets as placed
from workbench.panels.controls import ParameterControl, control_for
from workbench.panels.live_trace import LiveTrace
from workbench.panels.panel import (
    Panel,
    Theme,
    column,
    row,
    text_of,
)
from workbench.panels.presets import PresetChoice
from workbench.panels.shared_config import SharedConfig
from workbench.panels.state import PanelState
from workbench.panels.style import (
    error_html,
    faint,
    note_html,
    words,
)
from workbench.panels.worker import Outcome, RunControl

if TYPE_CHECKING:
    from workbench.core.records import Event, StepRecord
    from workbench.tasks import Task
    from workbench.training.run import RunProgress, RunResult
    from workbench.training.speed import SpeedRatio

__all__ = ["RunOrder", "TrainPanel", "train_and_measure"]

_DRAIN_SECONDS: Final = 0.2
_FIGURES: Final = ("Loss and metric", "Loss scale", "Step time")
# Figures that are offered once a run has told the column they need.
_FIGURES_BY_COLUMN: Final = {"thor.refreshed": "Second order", "offload.host_ms": "Offload"}
# Of the time, for drawing. Training and drawing share one interpreter, and where training has all cores its threads
# wait for the one that drawing takes: up to twice as long as drawing takes. A live panel may cost 2 % (benchmark
# live_panel), and its messages take half a millisecond each.
_DRAWING_SHARE: Final = 0.003
_UPDATES: Final = 4.0  # per second
_LIVE_POINTS: Final = 500  # of a line that still grows
_LONGEST_WAIT: Final = 15.0  # seconds between two pictures of a run that goes on


@dataclass(frozen=True, slots=True)
class RunOrder:
    """What one click on Start asks for.

    Args:
        task: A task, or its name.
        config: Configuration.
        level: Boost level.
        steps: Micro-batches; 0 trains nothing, to measure step times only.
        seed: Seed of weights, data order and split.
        device: Device name, or ``"auto"``.
        evaluate_every: Micro-batches between evaluations; None evaluates at the end only.
        out: Folder for the run directory; None records nothing.
        measure: Whether step times are compared with O0 afterwards.
    """

    task: Task | str
    config: BoostConfig
    level: str
    steps: int
    seed: int = 0
    device: str = "auto"
    evaluate_every: int | None = None
    out: Path | None = None
    measure: bool = False


@dataclass(frozen=True, slots=True)
class _Phase:
    sentence: str
    metric: MetricScale | None = None


def train_and_measure(order: RunOrder, control: RunControl) -> tuple[RunResult | None, SpeedRatio | None]:
    """Do what was ordered, and say how it goes; the work of the panel's thread.

    Args:
        order: What to do.
        control: Where to speak and to listen.

    Returns:
        The result of the run, None where none was ordered; the ratio of step times, None where it was not measured.

    Raises:
        TaskError: When the task cannot be found or loaded.
        ConfigError: When the configuration cannot be resolved.
    """
    control.send(_Phase("loading"))
    from workbench import api
    from workbench.tasks import load_task

    task = load_task(order.task) if isinstance(order.task, str) else order.task
    result = None
    if order.steps:
        control.send(_Phase("training", MetricScale(task.metric_name, higher_is_better=task.higher_is_better)))
        result = api.train(
            task,
            order.config,
            level=order.level,
            steps=order.steps,
            seed=order.seed,
            device=order.device,
            out=order.out,
            evaluate_every=order.evaluate_every,
            on_progress=control.send,
            stop=control.stop_requested,
            on_records=lambda records, events: control.send((records, events)),
            drain_seconds=_DRAIN_SECONDS,
            pause=control.pause,
        )
        if result.stopped or result.diverged:
            return result, None
    return result, _measured(order, task, control) if order.measure else None


def _measured(order: RunOrder, task: Task, control: RunControl) -> SpeedRatio | None:
    from workbench.core import devices
    from workbench.training.speed import measure_speed_ratio

    control.send(_Phase("measuring the time of a step against O0"))
    device = devices.select_device(order.device)
    baseline = BoostConfig(), "O0"
    return measure_speed_ratio(
        task,
        baseline,
        (order.config, order.level),
        device=device,
        seed=order.seed,
        rounds=4,
        steps_per_block=4,
        precision=0.1,
        stop=control.stop_requested,
    )


class TrainPanel(Panel):
    """Train a task and watch it.

    Args:
        task: A task, or its name as on the command line; a name can be changed in the panel.
        shared: The configuration; None makes one of its own.
        steps: Micro-batches.
        seed: Seed of weights, data order and split.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"npu"``.
        evaluate_every: Micro-batches between evaluations; None evaluates at the end only.
        out: Folder in which a run directory is made; None records nothing.
        measure: Whether step times are compared with O0 after the run.
        theme: See ``Panel``.

    Attributes:
        shared: The configuration that is trained.
        result: Result of the last run that ended by itself or by Stop; None before.
        speed: The last measurement of step times; None before.
        trace: What the present or last run has told.
        display_seconds: Processor time that showing the last run took while it went on, seconds.
    """

    def __init__(
        self,
        task: Task | str,
        shared: SharedConfig | None = None,
        *,
        steps: int = 300,
        seed: int = 0,
        device: str = "auto",
        evaluate_every: int | None = None,
        out: str | Path | None = "runs",
        measure: bool = True,
        theme: Theme = "auto",
    ) -> None:
        super().__init__("Train", theme=theme)
        self.shared = shared if shared is not None else SharedConfig()
        self.result: RunResult | None = None
        self.speed: SpeedRatio | None = None
        self.trace = LiveTrace()
        self.display_seconds = 0.0
        self._task = None if isinstance(task, str) else task
        self._metric = MetricScale("metric")
        self._progress: RunProgress | None = None
        self._columns: set[str] = set()
        self._draw_after = 0.0
        self._drawing_lock = threading.Lock()  # the choice and its picture belong together
        self.worker = self.new_worker(self._take, self._end, hz=_UPDATES)
        self._make_controls(task if isinstance(task, str) else task.name, steps, seed, device, evaluate_every, out)
        self.measure.value = measure
        self._make_plots(theme)
        self.cleaned_up_by(self.shared.observe(self._show_config))
        self._show_config(*self.shared.both())
        self.state_changed(self.state)

    # -- what it is made of --------------------------------------------------------------------------------------------

    def _make_controls(
        self, task: str, steps: int, seed: int, device: str, evaluate_every: int | None, out: str | Path | None
    ) -> None:
        self.task = placed.Text(
            value=task,
            continuous_update=False,
            disabled=self._task is not None,
            css="wb-wide",
            tooltip="Name of a built-in task, package.module:attribute, or path/to/file.py:attribute",
        )
        self.preset = PresetChoice(self, self.shared)
        self._in_effect = text_of("")
        self.steps = control_for(dataclasses.replace(_STEPS, default=steps))
        self.seed = control_for(dataclasses.replace(_SEED, default=seed))
        self.evaluate_every = control_for(_EVALUATE_EVERY, evaluate_every)
        known = ["auto", "cpu", "cuda", "npu"]
        self.device = placed.Dropdown(
            options=known if device in known else [*known, device],
            value=device,
            css="wb-wide",
            tooltip="Where to train",
        )
        self.out = placed.Text(
            value="" if out is None else str(out),
            placeholder="records nothing",
            continuous_update=False,
            css="wb-wide",
            tooltip="Folder in which a run directory is made; empty records nothing",
        )
        self.start_button = _button("Start", "Train with this configuration", "success")
        self.pause_button = _button("Pause", "Hold the run after the present step")
        self.stop_button = _button("Stop", "End the run after the present step")
        self.measure = placed.Checkbox(description="Compare step time with O0 afterwards", indent=False, css="wb-auto")
        self.measure_button = _button("Compare now", "Measure the time of a step against O0, without a run")
        self.start_button.on_click(self.guarded(lambda _: self.start()))
        self.pause_button.on_click(self.guarded(lambda _: self.pause_or_resume()))
        self.stop_button.on_click(self.guarded(lambda _: self.stop()))
        self.measure_button.on_click(self.guarded(lambda _: self.measure_speed()))
        self.bar = placed.IntProgress(min=0, max=steps, css="wb-bar")
        self._told = text_of(faint("not started"))
        self._more = column(text_of("Folder of run directories"), self.out)
        self._sections = placed.Accordion(children=(self._more,), titles=("More",), css="wb-more")
        self.on_change(self._sections, self._unfold, "selected_index")
        for control in (self.seed, self.evaluate_every):  # made when they are unfolded
            self.cleaned_up_by(control.close)
        self.controls.children = (
            text_of("Task"),
            self.task,
            self.preset.widget,
            self._in_effect,
            self.steps.widget,
            text_of("Device"),
            self.device,
            self._sections,
            row(self.start_button, self.pause_button, self.stop_button),
            self.bar,
            self._told,
            row(self.measure),
            row(self.measure_button),
        )

    def _unfold(self, index: int | None) -> None:
        if index == 0 and self.seed.widget not in self._more.children:
            self._more.children = (self.seed.widget, self.evaluate_every.widget, *self._more.children)

    def _make_plots(self, theme: Theme) -> None:
        self._drawings: dict[str, Callable[[int], Drawing]] = {
            "Loss and metric": self._loss_drawing,
            "Loss scale": lambda limit: loss_scale_drawing(
                self.trace.steps, self.trace.events, limit=limit, theme=theme
            ),
            "Step time": lambda _: step_time_drawing({self._label(): self.trace.steps}, theme=theme),
            "Second order": lambda limit: second_order_drawing(
                self.trace.steps, self.trace.events, limit=limit, theme=theme
            ),
            "Offload": lambda limit: offload_drawing(self.trace.steps, limit=limit, theme=theme),
        }
        self.choice = placed.ToggleButtons(options=list(_FIGURES), style={"button_width": "auto"}, css="wb-auto")
        # One widget that shows one figure at a time: what is not looked at costs training nothing, and a widget that
        # was hidden, or not yet on the page, when it was drawn would not know its width.
        self.live = LiveFigure(self._drawing(), theme=theme, interval=0.0)
        self.cleaned_up_by(self.live.close)
        self._speed_text = text_of("")
        self.on_change(self.choice, lambda _: self._redraw(anew=True))
        self.plots.children = (self.choice, self.live.widget, self._speed_text)

    # -- what the user does --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a run with what the controls say; a value that cannot be used is told beside its field."""
        order = self._order(measure=self.measure.value)
        if order is None or not self.machine.try_to(PanelState.RUNNING):
            return
        self.trace, self._progress, self.result = LiveTrace(), None, None
        self._columns.clear()
        self._draw_after = 0.0
        self.bar.max, self.bar.value = order.steps, 0
        self._begin(order)

    def measure_speed(self) -> None:
        """Measure the time of a step against O0, without a run."""
        order = self._order(measure=True, train=False)
        if order is not None and self.machine.try_to(PanelState.RUNNING):
            self._begin(order)

    def stop(self) -> None:
        """End the run after the present step."""
        if self.machine.try_to(PanelState.STOPPING):
            self.worker.stop()

    def pause_or_resume(self) -> None:
        """Hold the run after the present step, or let it go on."""
        if self.state is PanelState.RUNNING and self.machine.try_to(PanelState.PAUSED):
            self.worker.pause()
        elif self.state is PanelState.PAUSED and self.machine.try_to(PanelState.RUNNING):
            self.worker.resume()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is under way; for scripts and notebooks that want the result.

        Args:
            timeout: Longest wait, seconds; None waits for ever.

        Returns:
            Whether the work has ended.
        """
        ended = self.machine.wait_for(PanelState.IDLE, PanelState.DONE, PanelState.FAILED, timeout=timeout)
        return ended and self.worker.join(timeout)

    def state_changed(self, state: PanelState) -> None:
        """Enable what makes sense in a state.

        Args:
            state: The new state.
        """
        busy = state.busy
        for entry in (self.start_button, self.measure_button, self.device, self.out):
            entry.disabled = busy
        self.task.disabled = busy or self._task is not None
        self.pause_button.disabled = state not in (PanelState.RUNNING, PanelState.PAUSED)
        self.pause_button.description = "Resume" if state is PanelState.PAUSED else "Pause"
        self.stop_button.disabled = state not in (PanelState.RUNNING, PanelState.PAUSED)
        for control in (self.steps, self.seed, self.evaluate_every):
            control.lock(busy)

    def static_html(self) -> str:
        """Return the last results in words."""
        told = "".join(f"<p>{words(sentence)}</p>" for sentence in (self._result_sentence(), self._speed_sentence()))
        return f"{super().static_html()}{told}"

    def _order(self, *, measure: bool, train: bool = True) -> RunOrder | None:
        """Read the controls; None when one of them cannot be used, which is then told."""
        counts = [_usable(control) for control in (self.steps, self.seed, self.evaluate_every)]
        config, level = self.shared.both()
        if not all(counts):
            if not all(counts[1:]):
                self._sections.selected_index = 0  # where the sentence stands
            return None
        return RunOrder(
            task=self._task if self._task is not None else self.task.value,
            config=config,
            level=level,
            steps=self.steps.value if train else 0,
            seed=self.seed.value,
            device=self.device.value,
            evaluate_every=self.evaluate_every.value,
            out=Path(self.out.value).expanduser() if self.out.value.strip() else None,
            measure=measure,
        )

    def _begin(self, order: RunOrder) -> None:
        self.clear_error()
        self.note("")
        self.speed = None
        self._speed_text.value = ""
        self.worker.start(functools.partial(train_and_measure, order))

    # -- what the work tells -------------------------------------------------------------------------------------------

    def _take(self, messages: Sequence[Any]) -> None:
        records: list[StepRecord] = []
        events: list[Event] = []
        for message in messages:
            if isinstance(message, _Phase):
                self._metric = message.metric or self._metric
                self._told.value = note_html(f"{message.sentence} ...")
            elif isinstance(message, tuple):
                records += message[0]
                events += message[1]
            else:
                self._progress = message
                self._show_progress(message)
        if records or events:
            self.trace.add(records, events)
            self._offer_figures(records)
            for event in events:
                if event.kind in ("diverged", "scale_collapse", "scale_floor"):
                    self.log(event.message)
            self._draw_if_due()

    def _end(self, outcome: Outcome) -> None:
        self.display_seconds = outcome.display_seconds
        if outcome.error is not None:
            self.report_error(outcome.error, outcome.traceback if outcome.error.__cause__ is not None else "")
            self._told.value = note_html("failed; mend it and start again")
        else:
            result, speed = outcome.result
            self.result = result or self.result
            self.speed = speed
            self._speed_text.value = note_html(self._speed_sentence())
            self._told.value = note_html(self._result_sentence() if result is not None else "measured")
            if result is not None:
                self.bar.value = result.steps
                self.log(self._result_sentence())
                if result.diverged:
                    self._error.value = error_html(result.message)
        if outcome.display_error is not None:
            self.log(f"the display failed once: {outcome.display_error!r}")
        self._redraw()
        failed = outcome.error is not None or (outcome.result[0] is not None and outcome.result[0].diverged)
        self.machine.to(PanelState.FAILED if failed else PanelState.DONE)

    # -- what it shows -------------------------------------------------------------------------------------------------

    def _show_config(self, config: BoostConfig, level: str) -> None:
        if self.closed:
            return
        self.preset.show(config, level)
        try:
            plan = self.shared.plan()
        except ConfigError as error:
            self._in_effect.value = error_html(str(error))
        else:
            self._in_effect.value = faint(plan.summary())

    def _show_progress(self, progress: RunProgress) -> None:
        self.bar.value = progress.step
        left = (progress.steps - progress.step) * progress.seconds / progress.step if progress.step else math.nan
        parts = [f"{progress.step} of {counted(progress.steps, 'step')}", f"{format_duration(progress.seconds)} so far"]
        if math.isfinite(left) and progress.step < progress.steps:
            parts.append(f"{format_duration(left)} left")
        parts.append(f"loss {compact(progress.loss)}")
        if math.isfinite(progress.metric):
            parts.append(f"{self._metric.name} {self._metric.value_text(progress.metric)}")
        if progress.loss_scale != 1.0:
            parts.append(f"loss scale {compact(progress.loss_scale)}")
        self._told.value = note_html(" · ".join(parts))

    def _draw_if_due(self) -> None:
        """Draw the figure that is looked at anew, as often as its cost allows."""
        if time.monotonic() < self._draw_after:
            return
        began = time.thread_time()
        self._redraw(_LIVE_POINTS)
        cost = time.thread_time() - began
        self._draw_after = time.monotonic() + min(_LONGEST_WAIT, cost / _DRAWING_SHARE)

    def _offer_figures(self, records: Sequence[StepRecord]) -> None:
        """Offer the figures that the columns of the present run allow; what is looked at stays while it is offered."""
        self._columns.update(*(record.columns for record in records))
        offered = (*_FIGURES, *(figure for name, figure in _FIGURES_BY_COLUMN.items() if name in self._columns))
        if offered == tuple(self.choice.options):
            return
        chosen = self.choice.value
        with self.showing():  # a new list of buttons presses its first one
            self.choice.options = offered
            self.choice.value = chosen if chosen in offered else offered[0]
        if self.choice.value != chosen:
            self._redraw(anew=True)

    def _redraw(self, limit: int = MAXIMUM_POINTS, *, anew: bool = False) -> None:
        with self._drawing_lock:
            self.live.update(self._drawing(limit), anew=anew)

    def _drawing(self, limit: int = MAXIMUM_POINTS) -> Drawing:
        return self._drawings[self.choice.value](limit)

    def _loss_drawing(self, limit: int) -> Drawing:
        curve = RunCurve(self._label(), self.trace.steps, self.trace.evaluations)
        return loss_curves_drawing([curve], metric=self._metric, limit=limit, theme=self.theme)

    def _label(self) -> str:
        return self._task.name if self._task is not None else Path(self.task.value).name

    def _result_sentence(self) -> str:
        result = self.result
        if result is None:
            return ""
        parts = [f"{counted(result.steps, 'step')} in {format_duration(result.seconds)}"]
        if math.isfinite(result.metric):
            metric = MetricScale(result.metric_name, higher_is_better=result.higher_is_better)
            parts.append(f"{metric.name} {metric.value_text(result.metric)}")
        if result.overflows:
            parts.append(counted(result.overflows, "overflow"))
        if result.message:
            parts.append(result.message)
        parts += result.notes
        if result.path is not None:
            parts.append(f"recorded in `{result.path}`")
        return "; ".join(parts)

    def _speed_sentence(self) -> str:
        speed = self.speed
        if speed is None:
            return ""
        clear = speed.high < 1 or speed.low > 1
        verdict = (
            ("faster than O0" if speed.ratio < 1 else "slower than O0") if clear else "not clearly different from O0"
        )
        return (
            f"A step takes {speed.ratio:.2f} x the time of O0 ({verdict}): {compact(speed.candidate_ms)} ms against "
            f"{compact(speed.baseline_ms)} ms; 95 % interval {speed.low:.2f} to {speed.high:.2f}, "
            f"{counted(speed.rounds, 'interleaved round')}."
        )


def _count(path: str, title: str, description: str, rule: str, unit: str, default: int | None) -> ParameterInfo:
    return ParameterInfo(
        path=path,
        kind="int",
        default=default,
        low=None,
        high=None,
        log=False,
        step=None,
        choices=(),
        unit=unit,
        title=title,
        description=description,
        optional=default is None,
        rule=rule,
    )


_STEPS: Final = _count(
    "steps", "Steps", "Micro-batches to train.", "be a whole number, 1 or more", "micro-batches", 300
)
_SEED: Final = _count("seed", "Seed", "Seed of weights, data order and split.", "be a whole number, 0 or more", "", 0)
_EVALUATE_EVERY: Final = _count(
    "evaluate_every",
    "Evaluate every",
    "Micro-batches between evaluations; unset evaluates at the end only.",
    "be a whole number, 1 or more",
    "micro-batches",
    None,
)


def _usable(control: ParameterControl) -> bool:
    """Return whether a count can be used, and say beside the field when it cannot."""
    value, info = control.value, control.info
    least = 0 if info.path == "seed" else 1
    if (value is None and info.optional) or (isinstance(value, int) and least <= value < 2**63):
        return True
    control.refuse(f"`{info.path}` must {info.rule}, got {shown(value)}")
    return False


def _button(text: str, tooltip: str, style: str = "") -> widgets.Button:
    return placed.Button(description=text, tooltip=tooltip, button_style=style, css="wb-auto")
