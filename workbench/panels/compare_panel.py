"""Compare: two to four configurations trained on the same seeds and timed side by side, with a verdict in a sentence.

The first is the base. Seeds are paired: every configuration sees the same weights, data order and split, so what
differs between two runs of a pair is the configuration alone.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ipywidgets as widgets

from workbench.config import BoostConfig, ConfigError
from workbench.config.errors import shown
from workbench.core.text import format_duration
from workbench.figures import MetricScale, RunCurve
from workbench.figures.labels import counted
from workbench.figures.loss_curves import loss_curves_drawing
from workbench.figures.paired_comparison import PairedSide, paired_comparison_figure
from workbench.panels import kit
from workbench.panels.figure_place import HEIGHT, FigurePlace
from workbench.panels.kit import column, parts, row, text_of
from workbench.panels.live_trace import LiveTrace
from workbench.panels.panel import Panel, PanelState, Theme, WorkPanel
from workbench.panels.run_controls import TaskControls
from workbench.panels.run_overlay import Smoothing
from workbench.panels.shared_config import SharedConfig, config_of_text
from workbench.panels.style import error_html, faint, table, words
from workbench.panels.worker import Outcome, RunControl

if TYPE_CHECKING:
    from workbench.tasks import Task
    from workbench.training.compare import ComparedSide, Comparison
    from workbench.training.run import RunProgress

_SHARED, _FILE, _JSON, _NONE = "This configuration", "A file", "JSON text", "none"
_SOURCES: Final = (_SHARED, "O0", "O1", "O2", _FILE, _JSON)
_MOST_SIDES: Final = 4
_MOST_SEEDS: Final = 20
_EVALUATIONS: Final = 10  # of each run, for its curve
_VERDICT, _CURVES = "Verdict", "Learning curves"

LabelledConfig = tuple[str, BoostConfig, str]
"""Label, configuration and level."""


@dataclass(frozen=True, slots=True)
class _Order:
    """What one click on Start asks for; labels differ, and seeds are the same for every side."""

    sides: tuple[LabelledConfig, ...]
    seeds: tuple[int, ...]
    steps: int

    @property
    def runs(self) -> list[str]:
        """What is trained, by name: seed by seed, side by side."""
        return [f"{label}, seed {seed}" for seed in self.seeds for label, *_ in self.sides]


def compare_in_thread(
    control: RunControl, order: _Order, task: Task | str, *, device: str, out: Path | None
) -> Comparison | None:
    """Compare, and send how it goes; the work of the panel's thread. None when it was stopped, within one step."""
    from workbench.core.devices import select_device
    from workbench.tasks import load_task
    from workbench.tasks.stoppable_task import StoppedError, stoppable
    from workbench.training.compare import Side, compare_configs

    task = load_task(task)
    control.send(MetricScale(task.metric_name, higher_is_better=task.higher_is_better))
    runs = order.runs
    try:
        return compare_configs(
            stoppable(task, control.stop_requested),
            [Side(*side) for side in order.sides],
            seeds=order.seeds,
            steps=order.steps,
            device=select_device(device),
            out=out,
            on_progress=lambda run, progress: control.send((runs.index(run), progress)),
            on_records=lambda run, *told: control.send((runs.index(run), told)),
            evaluate_every=max(order.steps // _EVALUATIONS, 1),
        )
    except StoppedError:
        return None


def seeds_of(text: str) -> tuple[int, ...]:
    """Read seeds as a person writes them: ``5`` is the first five, ``0, 3, 7`` and ``2-6`` name them."""
    named = [part.strip() for part in text.split(",") if part.strip()]
    found = [re.fullmatch(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?", part) for part in named]
    ends = [(int(part[1]), int(part[2] or part[1])) for part in found if part is not None]
    if len(named) == 1 and "-" not in text:
        ends = [(0, last - 1) for _, last in ends]
    seeds = [seed for first, last in ends for seed in range(first, min(last, first + _MOST_SEEDS) + 1)]
    if None in found or not 1 <= len(seeds) <= _MOST_SEEDS or len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"`seeds` must be a number of seeds, at most {_MOST_SEEDS}, or so many different seeds such as 0, 3, 7 or "
            f"2-6, got {shown(text)}"
        )
    return tuple(seeds)


class ComparePanel(WorkPanel):
    """Compare configurations on a task.

    Args:
        task: A task, or its name as on the command line; a name can be changed in the panel.
        shared: The configuration the first tab shows; None makes one of its own.
        steps: Micro-batches per run.
        seeds: Number of paired seeds.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"npu"``.
        out: Folder for run directories; None records nothing.
        theme: See ``Panel``.

    Attributes:
        shared: The configuration.
        comparison: The last comparison that came to its end; None before.
    """

    def __init__(
        self,
        task: Task | str,
        shared: SharedConfig | None = None,
        *,
        steps: int = 300,
        seeds: int = 5,
        device: str = "auto",
        out: str | Path | None = None,
        theme: Theme = "auto",
    ) -> None:
        super().__init__("Compare", theme=theme, stop_help="End the comparison after the present step")
        self.shared = shared if shared is not None else SharedConfig()
        self.comparison: Comparison | None = None
        self._metric = MetricScale("metric")
        self._order: _Order | None = None
        self._metrics: list[list[float]] = []
        self._traces: dict[int, LiveTrace] = {}  # of the runs under the present seed, by side
        self._run = -1
        self._runs_done = 0
        self._began = 0.0
        self.where = TaskControls(self, task, device, out)
        self.task = self.where.name
        self.sides = [_SideChoice(self, self.shared, number) for number in range(_MOST_SIDES)]
        self._make_controls(steps, seeds)
        self.figure = FigurePlace(
            self,
            "Which configuration is faster, and what does it cost?",
            "Start trains every configuration with the same seeds.",
        )
        self.lasting = self._verdict, self._table = text_of(""), text_of("")
        self.curves = FigurePlace(self, "Do the runs learn equally well?", "Start trains them; curves grow meanwhile.")
        self.smoothing = Smoothing(self, self._draw_curves)
        self.view = kit.choice_buttons((_VERDICT, _CURVES))
        self._curves_box = column(self.smoothing.widget, self.curves.widget)
        self.on_change(self.view, lambda _: self._show_view())
        self.plots.children = (self._verdict, self.view, self.figure.widget, self._curves_box, self._table)
        self._show_view()
        for choice, source in zip(self.sides, ("O0", _SHARED), strict=False):
            choice.source.value = source
        self.state_changed(self.state)

    def _make_controls(self, steps: int, seeds: int) -> None:
        seeds_help = "A number of paired seeds, or the seeds themselves: 0, 3, 7 or 2-6"
        self.seeds = kit.text_box(str(seeds), seeds_help, css="wb-count")
        self.steps = kit.text_box(str(steps), "Micro-batches per run", css="wb-count")
        self._seeds_problem, self._steps_problem = text_of(""), text_of("")
        self.start_button = self.button(
            "Start", "Train every configuration with every seed", self.start, style="success"
        )
        self.locked = [self.start_button, self.where, self.seeds, self.steps, *self.sides]
        about_sides = f"<h4>Configurations</h4>{faint('The first is the base; the others are compared with it.')}"
        more = column("Device", self.where.device, "Folder of run directories", self.where.out)
        self.controls.children = (
            *parts(self.where.named, about_sides, *(choice.widget for choice in self.sides)),
            *parts(row("Paired seeds", self.seeds), self._seeds_problem),
            *parts(row("Steps per run", self.steps), self._steps_problem),
            kit.Accordion(children=(more,), titles=("More",), css="wb-more"),
            row(self.start_button, self.stop_button),
            self.bar,
            self.progress_text,
        )

    def start(self) -> None:
        """Begin a comparison with what the controls say; a value that cannot be used is refused beside its field."""
        order = self._read()
        if order is None or not self.machine.try_to(PanelState.RUNNING):
            return
        self._order, self.comparison = order, None
        self._metrics = [[math.nan] * len(order.seeds) for _ in order.sides]
        self._runs_done, self._began = 0, time.monotonic()
        self._traces, self._run, self.view.value = {}, -1, _CURVES
        self.bar.value = 0.0
        self._verdict.value = self._table.value = ""
        self._draw()
        where = self.where
        self.begin(
            functools.partial(
                compare_in_thread, order=order, task=where.task, device=where.device.value, out=where.folder
            )
        )

    def _read(self) -> _Order | None:
        """Read the controls; None when one of them cannot be used, which is then said beside it."""
        seeds = _read_into(self._seeds_problem, lambda: seeds_of(self.seeds.value))
        steps = _read_into(self._steps_problem, lambda: _steps_of(self.steps.value))
        chosen = [choice for choice in self.sides if choice.source.value != _NONE]
        sides = [side for side in [choice.read() for choice in chosen] if side is not None]
        if len(chosen) < 2:
            self.sides[1].refuse("choose a second configuration")
        if seeds is None or steps is None or len(sides) < len(chosen) or len(sides) < 2:
            return None
        return _Order(_with_own_labels(sides), seeds, steps)

    def _take(self, messages: Sequence[Any]) -> None:
        order, last = self._order, None
        if order is None:
            return
        for message in messages:
            if isinstance(message, MetricScale):
                self._metric = message
                continue
            run, progress = message
            if isinstance(progress, tuple):
                self._add_records(order, run, progress)
                continue
            last = message
            if progress.step == progress.steps and math.isfinite(progress.metric):
                self._runs_done = run + 1
                seed, side = divmod(run, len(order.sides))
                self._metrics[side][seed] = progress.metric
                self._draw()
        if last is not None:
            self._show_progress(order, *last)
        if self.view.value == _CURVES:
            self._draw_curves()

    def _add_records(self, order: _Order, run: int, told: tuple[Any, Any]) -> None:
        """Take steps and events of a run; the first side of a seed starts a new figure."""
        side = run % len(order.sides)
        if run != self._run:
            self._traces = {**({} if side == 0 else self._traces), side: LiveTrace()}
            self._run = run
        self._traces[side].add(*told)

    def _draw_curves(self) -> None:
        if self._order is None or not self._traces:
            return
        sides = [(self._order.sides[side][0], trace) for side, trace in self._traces.items()]
        curves = [RunCurve(label, trace.steps, trace.evaluations) for label, trace in sides]
        window = self.smoothing.window
        self.curves.update(loss_curves_drawing(curves, metric=self._metric, window=window, theme=self.theme))

    def _show_view(self) -> None:
        for box, name in ((self.figure.widget, _VERDICT), (self._curves_box, _CURVES)):
            box.present(self.view.value == name)
        if self.view.value == _CURVES:
            self._draw_curves()

    def _show_progress(self, order: _Order, run: int, progress: RunProgress) -> None:
        runs = order.runs
        share = (run + progress.step / order.steps) / len(runs)
        # A twentieth of the bar is kept for the measurement of speeds, whose length is not known beforehand.
        self.bar.value = 0.95 * share
        if self._runs_done == len(runs):
            self.tell(f"all {counted(len(runs), 'run')} done; now timing steps side by side ...")
            return
        parts = [f"run {run + 1} of {len(runs)}", runs[run], f"{progress.step} of {counted(order.steps, 'step')}"]
        parts.append(f"loss {progress.loss:.4g}")
        if share > 0:
            left = (time.monotonic() - self._began) * (1 - share) / share
            parts.append(f"{format_duration(left)} left, and the timing")
        if self.state is not PanelState.STOPPING:
            self.tell(" · ".join(parts))

    def finished(self, outcome: Outcome) -> PanelState:
        """Show the verdict, or that there is none because the comparison was stopped."""
        self.comparison = outcome.result
        if outcome.result is None:
            runs = counted(self._runs_done, "whole run")
            self.tell(f"stopped after {runs}; nothing is concluded")
            self.log(f"stopped on request after {runs}")
            return PanelState.STOPPED
        self.bar.value = 1.0
        self.tell(f"done in {format_duration(outcome.seconds)}")
        self._show_verdict(outcome.result)
        self._draw()
        self.view.value = _VERDICT
        return PanelState.DONE

    def _show_verdict(self, comparison: Comparison) -> None:
        sentences = comparison.sentences()
        self._verdict.value = "".join(f'<p role="status">{words(sentence)}</p>' for sentence in sentences)
        self.log(f"compared {counted(len(comparison.sides), 'configuration')}")
        rows = []
        for side in comparison.sides:
            metrics = [value for value in side.metrics if math.isfinite(value)]
            mean = self._metric.value_text(statistics.fmean(metrics)) if metrics else "diverged"
            speed = "base" if side.speed is None else f"{1 / side.speed.ratio:.2f} x"
            rows.append((side.label, side.summary, f"{mean} ({counted(len(metrics), 'seed')})", speed))
        head = ("Configuration", "In effect", f"Mean {self._metric.name}", "Speed")
        self._table.value = table(head, rows, css="wb-whole-words")

    def _draw(self) -> None:
        if self.comparison is not None:
            sides = [_paired(side) for side in self.comparison.sides]
        else:
            labels = [label for label, *_ in self._order.sides] if self._order is not None else []
            sides = [PairedSide(label, tuple(found)) for label, found in zip(labels, self._metrics, strict=True)]
        self.figure.update(paired_comparison_figure(sides, metric=self._metric, theme=self.theme, height=HEIGHT))


def _paired(side: ComparedSide) -> PairedSide:
    speed = low = high = bound = math.nan
    if side.speed is not None:
        speed, low, high = 1 / side.speed.ratio, 1 / side.speed.high, 1 / side.speed.low
    if side.drop is not None and math.isfinite(side.drop.upper):
        bound = side.drop.upper
    return PairedSide(side.label, side.metrics, speed, low, high, bound)


class _SideChoice:
    """One row: where a configuration comes from."""

    def __init__(self, panel: Panel, shared: SharedConfig, number: int) -> None:
        self._shared = shared
        optional = number >= 2
        self._given = [*([_NONE] if optional else []), *_SOURCES]
        self.source = kit.Dropdown(
            options=self._given,
            value=_NONE if optional else "O0",
            css="wb-growing",
            tooltip=f"Where configuration {number + 1} comes from",
        )
        self.path = kit.text_box(tooltip="Path of a boost_config.json", placeholder="boost_config.json")
        self.json = kit.Textarea(
            placeholder='{"amp": {"level": "O2"}, "loss_scale": {"window": 500}}',
            continuous_update=False,
            rows=5,
            css="wb-wide",
            tooltip="The text of a boost_config.json",
        )
        self._problem = text_of("")
        title = text_of("<b>Base</b>" if not number else f"<b>{number + 1}</b>")
        self._extra = column()
        self.widget = column(row(title, self.source), self._extra, self._problem)
        panel.on_change(self.source, self._show)
        panel.cleaned_up_by(shared.observe(lambda *_: self._offer_kept()))
        self._offer_kept()
        for entry in (self.path, self.json):  # they stand in the panel only while their source is chosen
            panel.cleaned_up_by(entry.close)

    def read(self) -> LabelledConfig | None:
        """Return label, configuration and level; None when it cannot be used, which is then said."""
        return _read_into(self._problem, self._usable)  # type: ignore[no-any-return]  # what the function returns

    def refuse(self, sentence: str) -> None:
        """Say what is wrong."""
        self._problem.value = error_html(sentence)

    def lock(self, locked: bool) -> None:
        """Disable the row while work is under way, or free it again."""
        for entry in (self.source, self.path, self.json):
            entry.disabled = locked

    def _show(self, source: str) -> None:
        self._problem.value = ""
        self._extra.children = (self.path,) if source == _FILE else (self.json,) if source == _JSON else ()

    def _offer_kept(self) -> None:
        """Offer what the shared configuration has kept by name, too."""
        options = (*self._given, *self._shared.kept)
        if options != self.source.options:
            chosen = self.source.value
            self.source.options = options
            self.source.value = chosen if chosen in options else self._given[0]

    def _usable(self) -> LabelledConfig:
        label, config, level = self._chosen()
        config.resolve(level)  # what must act and cannot would only be found out in the middle
        return label, config, level

    def _chosen(self) -> LabelledConfig:
        source = self.source.value
        if source == _SHARED:
            return "this configuration", *self._shared.both()
        if source in self._shared.kept:
            return source, *self._shared.kept[source]
        if source == _FILE:
            path = Path(self.path.value.strip()).expanduser()
            if not self.path.value.strip():
                raise ConfigError("name a boost_config.json, or choose another source")
            return path.name, BoostConfig.from_json(path), "O1"
        if source == _JSON:
            return "JSON text", config_of_text(self.json.value, "JSON text"), "O1"
        return str(source), BoostConfig(), str(source)


def _read_into(problem: widgets.HTML, read: Callable[[], Any]) -> Any:
    """Return what is read; None when it is refused, which is then said in its place."""
    problem.value = ""
    try:
        return read()
    except ConfigError as error:
        problem.value = error_html(str(error))
        return None


def _steps_of(text: str) -> int:
    if not re.fullmatch(r"\s*0*[1-9]\d{0,8}\s*", text):
        raise ConfigError(f"`steps` must be a whole number of micro-batches, 1 or more, got {shown(text)}")
    return int(text)


def _with_own_labels(sides: Sequence[LabelledConfig]) -> tuple[LabelledConfig, ...]:
    """Number labels that come twice: what belongs to which side is found by label."""
    seen: dict[str, int] = {}
    named = []
    for label, config, level in sides:
        seen[label] = seen.get(label, 0) + 1
        named.append((label if seen[label] == 1 else f"{label} ({seen[label]})", config, level))
    return tuple(named)
