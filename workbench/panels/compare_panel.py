"""Compare: two to four configurations trained on the same seeds and timed side by side, with a verdict in a sentence.

The first is the base. Seeds are paired: every configuration sees the same weights, data order and split, so what
differs between two runs of a pair is the configuration alone.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench.config import BoostConfig, ConfigError
from workbench.config.errors import shown
from workbench.core.text import format_duration
from workbench.figures import MetricScale, RunCurve
from workbench.figures.labels import counted
from workbench.figures.loss_curves import loss_curves_drawing
from workbench.figures.paired_comparison import PairedSide, paired_comparison_drawing
from workbench.panels import kit
from workbench.panels.controls import count_control, is_usable_count, text_control
from workbench.panels.figure_place import HEIGHT, FigurePlace
from workbench.panels.kit import column, folded, read_from, row, text_of
from workbench.panels.live_trace import LiveTrace
from workbench.panels.panel import Panel, PanelState, Theme, WorkPanel
from workbench.panels.run_controls import TaskControls
from workbench.panels.run_overlay import Smoothing
from workbench.panels.shared_config import Setup, SharedConfig, config_of_text
from workbench.panels.style import faint, table, words
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
_SEEDS_HELP: Final = "A number of paired seeds, or the seeds themselves: 0, 3, 7 or 2-6."
_VERDICT, _CURVES = "Verdict", "Learning curves"

LabelledConfig = tuple[str, BoostConfig, str]
"""Label, configuration and level."""


class _Comparing:
    """What one click on Start asks for, with distinct labels and the same seeds for every side, and its progress."""

    def __init__(self, sides: Sequence[LabelledConfig], seeds: Sequence[int], steps: int) -> None:
        self.sides, self.seeds, self.steps = sides, seeds, steps
        self.runs = [f"{label}, seed {seed}" for seed in seeds for label, *_ in sides]  # what is trained, in order
        self.metrics = [[math.nan] * len(seeds) for _ in sides]  # of each side by seed, NaN until it is known
        self.traces: dict[int, LiveTrace] = {}  # of the runs under the present seed, by side
        self.run, self.n_done = -1, 0  # the present one, and those that have ended
        self.began = time.monotonic()

    def add(self, run: int, records: Any, events: Any) -> None:
        """Take steps and events of a run; the first side of a seed starts a new figure."""
        side = run % len(self.sides)
        if run != self.run:
            self.traces = {**({} if side == 0 else self.traces), side: LiveTrace()}
            self.run = run
        self.traces[side].add(records, events)

    @property
    def curves(self) -> list[RunCurve]:
        """The runs under the present seed."""
        return [RunCurve(self.sides[side][0], one.steps, one.evaluations) for side, one in self.traces.items()]


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
            f"`seeds` must be a number of seeds, at most {_MOST_SEEDS}, or that many different seeds such as 0, 3, 7 "
            f"or 2-6, got {shown(text)}"
        )
    return tuple(seeds)


class ComparePanel(WorkPanel):
    """Compare configurations on a task.

    Args:
        task: A task, or its name as on the command line; a name can be changed in the panel.
        shared: The configuration the first tab shows; None makes a new one.
        steps: Batches per run.
        seeds: Number of paired seeds.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"npu"``.
        out: Folder for run directories; None records nothing.
        theme: See ``Panel``.

    Attributes:
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
        super().__init__("Compare", shared, theme=theme, stop_help="End the comparison after the current step")
        self.comparison: Comparison | None = None
        self._metric = MetricScale("metric")
        self._comparing = _Comparing((), (), 0)
        self.where = TaskControls(self, task, device, out)
        self.task = self.where.name
        self.sides = [_SideChoice(self, self.shared, number) for number in range(_MOST_SIDES)]
        self.seeds = text_control("seeds", "Paired seeds", _SEEDS_HELP, str(seeds))
        self.steps = count_control("steps", "Steps per run", "Batches per run.", steps, unit="batches")
        start_help = "Train every configuration with every seed"
        self.start_button = self.button("Start", start_help, self.start, style="success")
        self.locked = [self.start_button, self.where, self.seeds, self.steps]
        self.locked += [entry for side in self.sides for entry in (side.source, side.path, side.json)]
        self.controls.children = (
            self.where.named,
            *kit.section("Configurations", faint("The first is the base; the others are compared with it.")),
            *(choice.widget for choice in self.sides),
            *(self.seeds.widget, self.steps.widget),
            folded("More", "Device", self.where.device, "Folder of run directories", self.where.out),
            row(self.start_button, self.stop_button),
            self.bar,
            self.progress_text,
        )
        question = "Which configuration is faster, and what does it cost?"
        self.figure = FigurePlace(self, question, "Press Start to train every configuration with the same seeds.")
        self.lasting = self._verdict, self._table = text_of(""), text_of("")
        self.curves = FigurePlace(self, "Do the runs learn equally well?", "Press Start to see their curves.")
        self.smoothing = Smoothing(self, self.refresh)
        self.view = kit.choice_buttons((_VERDICT, _CURVES))
        self._curves_box = column(self.smoothing.widget, self.curves.widget)
        self.on_change(self.view, lambda _: self._show_view())
        self.plots.children = (self._verdict, self.view, self.figure.widget, self._curves_box, self._table)
        self._show_view()
        for choice, source in zip(self.sides, ("O0", _SHARED), strict=False):
            choice.source.value = source
        self.state_changed(self.state)

    def start(self) -> None:
        """Begin the comparison that the controls describe; a value that cannot be used is refused next to its field."""
        asked = self._read()
        if asked is None or not self.machine.try_to(PanelState.RUNNING):
            return
        self._comparing, self.comparison, self.view.value = asked, None, _CURVES
        self.bar.value = 0.0
        self._verdict.value = self._table.value = ""
        self._draw()
        task, device, out = self.where.task, self.where.device.value, self.where.folder
        self.begin(lambda control: self._compare(control, asked, task, device, out))

    def refresh(self) -> None:
        """Draw the curves, while they are looked at."""
        if self._comparing.traces and self.view.value == _CURVES:
            window = self.smoothing.window
            drawing = loss_curves_drawing(self._comparing.curves, metric=self._metric, window=window, theme=self.theme)
            self.curves.update(drawing)

    def finished(self, outcome: Outcome) -> PanelState:
        """Show the verdict, or that there is none because the comparison was stopped."""
        self.comparison = outcome.result
        if outcome.result is None:
            runs = counted(self._comparing.n_done, "complete run")
            self.tell(f"stopped after {runs}; no verdict")
            self.log(f"stopped on request after {runs}")
            return PanelState.STOPPED
        self.bar.value = 1.0
        self.tell(f"done in {format_duration(outcome.seconds)}")
        self._show_verdict(outcome.result)
        self._draw()
        self.view.value = _VERDICT
        return PanelState.DONE

    def _read(self) -> _Comparing | None:
        """Read the controls; None if one of them cannot be used, with the reason shown next to it."""
        seeds = read_from(self.seeds, lambda: seeds_of(str(self.seeds.value)))
        chosen = [choice for choice in self.sides if choice.source.value != _NONE]
        sides = [side for side in [read_from(choice, choice.read) for choice in chosen] if side is not None]
        if len(chosen) < 2:
            self.sides[1].refuse("choose a second configuration")
        if not is_usable_count(self.steps) or seeds is None or len(sides) < max(len(chosen), 2):
            return None
        named = _with_own_labels(sides)
        return None if self._refuse_equal(chosen, named) else _Comparing(named, seeds, self.steps.value)

    def _refuse_equal(self, chosen: Sequence[_SideChoice], sides: Sequence[LabelledConfig]) -> bool:
        """Say beside a side that it is the same set-up as one before it; return whether there is one."""
        seen, found = dict[str, str](), False
        for choice, (label, config, level) in zip(chosen, sides, strict=True):
            plan = config.resolve(level, network=self.shared.network)
            same = seen.setdefault(plan.key(), label)
            if same != label:
                choice.refuse(f"the same set-up as {same} ({plan.summary()}): there is nothing to compare")
                found = True
        return found

    def _compare(
        self, control: RunControl, asked: _Comparing, task: Task | str, device: str, out: Path | None
    ) -> Comparison | None:
        """Compare and report progress, in the panel's thread; None if stopped, which takes one step at most."""
        from workbench.core.devices import select_device
        from workbench.tasks import load_task
        from workbench.tasks.stoppable_task import StoppedError, stoppable
        from workbench.training.compare import Side, compare_configs

        task = load_task(task)
        self._metric, runs = MetricScale.of(task), asked.runs
        try:
            return compare_configs(
                stoppable(task, control.stop_requested),
                [Side(*side) for side in asked.sides],
                seeds=asked.seeds,
                steps=asked.steps,
                device=select_device(device),
                out=out,
                on_progress=lambda run, progress: control.send(self._show_progress, asked, runs.index(run), progress),
                on_records=lambda run, *told: control.send(asked.add, runs.index(run), *told),
                evaluate_every=max(asked.steps // _EVALUATIONS, 1),
            )
        except StoppedError:
            return None

    def _show_view(self) -> None:
        for box, name in ((self.figure.widget, _VERDICT), (self._curves_box, _CURVES)):
            box.present(self.view.value == name)
        self.refresh()

    def _show_progress(self, asked: _Comparing, run: int, progress: RunProgress) -> None:
        runs = asked.runs
        if progress.step == progress.steps and math.isfinite(progress.metric):
            asked.n_done = run + 1
            seed, side = divmod(run, len(asked.sides))
            asked.metrics[side][seed] = progress.metric
            self._draw()
        share = (run + progress.step / progress.steps) / len(runs)
        # A twentieth of the bar is kept for the measurement of speeds, whose length is not known beforehand.
        self.bar.value = 0.95 * share
        parts = [f"run {run + 1} of {len(runs)}", runs[run], f"{progress.step} of {counted(progress.steps, 'step')}"]
        parts.append(f"loss {progress.loss:.4g}")
        if share > 0:
            left = (time.monotonic() - asked.began) * (1 - share) / share
            parts.append(f"about {format_duration(left)} left, plus the timing")
        if asked.n_done == len(runs):
            parts = [f"all {counted(len(runs), 'run')} done; now timing steps side by side ..."]
        if self.state is not PanelState.STOPPING:
            self.tell(" · ".join(parts))

    def _show_verdict(self, comparison: Comparison) -> None:
        sentences = comparison.sentences()
        self._verdict.value = "".join(f'<p role="status">{words(sentence)}</p>' for sentence in sentences)
        self.log(f"compared {counted(len(comparison.sides), 'configuration')}")
        rows = []
        for side in comparison.sides:
            metrics = [value for value in side.metrics if math.isfinite(value)]
            mean = self._metric.value_text(statistics.fmean(metrics)) if metrics else "diverged"
            speed = "base" if side.run_speed is None else f"{side.run_speed.ratio:.2f} x" if metrics else "-"
            rows.append((side.label, side.summary, f"{mean} ({counted(len(metrics), 'seed')})", speed))
        head = ("Configuration", "In effect", f"Mean {self._metric.name}", "Speed per run")
        self._table.value = table(head, rows, css="wb-whole-words")

    def _draw(self) -> None:
        asked = self._comparing
        sides = [PairedSide(side[0], tuple(found)) for side, found in zip(asked.sides, asked.metrics, strict=True)]
        if self.comparison is not None:
            sides = [_paired(side) for side in self.comparison.sides]
        self.figure.update(paired_comparison_drawing(sides, metric=self._metric, theme=self.theme, height=HEIGHT))


def _paired(side: ComparedSide) -> PairedSide:
    speed = low = high = bound = math.nan
    if side.run_speed is not None and side.drop is not None and side.drop.n_pairs:
        speed, low, high = side.run_speed.ratio, side.run_speed.low, side.run_speed.high
    if side.drop is not None and math.isfinite(side.drop.upper):
        bound = side.drop.upper
    return PairedSide(side.label, side.metrics, speed, low, high, bound)


class _SideChoice:
    """One row: where a configuration comes from."""

    def __init__(self, panel: Panel, shared: SharedConfig, number: int) -> None:
        self._shared = shared
        optional = number >= 2
        self._given = [*([_NONE] if optional else []), *_SOURCES]
        where = f"Where configuration {number + 1} comes from"
        first = _NONE if optional else "O0"
        self.source = kit.Dropdown(options=self._given, value=first, css="wb-growing", tooltip=where)
        self.path = kit.text_box(tooltip="Path of a boost_config.json", placeholder="boost_config.json")
        self.json = kit.Textarea(
            placeholder='{"amp": {"level": "O2"}, "loss_scale": {"window": 500}}',
            continuous_update=False,
            rows=5,
            css="wb-wide",
            tooltip="The text of a boost_config.json",
        )
        self._problem = text_of("")
        self.refuse = self._problem.refuse
        title = kit.Html(f"{number + 1}" if number else "Base", css="wb-side")
        self._extra = column()
        self.widget = column(kit.Row((title, self.source), css="wb-line"), self._extra, self._problem)
        panel.on_change(self.source, self._show)
        panel.cleaned_up_by(shared.observe(lambda *_: self._offer_kept()))
        self._offer_kept()
        for entry in (self.path, self.json):  # they stand in the panel only while their source is chosen
            panel.cleaned_up_by(entry.close)

    def read(self) -> LabelledConfig:
        """Return label, configuration and level; a ConfigError says why it cannot be used."""
        chosen = self._chosen()
        chosen[1].resolve(chosen[2], network=self._shared.network)  # else it would only be found out in the middle
        return chosen

    def _show(self, source: str) -> None:
        self.refuse("")
        self._extra.children = (self.path,) if source == _FILE else (self.json,) if source == _JSON else ()

    def _offer_kept(self) -> None:
        """Offer what the shared configuration has kept by name, too."""
        options = (*self._given, *self._kept())
        if options != self.source.options:
            kit.offer(self.source, options, self._given[0])

    def _kept(self) -> dict[str, Setup]:
        """Return the saved configurations by name, marked where the name would clash with a built-in choice."""
        taken = (_NONE, *_SOURCES)
        return {f"{name} (kept)" if name in taken else name: setup for name, setup in self._shared.kept.items()}

    def _chosen(self) -> LabelledConfig:
        source, kept = self.source.value, self._kept()
        if source == _SHARED:
            return "this configuration", *self._shared.both()
        if source in kept:
            return source, *kept[source]
        if source == _FILE:
            path = Path(self.path.value.strip()).expanduser()
            if not self.path.value.strip():
                raise ConfigError("name a boost_config.json, or choose another source")
            return path.name, BoostConfig.from_json(path), "O1"
        if source == _JSON:
            return "JSON text", config_of_text(self.json.value, "JSON text"), "O1"
        return str(source), BoostConfig(), str(source)


def _with_own_labels(sides: Sequence[LabelledConfig]) -> tuple[LabelledConfig, ...]:
    """Number labels that occur twice, since sides are told apart by label."""
    seen: dict[str, int] = {}
    named = []
    for label, config, level in sides:
        seen[label] = seen.get(label, 0) + 1
        named.append((label if seen[label] == 1 else f"{label} ({seen[label]})", config, level))
    return tuple(named)
