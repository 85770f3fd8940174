"""Compare: two to four configurations trained on the same seeds and timed side by side, with a verdict in a sentence.

The first is the base. Seeds are paired: every configuration sees the same weights, data order and split, so what
differs between two runs of a pair is the configuration alone.
"""

from __future__ import annotations

import dataclasses
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

from workbench.config import (
    SWITCHES,
    BoostConfig,
    ConfigError,
    requested_switches,
)
from workbench.config.boost_json import parse_json
from workbench.config.errors import shown
from workbench.core.text import format_duration
from workbench.figures import MetricScale
from workbench.figures.labels import counted
from workbench.figures.paired_comparison import PairedSide, paired_comparison_figure
from workbench.panels import placed_widgets as placed
from workbench.panels.copy_button import WHOLE_WORDS
from workbench.panels.figure_place import FigurePlace
from workbench.panels.panel import (
    Panel,
    Theme,
    close_recursively,
    column,
    row,
    text_of,
)
from workbench.panels.shared_config import SharedConfig
from workbench.panels.state import PanelState
from workbench.panels.style import (
    error_html,
    faint,
    note_html,
    table,
    words,
)
from workbench.panels.worker import Outcome, RunControl

if TYPE_CHECKING:
    from workbench.tasks import Task
    from workbench.training.compare import Comparison
    from workbench.training.run import RunProgress

__all__ = ["CompareOrder", "ComparePanel", "compare_in_thread", "seeds_of", "settled_config"]

_SHARED, _FILE, _JSON, _NONE = "This configuration", "A file", "JSON text", "none"
_SOURCES: Final = (_SHARED, "O0", "O1", "O2", _FILE, _JSON)
_MOST_SIDES: Final = 4
_HEIGHT: Final = 430  # always: plotly gives up following the width when a height changes
_MOST_SEEDS: Final = 20


@dataclass(frozen=True, slots=True)
class CompareOrder:
    """What one click on Start asks for.

    Args:
        task: A task, or its name.
        sides: Label, configuration and level of each side, with labels of their own; the first is the base.
        seeds: Seeds, the same for every side.
        steps: Micro-batches per run.
        device: Device name, or ``"auto"``.
        out: Folder for run directories; None records nothing.
    """

    task: Task | str
    sides: tuple[tuple[str, BoostConfig, str], ...]
    seeds: tuple[int, ...]
    steps: int
    device: str = "auto"
    out: Path | None = None


@dataclass(frozen=True, slots=True)
class _Began:
    metric: MetricScale


@dataclass(frozen=True, slots=True)
class _Step:
    side: int
    seed: int
    progress: RunProgress


def compare_in_thread(order: CompareOrder, control: RunControl) -> Comparison:
    """Do what was ordered, and say how it goes; the work of the panel's thread.

    Args:
        order: What to do.
        control: Where to speak and to listen.

    Raises:
        TaskError: When the task cannot be found or loaded.
        StoppedError: When somebody stopped it, within one step.
    """
    from workbench.core import devices
    from workbench.panels.stoppable_task import stoppable
    from workbench.tasks import load_task
    from workbench.training.compare import Side, compare_configs

    task = load_task(order.task) if isinstance(order.task, str) else order.task
    control.send(_Began(MetricScale(task.metric_name, higher_is_better=task.higher_is_better)))
    places = {
        f"{label}, seed {seed}": (i, k)
        for i, (label, *_) in enumerate(order.sides)
        for k, seed in enumerate(order.seeds)
    }

    def told(label: str, progress: RunProgress) -> None:
        control.send(_Step(*places[label], progress))

    return compare_configs(
        stoppable(task, control.stop_requested),
        [Side(*side) for side in order.sides],
        seeds=order.seeds,
        steps=order.steps,
        device=devices.select_device(order.device),
        out=order.out,
        on_progress=told,
    )


def settled_config(config: BoostConfig, level: str) -> BoostConfig:
    """Return a configuration that means by itself what it means at a level.

    Args:
        config: The configuration; in mode auto its level decides over the switches.
        level: Boost level.

    Raises:
        ConfigError: When the level is unknown.
    """
    asked = requested_switches(config, level)
    return config.with_values({"boost.mode": "manual", **{f"boost.{name}": asked[name] for name in SWITCHES}})


