"""Train: start, pause and stop a run, watch it learn, and see what the configuration does to the time of a step.

A kernel's interrupt does not reach the run's thread, but the Stop button does. A page that was closed and opened again
finds the run still going.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench.config import BoostConfig
from workbench.core.text import format_duration
from workbench.figures import MetricScale, RunCurve
from workbench.figures.drawing import Drawing
from workbench.figures.labels import compact, counted, grouped, superscripted
from workbench.figures.loss_curves import loss_curves_drawing
from workbench.figures.loss_scale import loss_scale_drawing
from workbench.figures.offload import offload_drawing
from workbench.figures.second_order import second_order_drawing
from workbench.figures.step_time import step_time_drawing
from workbench.figures.thinning import MAXIMUM_POINTS
from workbench.panels import kit
from workbench.panels.controls import count_control, is_usable_count, number_text
from workbench.panels.figure_place import FigurePlace
from workbench.panels.kit import folded, row, text_of
from workbench.panels.live_trace import LiveTrace
from workbench.panels.panel import PanelState, Theme, WorkPanel
from workbench.panels.run_controls import PresetChoice, TaskControls, in_effect_html
from workbench.panels.run_overlay import RunOverlay, is_baseline
from workbench.panels.shared_config import Setup, SharedConfig
from workbench.panels.worker import Outcome, RunControl

if TYPE_CHECKING:
    from workbench.core.records import Event, StepRecord
    from workbench.tasks import Task
    from workbench.training.run import RunProgress, RunResult
    from workbench.training.speed import SpeedRatio

_DRAIN_SECONDS: Final = 0.2
# Figures, and the column that a run needs for each to be offered; those with none are always there.
_FIGURES: Final = {
    "Loss and metric": "",
    "Loss scale": "loss_scale",  # which a run in float32 has not: it would stand at 1
    "Step time": "",
    "Second order": "thor.refreshed",
    "Offload": "offload.host_ms",
}
_EVALUATIONS: Final = 10  # of a run, where the user does not say how often
# Of the time, for drawing. Training and drawing share one interpreter, and where training has all cores its threads
# wait for the one that drawing takes: up to twice as long as drawing takes. A live panel may cost 2 % (benchmark
# live_panel), and its messages take half a millisecond each.
_DRAWING_SHARE: Final = 0.003
_UPDATES: Final = 4.0  # per second
_LIVE_POINTS: Final = 500  # of a line that still grows
_LONGEST_WAIT: Final = 15.0  # seconds between two pictures of a run that goes on


class TrainPanel(WorkPanel):
    """Train a task and watch it.

    Args:
        task: A task, or its name as on the command line; a name can be changed in the panel.
        shared: The configuration; None makes a new one.
        steps: Batches to train on.
        seed: Seed of weights, data order and split.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"npu"``.
        evaluate_every: Batches between evaluations; None evaluates ten times, the end included.
        out: Folder in which a run directory is made; None records nothing.
        measure: Whether step times are compared with O0 after the run.
        theme: See ``Panel``.

    Attributes:
        result: Result of the last run that ended by itself or by Stop; None before, and after each new start.
        speed: The last measurement of step times; None before, and after each new start.
        trace: What the present or last run has reported.
        display_seconds: Processor time that showing the last run took while it went on, in seconds.
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
        super().__init__("Train", shared, theme=theme, stop_help="End the run after the current step", hz=_UPDATES)
        self.result: RunResult | None = None
        self.speed: SpeedRatio | None = None
        self.trace = LiveTrace()
        self.display_seconds = 0.0
        self._metric = MetricScale("metric")
        self._columns: set[str] = set()
        self._draw_after = 0.0
        self._drawing_lock = threading.Lock()  # the choice and its picture belong together
        self._setup = self.shared.both()  # what the run on show trains
        self.where = TaskControls(self, task, device, out)
        self.task = self.where.name
        self._make_controls(steps, seed, evaluate_every, measure=measure)
        self._make_plots()
        self.cleaned_up_by(self.shared.observe(self._show_config))
        self._show_config(*self.shared.both())
        self.state_changed(self.state)

    def _make_controls(self, steps: int, seed: int, evaluate_every: int | None, *, measure: bool) -> None:
        unit = "batches"
        self.steps = count_control("steps", "Steps", "Batches to train on.", steps, unit=unit)
        self.seed = count_control("seed", "Seed", "Seed of weights, data order and split.", seed, least=0)
        often = "Batches between evaluations; unset evaluates ten times in a run."
        self.evaluate_every = count_control("evaluate_every", "Evaluate every", often, None, unit=unit, optional=True)
        self.evaluate_every.set(evaluate_every)
        self.preset = PresetChoice(self, self.shared)
        self._in_effect = text_of("")
        self.start_button = self.button("Start", "Train with this configuration", self.start, style="success")
        self.pause_button = self.button("Pause", "Hold the run after the current step", self.pause_or_resume)
        self.measure = kit.check_box("Compare step time with O0 afterwards", value=measure)
        measure_help = "Measure the time of a step against O0, without a run"
        self.measure_button = self.button("Compare now", measure_help, self.measure_speed)
        self._more = folded(
            "More", self.seed.widget, self.evaluate_every.widget, "Folder of run directories", self.where.out
        )
        self.locked = [self.start_button, self.measure_button, self.where, self.steps, self.seed, self.evaluate_every]
        self.controls.children = (
            *(self.where.named, self.preset.widget, self._in_effect),
            *kit.parts(self.steps.widget, "Device", self.where.device, self._more),
            row(self.start_button, self.pause_button, self.stop_button),
            self.bar,
            self.progress_text,
            *(self.measure, row(self.measure_button)),
        )

    def _make_plots(self) -> None:
        self.choice = kit.choice_buttons([name for name, column in _FIGURES.items() if not column])
        self.overlay = RunOverlay(self, self._redraw)
        # One place that shows one figure at a time: what is not looked at costs training nothing.
        self.live = FigurePlace(
            self, "How does the run learn?", "Press Start to train; loss and metric are drawn here.", height=None
        )
        self._speed_text = text_of("")
        self.lasting = (self.progress_text, self._speed_text)
        self.on_change(self.choice, lambda _: self._redraw(reset_axes=True))
        self.plots.children = (self.choice, self.live.widget, self.overlay.widget, self._speed_text)

    def start(self) -> None:
        """Begin the run that the controls describe; a value that cannot be used is refused next to its field."""
        if self._are_usable() and self.machine.try_to(PanelState.RUNNING):
            self.trace, self.result = LiveTrace(), None
            self._columns.clear()
            self._draw_after = 0.0
            self.bar.max, self.bar.value = self.steps.value, 0
            self._setup = self.shared.both()
            self.live.clear()
            self.overlay.begin(self.where.folder, self.where.found_label, is_baseline=is_baseline(*self._setup))
            is_o0 = is_baseline(*self._setup, self.shared.network)
            self._begin(self.steps.value, measure=self.measure.value and not is_o0)

    def measure_speed(self) -> None:
        """Measure the time of a step against O0, without a run."""
        if is_baseline(*self.shared.both(), self.shared.network):
            self.tell("this is O0 itself: there is nothing to compare")
        elif self._are_usable() and self.machine.try_to(PanelState.RUNNING):
            self._begin(0, measure=True)

    def state_changed(self, state: PanelState) -> None:
        """Enable what can be used in a state."""
        super().state_changed(state)
        self.pause_button.disabled = state not in (PanelState.RUNNING, PanelState.PAUSED)
        self.pause_button.description = "Resume" if state is PanelState.PAUSED else "Pause"

    def _are_usable(self) -> bool:
        """Return whether all counts can be used, and show next to the field if one cannot."""
        steps, *more = [is_usable_count(control) for control in (self.steps, self.seed, self.evaluate_every)]
        if not all(more):
            self._more.selected_index = 0  # where the sentence stands
        return steps and all(more)

    def _begin(self, steps: int, *, measure: bool) -> None:
        self.speed = None
        self._speed_text.value = ""
        options: dict[str, Any] = {
            "steps": steps,
            "seed": self.seed.value,
            "evaluate_every": self.evaluate_every.value or max(steps // _EVALUATIONS, 1),
            "device": self.where.device.value,
            "out": self.where.folder,
        }
        task, setup = self.where.task, self.shared.both()
        length = int(self.steps.value)
        self.begin(lambda control: self._work(control, task, setup, length, measure=measure, **options))

    def _work(
        self, control: RunControl, task: Task | str, setup: Setup, length: int, *, measure: bool, **options: Any
    ) -> tuple[RunResult | None, SpeedRatio | None, str]:
        """Train a set-up and compare its step times with O0, in a thread; anything not asked for is None or empty."""
        from workbench import api
        from workbench.core.devices import select_device
        from workbench.methods.in_effect import MethodsInEffect
        from workbench.tasks import load_task
        from workbench.training.speed import measure_speed_ratio

        task, result = load_task(task), None
        self._metric = MetricScale.of(task)
        if options["steps"]:
            control.send(self.tell, "training ...")
            result = api.train(
                task,
                setup[0],
                level=setup[1],
                on_progress=lambda progress: control.send(self._show_progress, progress),
                stop=control.stop_requested,
                on_records=lambda records, events: control.send(self._add, records, events),
                drain_seconds=_DRAIN_SECONDS,
                pause=control.pause,
                **options,
            )
        if not measure or (result is not None and (result.stopped or result.diverged)):
            return result, None, ""
        control.send(self.tell, "measuring the time of a step against O0 ...")
        speed = measure_speed_ratio(
            task,
            (BoostConfig(), "O0"),
            setup,
            device=select_device(options["device"]),
            seed=options["seed"],
            rounds=16,
            precision=0.1,
            stop=control.stop_requested,
        )
        passes = MethodsInEffect(setup[0].resolve(setup[1])).passes(length)
        return result, speed, "" if speed is None else _speed_sentence(speed, passes, length)

    def _add(self, records: Sequence[StepRecord], events: Sequence[Event]) -> None:
        """Add what was drained from the run."""
        self.trace.add(records, events)
        self._offer_figures(records)
        for event in events:
            if event.kind in ("diverged", "scale_collapse", "scale_floor"):
                self.log(event.message)

    def finished(self, outcome: Outcome) -> PanelState:
        """Show the result of the run and the comparison of step times, if there are any."""
        result, self.speed, said = outcome.result
        self._speed_text.say(said)
        if result is None:
            self.tell("measured")
            return PanelState.DONE
        self.result = result
        self.bar.value = result.steps
        steps, evaluations = self.trace.steps, self.trace.evaluations
        if len(steps):
            is_o0 = is_baseline(*self._setup)
            label = "O0" if is_o0 else f"{self._setup[1]}, other settings" if self._setup[1] == "O0" else self._setup[1]
            self.overlay.remember(label, lambda name: RunCurve(name, steps, evaluations), is_baseline=is_o0)
        said = self._result_sentence(result)
        self.tell(said)
        self.log(said)
        if result.diverged:
            self._error.refuse(result.message)
            return PanelState.FAILED
        return PanelState.STOPPED if result.stopped else PanelState.DONE

    def _end(self, outcome: Outcome) -> None:
        self.display_seconds = outcome.display_seconds
        self._redraw()
        super()._end(outcome)

    def _show_config(self, config: BoostConfig, level: str) -> None:
        if self.closed:
            return
        self.preset.show(config, level)
        self._in_effect.value = in_effect_html(self.shared)

    def _show_progress(self, progress: RunProgress) -> None:
        self.bar.max, self.bar.value = progress.steps, progress.step  # its schedule may shorten the run
        left = (progress.steps - progress.step) * progress.seconds / progress.step if progress.step else math.nan
        parts = [f"{progress.step} of {counted(progress.steps, 'step')}", f"{format_duration(progress.seconds)} so far"]
        if math.isfinite(left) and progress.step < progress.steps:
            parts.append(f"{format_duration(left)} left")
        parts.append(f"loss {compact(progress.loss)}")
        if math.isfinite(progress.metric):
            parts.append(f"{self._metric.name} {self._metric.value_text(progress.metric)}")
        if progress.loss_scale != 1.0:
            parts.append(f"loss scale {superscripted(number_text(progress.loss_scale))}")
        self.tell(" · ".join(parts))

    def refresh(self) -> None:
        """Redraw the figure being shown, as often as its cost allows; a run that is held reports nothing."""
        if self.trace.is_empty or (time.monotonic() < self._draw_after and self.state is not PanelState.PAUSED):
            return
        began = time.thread_time()
        self._redraw(_LIVE_POINTS)
        cost = time.thread_time() - began
        self._draw_after = time.monotonic() + min(_LONGEST_WAIT, cost / _DRAWING_SHARE)

    def _offer_figures(self, records: Sequence[StepRecord]) -> None:
        """Offer the figures that the columns of the present run allow; the one shown stays while it is offered."""
        self._columns.update(*(record.columns for record in records))
        if any(record.loss_scale != 1.0 for record in records):
            self._columns.add("loss_scale")
        offered = tuple(name for name, column in _FIGURES.items() if not column or column in self._columns)
        if offered == tuple(self.choice.options):
            return
        chosen = self.choice.value
        with self.showing():  # a new list of buttons presses its first one
            kit.offer(self.choice, offered, offered[0])
        if self.choice.value != chosen:
            self._redraw(reset_axes=True)

    def _redraw(self, limit: int = MAXIMUM_POINTS, *, reset_axes: bool = False) -> None:
        with self._drawing_lock:
            if not self.trace.is_empty:
                self.live.update(self._drawing(limit), reset_axes=reset_axes)

    def _drawing(self, limit: int) -> Drawing:
        steps, events, theme = self.trace.steps, self.trace.events, self.theme
        label = self.where.label
        match self.choice.value:
            case "Loss scale":
                return loss_scale_drawing(steps, events, limit=limit, theme=theme)
            case "Step time":
                return step_time_drawing({label: steps}, theme=theme)
            case "Second order":
                return second_order_drawing(steps, events, limit=limit, theme=theme)
            case "Offload":
                return offload_drawing(steps, limit=limit, theme=theme)
        others = self.overlay.curves() if len(steps) else []
        curve = RunCurve(f"this run ({self._setup[1]})" if others else label, steps, self.trace.evaluations)
        window = self.overlay.smoothing.window
        return loss_curves_drawing([curve, *others], metric=self._metric, window=window, limit=limit, theme=theme)

    def _result_sentence(self, result: RunResult) -> str:
        took = format_duration(result.seconds)
        parts = [f"{result.message} ({took})" if result.message else f"{counted(result.steps, 'step')} in {took}"]
        if math.isfinite(result.metric):
            metric = MetricScale.of(result)
            parts.append(f"{metric.name} {metric.value_text(result.metric)}")
        if result.overflows:
            parts.append(counted(result.overflows, "overflow"))
        parts += result.notes
        if result.path is not None:
            parts.append(f"recorded in `{result.path}`")
        return "; ".join(parts)


def _speed_sentence(speed: SpeedRatio, passes: int, length: int) -> str:
    """Say how fast a step is, and a run where it has another number of them than O0's."""
    unsure = "" if speed.high < 1 or speed.low > 1 else ", which is no clear difference"
    milliseconds = speed.ratio * speed.baseline_ms  # the ratio's median, not that of the times, which may disagree
    whole = length / (passes * speed.ratio)
    in_all = f" A run has {counted(passes, 'step')} for O0's {grouped(length)}: it is {whole:.2f} x as fast."
    return (
        f"Steps are {1 / speed.ratio:.2f} x as fast as O0's (95 % interval {1 / speed.high:.2f} to "
        f"{1 / speed.low:.2f}){unsure}: {compact(milliseconds)} ms against {compact(speed.baseline_ms)} ms, "
        f"{counted(speed.rounds, 'interleaved round')}.{in_all if passes != length else ''}"
    )