def seeds_of(text: str) -> tuple[int, ...]:
    """Read seeds as a person writes them: ``5`` is the first five, ``0, 3, 7`` and ``2-6`` name them.

    Args:
        text: As typed.

    Raises:
        ConfigError: When that names no seeds, one of them twice, or more than twenty.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    seeds: list[int] = []
    for part in parts:
        found = re.fullmatch(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?", part)
        if found is None:
            raise ConfigError(f"`seeds` must be a number of seeds, or seeds such as 0, 3, 7 or 2-6, got {shown(part)}")
        first, last = int(found.group(1)), int(found.group(2) or found.group(1))
        if last - first >= _MOST_SEEDS:
            raise ConfigError(f"`seeds` must be at most {_MOST_SEEDS}, got {last - first + 1}")
        seeds += range(first, last + 1)
    if len(parts) == 1 and "-" not in parts[0]:
        if seeds[0] > _MOST_SEEDS:
            raise ConfigError(f"`seeds` must be at most {_MOST_SEEDS}, got {seeds[0]}")
        seeds = list(range(seeds[0]))
    if not 1 <= len(seeds) <= _MOST_SEEDS or len(set(seeds)) < len(seeds):
        raise ConfigError(f"`seeds` must be 1 to {_MOST_SEEDS} different seeds, got {shown(text)}")
    return tuple(seeds)


class ComparePanel(Panel):
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
        super().__init__("Compare", theme=theme)
        self.shared = shared if shared is not None else SharedConfig()
        self.comparison: Comparison | None = None
        self._task = None if isinstance(task, str) else task
        self._metric = MetricScale("metric")
        self._order: CompareOrder | None = None
        self._metrics: list[list[float]] = []
        self._runs_done = 0
        self._began = 0.0
        self.worker = self.new_worker(self._take, self._end)
        self.sides = [_SideChoice(self, number) for number in range(_MOST_SIDES)]
        self._make_controls(task if isinstance(task, str) else task.name, steps, seeds, device, out)
        self.figure = FigurePlace(
            "Which configuration is faster, and what does it cost?",
            "Start trains every configuration with the same seeds.",
            theme=theme,
            height=_HEIGHT,
            interval=0,
        )
        self.cleaned_up_by(self.figure.close)
        self._verdict, self._table = text_of(""), text_of("")
        self.plots.children = (self._verdict, self.figure.widget, self._table)
        for choice, source in zip(self.sides, ("O0", _SHARED), strict=False):
            choice.source.value = source
        self.state_changed(self.state)

    def _make_controls(self, task: str, steps: int, seeds: int, device: str, out: str | Path | None) -> None:
        self.task = placed.Text(
            task,
            continuous_update=False,
            css="wb-wide",
            tooltip="Name of a built-in task, package.module:attribute, or path/to/file.py:attribute",
        )
        self.seeds = _short_text(str(seeds), "A number of paired seeds, or the seeds themselves: 0, 3, 7 or 2-6")
        self.steps = _short_text(str(steps), "Micro-batches per run")
        self._seeds_problem, self._steps_problem = text_of(""), text_of("")
        known = ["auto", "cpu", "cuda", "npu"]
        self.device = placed.Dropdown(
            options=known if device in known else [*known, device],
            value=device,
            css="wb-wide",
            tooltip="Where to train",
        )
        self.out = placed.Text(
            "" if out is None else str(out),
            placeholder="records nothing",
            continuous_update=False,
            css="wb-wide",
            tooltip="Folder in which run directories are made; empty records nothing",
        )
        self.start_button = _button("Start", "Train every configuration with every seed", "success")
        self.stop_button = _button("Stop", "End the comparison after the present step")
        self.start_button.on_click(self.guarded(lambda _: self.start()))
        self.stop_button.on_click(self.guarded(lambda _: self.stop()))
        self.bar = placed.FloatProgress(min=0, max=1, css="wb-bar")
        self._told = text_of(faint("not started"))
        more = placed.Accordion(
            children=(column(text_of("Device"), self.device, text_of("Folder of run directories"), self.out),),
            titles=("More",),
            css="wb-more",
        )
        self.controls.children = (
            text_of("Task"),
            self.task,
            text_of(f"<h4>Configurations</h4>{faint('The first is the base; the others are compared with it.')}"),
            *(choice.widget for choice in self.sides),
            row(text_of("Paired seeds"), self.seeds),
            self._seeds_problem,
            row(text_of("Steps per run"), self.steps),
            self._steps_problem,
            more,
            row(self.start_button, self.stop_button),
            self.bar,
            self._told,
        )

    # -- what the user does --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a comparison with what the controls say; a value that cannot be used is told beside its field."""
        order = self._read()
        if order is None or not self.machine.try_to(PanelState.RUNNING):
            return
        self.clear_error()
        self._order, self.comparison = order, None
        self._metrics = [[math.nan] * len(order.seeds) for _ in order.sides]
        self._runs_done, self._began = 0, time.monotonic()
        self.bar.value = 0.0
        self._verdict.value = self._table.value = ""
        self._told.value = note_html("loading ...")
        self._draw()
        self.worker.start(functools.partial(compare_in_thread, order))

    def stop(self) -> None:
        """End the comparison after the present step."""
        if self.machine.try_to(PanelState.STOPPING):
            self._told.value = note_html("stopping after this step ...")
            self.worker.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is under way; for scripts and notebooks that want the comparison.

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
        for entry in (self.start_button, self.device, self.out, self.seeds, self.steps):
            entry.disabled = state.busy
        self.task.disabled = state.busy or self._task is not None
        self.stop_button.disabled = state is not PanelState.RUNNING
        for choice in self.sides:
            choice.lock(state.busy)

    def static_html(self) -> str:
        """Return the last verdict and the table behind it."""
        verdict, rows = str(self._verdict.value), str(self._table.value)
        return super().static_html() + verdict + rows

    def _read(self) -> CompareOrder | None:
        """Read the controls; None when one of them cannot be used, which is then told beside it."""
        seeds = _read_into(self._seeds_problem, lambda: seeds_of(self.seeds.value))
        steps = _read_into(self._steps_problem, lambda: _steps_of(self.steps.value))
        chosen = [choice for choice in self.sides if choice.source.value != _NONE]
        read = [choice.read() for choice in chosen]
        sides = [side for side in read if side is not None]
        if len(chosen) < 2:
            self.sides[1].refuse("choose a second configuration")
        if seeds is None or steps is None or len(sides) < len(chosen) or len(sides) < 2:
            return None
        return CompareOrder(
            task=self._task if self._task is not None else self.task.value,
            sides=_with_own_labels(sides),
            seeds=seeds,
            steps=steps,
            device=self.device.value,
            out=Path(self.out.value).expanduser() if self.out.value.strip() else None,
        )

    # -- what the work tells -------------------------------------------------------------------------------------------

    def _take(self, messages: Sequence[Any]) -> None:
        order, last, news = self._order, None, False
        if order is None:
            return
        for message in messages:
            if isinstance(message, _Began):
                self._metric = message.metric
            elif isinstance(message, _Step):
                last = message
                if math.isfinite(message.progress.metric):
                    self._metrics[message.side][message.seed] = message.progress.metric
                    news = True
        if last is not None:
            self._show_progress(order, last)
        if news:
            self._draw()

    def _show_progress(self, order: CompareOrder, last: _Step) -> None:
        runs = len(order.sides) * len(order.seeds)
        before = last.seed * len(order.sides) + last.side  # seed by seed, side by side
        step = last.progress.step
        ended = math.isfinite(last.progress.metric)
        self._runs_done = before + ended
        share = (before + step / order.steps) / runs
        # A twentieth of the bar is kept for the measurement of speeds, whose length nobody knows beforehand.
        self.bar.value = 0.95 * share
        if self._runs_done == runs:
            self._told.value = note_html(f"all {counted(runs, 'run')} done; now timing steps side by side ...")
            return
        parts = [
            f"run {before + 1} of {runs}",
            f"{order.sides[last.side][0]}, seed {order.seeds[last.seed]}",
            f"{step} of {counted(order.steps, 'step')}",
            f"loss {last.progress.loss:.4g}",
        ]
        if share > 0:
            left = (time.monotonic() - self._began) * (1 - share) / share
            parts.append(f"{format_duration(left)} left, and the timing")
        if self.state is not PanelState.STOPPING:
            self._told.value = note_html(" · ".join(parts))

    def _end(self, outcome: Outcome) -> None:
        from workbench.panels.stoppable_task import StoppedError

        if isinstance(outcome.error, StoppedError):
            runs = self._runs_done
            self._told.value = note_html(f"stopped after {counted(runs, 'whole run')}; nothing is concluded")
            self.log(f"stopped on request after {counted(runs, 'whole run')}")
        elif outcome.error is not None:
            self.report_error(outcome.error, outcome.traceback if outcome.error.__cause__ is not None else "")
            self._told.value = note_html("failed; mend it and start again")
        else:
            self.comparison = outcome.result
            self.bar.value = 1.0
            self._told.value = note_html(f"done in {format_duration(outcome.seconds)}")
            self._show_verdict(outcome.result)
        if outcome.display_error is not None:
            self.log(f"the display failed once: {outcome.display_error!r}")
        self._draw()
        failed = outcome.error is not None and not isinstance(outcome.error, StoppedError)
        self.machine.to(PanelState.FAILED if failed else PanelState.DONE)

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
        self._table.value = WHOLE_WORDS + table(
            ("Configuration", "In effect", f"Mean {self._metric.name}", "Speed"), rows
        )

    def _draw(self) -> None:
        self.figure.update(
            paired_comparison_figure(self._paired(), metric=self._metric, theme=self.theme, height=_HEIGHT)
        )
        self.figure.flush()

    def _paired(self) -> list[PairedSide]:
        comparison, order = self.comparison, self._order
        if comparison is None:
            labels = [label for label, *_ in order.sides] if order is not None else []
            return [PairedSide(label, tuple(found)) for label, found in zip(labels, self._metrics, strict=True)]
        sides = []
        for side in comparison.sides:
            paired = PairedSide(side.label, side.metrics)
            if side.speed is not None:
                fast, low, high = 1 / side.speed.ratio, 1 / side.speed.high, 1 / side.speed.low
                paired = dataclasses.replace(paired, speedup=fast, speedup_low=low, speedup_high=high)
            if side.drop is not None and math.isfinite(side.drop.upper):
                paired = dataclasses.replace(paired, drop_bound=side.drop.upper)
            sides.append(paired)
        return sides


class _SideChoice:
    """One row: where a configuration comes from."""

    def __init__(self, panel: ComparePanel, number: int) -> None:
        self._panel, self._number = panel, number
        optional = number >= 2
        options = [*([_NONE] if optional else []), *_SOURCES]
        self.source = placed.Dropdown(
            options=options,
            value=_NONE if optional else "O0",
            css="wb-growing",
            tooltip=f"Where configuration {number + 1} comes from",
        )
        self.path = placed.Text(
            placeholder="boost_config.json",
            continuous_update=False,
            css="wb-wide",
            tooltip="Path of a boost_config.json",
        )
        self.json = placed.Textarea(
            placeholder='{"boost": {"mode": "manual", "grad_freeze": true}}',
            continuous_update=False,
            rows=5,
            css="wb-wide",
            tooltip="The text of a boost_config.json",
        )
        self._problem = text_of("")
        title = text_of("<b>Base</b>" if not number else f"<b>{number + 1}</b>")
        self._extra = column()
        self.widget = column(row(title, self.source), self._extra, self._problem)
        panel.on_change(self.source, lambda _: self._show())
        for entry in (self.path, self.json):  # they stand in the panel only while their source is chosen
            panel.cleaned_up_by(functools.partial(close_recursively, entry))

    def read(self) -> tuple[str, BoostConfig, str] | None:
        """Return label, configuration and level; None when it cannot be used, which is then told."""
        self._problem.value = ""
        try:
            label, config, level = self._side()
            settled = settled_config(config, level)
            settled.resolve(level)  # what a method lacks would only be found out in the middle
        except ConfigError as error:
            self.refuse(str(error))
            return None
        return label, settled, level

    def refuse(self, sentence: str) -> None:
        """Say what is wrong.

        Args:
            sentence: One sentence.
        """
        self._problem.value = error_html(sentence)

    def lock(self, locked: bool) -> None:
        """Disable the row while work is under way.

        Args:
            locked: Whether it is disabled.
        """
        for entry in (self.source, self.path, self.json):
            entry.disabled = locked

    def _show(self) -> None:
        source = self.source.value
        self._problem.value = ""
        self._extra.children = (self.path,) if source == _FILE else (self.json,) if source == _JSON else ()

    def _side(self) -> tuple[str, BoostConfig, str]:
        source = self.source.value
        if source == _SHARED:
            return "this configuration", *self._panel.shared.both()
        if source == _FILE:
            path = Path(self.path.value.strip()).expanduser()
            if not self.path.value.strip():
                raise ConfigError("name a boost_config.json, or choose another source")
            return path.name, BoostConfig.from_json(path), "O1"
        if source == _JSON:
            values = parse_json(self.json.value, "JSON text")
            if not isinstance(values, dict):
                raise ConfigError(f"JSON text: must hold an object of sections, got {shown(values)}")
            return "JSON text", BoostConfig.from_dict(values), "O1"
        return str(source), BoostConfig(), str(source)


def _button(text: str, tooltip: str, style: str = "") -> widgets.Button:
    return placed.Button(description=text, tooltip=tooltip, button_style=style, css="wb-auto")


def _short_text(value: str, tooltip: str) -> widgets.Text:
    return placed.Text(value, continuous_update=False, css="wb-count", tooltip=tooltip)


def _read_into(problem: widgets.HTML, read: Callable[[], Any]) -> Any:
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


def _with_own_labels(sides: Sequence[tuple[str, BoostConfig, str]]) -> tuple[tuple[str, BoostConfig, str], ...]:
    """Number labels that come twice: what belongs to which side is told by label."""
    seen: dict[str, int] = {}
    named = []
    for label, config, level in sides:
        seen[label] = seen.get(label, 0) + 1
        named.append((label if seen[label] == 1 else f"{label} ({seen[label]})", config, level))
    return tuple(named)
