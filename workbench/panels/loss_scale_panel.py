"""Loss scale: what it did in a recorded run, and what other policies would have done.

Opening a run and judging many policies is work with a state; a moved slider is answered beside it, the newest request
first and those in between not at all.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench.config import BoostConfig, ConfigError, describe_parameters
from workbench.figures import (
    empty_figure,
    gradient_exponents_figure,
    group_scales_figure,
    policy_names,
    replay_policies_figure,
)
from workbench.figures.drawing import Drawing
from workbench.figures.labels import counted, percent, superscripted
from workbench.figures.live import LiveFigure
from workbench.figures.loss_scale import loss_scale_drawing
from workbench.panels import placed_widgets as placed
from workbench.panels.controls import ParameterControl, control_for, parsed
from workbench.panels.figure_place import FigurePlace
from workbench.panels.panel import (
    Panel,
    Theme,
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
    words,
)
from workbench.panels.worker import Outcome, RunControl

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from workbench.loss_scale import ScalePolicy
    from workbench.runs import Run
    from workbench.runs.replayed_run import ReplayedRun

__all__ = ["LossScalePanel"]

_PATHS: Final = ("loss_scale.init", "loss_scale.factor", "loss_scale.window")
_WITH_RANGES: Final = 20_000  # windows up to which every policy gets a range; in longer runs the chosen one only
_LONGEST_LIST: Final = 200
_HISTOGRAMS: Final = 2000
_HEIGHT: Final = 430  # of every figure, pixels
_INITS: Final = "2^8, 2^12, 2^16, 2^20, 2^24"
_FACTORS: Final = "2, 4"


@dataclass(frozen=True, eq=False)
class _Opened:
    """A run that is on show.

    Args:
        run: The run.
        replayed: The same for replay; None where there is nothing to replay.
        problem: Why there is nothing to replay.
    """

    run: Run
    replayed: ReplayedRun | None
    problem: str = ""


class LossScalePanel(Panel):
    """Look at the loss scale of a recorded run and try other policies on it.

    Args:
        run: A run, its directory, or a folder of runs to choose from; None is the folder ``runs``.
        shared: The configuration that "Use this policy" writes into; None makes one of its own.
        theme: See ``Panel``.

    Attributes:
        shared: The configuration.
        run: The run on show, with at most 2000 of its histograms; None when there is none yet.
    """

    def __init__(
        self, run: Run | str | Path | None = None, shared: SharedConfig | None = None, *, theme: Theme = "auto"
    ) -> None:
        super().__init__("Loss scale", theme=theme)
        self.shared = shared if shared is not None else SharedConfig()
        self._lock = threading.RLock()
        self._answered = threading.Condition(self._lock)
        self._opened: _Opened | None = None
        self._policies: list[ScalePolicy] = []
        self._judged: pd.DataFrame | None = None
        self._wanted: ScalePolicy | None = None
        self._requests = self._answers_given = 0
        self._worker = self.new_worker(_run_all, self._ended)
        self._answers = self.new_worker(_run_all, self._answer_ended, hz=10.0)
        self._lister = self.new_worker(_run_all, self._listed)
        self._make_figures()
        self._make_run_controls()
        self._make_policy_controls()
        self._make_grid_controls()
        self.controls.children = (
            text_of("<h4>Recorded run</h4>"),
            row(self.folder, self.look_button),
            self.runs,
            row(self.stop_button),
            self._facts,
            text_of("<h4>Another policy</h4>"),
            *(self._policy_controls[path].widget for path in _PATHS),
            self._prediction,
            row(self.use_button),
            self._use_note,
            text_of("<h4>Compare policies</h4>"),
            *(column(text_of(words(title)), self.lists[name]) for name, title in _LIST_TITLES.items()),
            row(self.judge_button),
            text_of(faint("Judged policies by their wasted steps")),
            self.choice,
        )
        self.plots.children = (
            self.trace.widget,
            self.scatter.widget,
            self._assumption,
            self.exponents.widget,
        )
        self._enable()
        self._begin(run)

    @property
    def run(self) -> Run | None:
        """The run on show; None when there is none yet."""
        opened = self._opened
        return opened.run if opened is not None else None

    @property
    def policies(self) -> list[ScalePolicy]:
        """The judged policies, in the order of their rows."""
        return list(self._policies)

    @property
    def policy(self) -> ScalePolicy | None:
        """The policy on the sliders; None while one of them holds no valid value."""
        return self._policy_on_sliders(tell=False)

    def control(self, path: str) -> ParameterControl:
        """Return the control of ``loss_scale.init``, ``loss_scale.factor`` or ``loss_scale.window``.

        Args:
            path: The parameter.

        Raises:
            KeyError: When it is another one.
        """
        return self._policy_controls[path]

    def open(self, source: Run | str | Path) -> None:
        """Show another run; nothing happens while work is under way.

        Args:
            source: A run or its directory.
        """
        if self.machine.try_to(PanelState.RUNNING):
            self.clear_error()
            self.note(f"reading {source if isinstance(source, (str, Path)) else source.name}")
            self._worker.start(functools.partial(self._open, source))

    def stop(self) -> None:
        """Stop opening or judging."""
        if self.machine.try_to(PanelState.STOPPING):
            self._worker.stop()

    def choose(self, number: int) -> None:
        """Put a judged policy on the sliders.

        Args:
            number: Its row.

        Raises:
            IndexError: When there is no such row.
        """
        policy = self._policies[number]
        if policy.kind == "fixed":
            self._prediction.value = note_html("A fixed scale has neither factor nor window, so the sliders stay.")
            return
        for path, value in zip(_PATHS, (policy.init, policy.factor, policy.window), strict=True):
            self._policy_controls[path].set(value)
        self._ask()

    def wait_for_answer(self, timeout: float | None = None) -> bool:
        """Wait until what the sliders ask has been answered; return whether it was.

        Args:
            timeout: Longest wait, seconds; None waits for ever.
        """
        with self._answered:
            return self._answered.wait_for(lambda: self._answers_given >= self._requests, timeout)

    def state_changed(self, state: PanelState) -> None:
        """Enable what the state allows.

        Args:
            state: The new state.
        """
        self._enable()

    def static_html(self) -> str:
        """Return what a saved notebook shows: the run, and what the sliders predict."""
        facts, prediction = str(self._facts.value), str(self._prediction.value)
        return super().static_html() + facts + prediction

    # -- what it is made of --------------------------------------------------------------------------------------------

    def _make_figures(self) -> None:
        theme = self.theme
        nothing = "Choose a recorded run on the left."
        self.trace = FigurePlace("Which loss scale did training settle on?", nothing, theme=theme, height=_HEIGHT)
        self.scatter = FigurePlace(
            _SCATTER_QUESTION, nothing, theme=theme, height=_HEIGHT, on_pick=self.guarded(self.choose)
        )
        self.exponents = FigurePlace(
            "Do the gradients fit into float16 at this loss scale?", nothing, theme=theme, height=_HEIGHT
        )
        for figure in (self.trace, self.scatter, self.exponents):
            self.cleaned_up_by(figure.close)
        self.groups: LiveFigure | None = None  # made for the first run that has group scales
        self._assumption = text_of("")

    def _make_run_controls(self) -> None:
        self.folder = placed.Text(
            "runs", continuous_update=False, css="wb-growing", tooltip="A folder of runs, or one run directory"
        )
        self.look_button = placed.Button(description="Look", tooltip="List the runs of this folder", css="wb-button")
        self.runs = placed.Dropdown(options=[("no run listed yet", "")], css="wb-wide", tooltip="Recorded run")
        self.stop_button = placed.Button(description="Stop", css="wb-button")
        self._facts = text_of("")
        self.look_button.on_click(self.guarded(lambda _: self._look(self.folder.value)))
        self.on_change(self.folder, self._look)
        self.on_change(self.runs, self._choose_run)
        self.stop_button.on_click(self.guarded(lambda _: self.stop()))

    def _make_policy_controls(self) -> None:
        infos, leaves = describe_parameters(), self.shared.config.leaves()
        self._policy_controls = {path: control_for(infos[path], leaves[path]) for path in _PATHS}
        for control in self._policy_controls.values():
            control.observe(self.guarded(lambda _: self._ask()))
        self._prediction = text_of("")
        self.use_button = placed.Button(
            description="Use this policy",
            button_style="primary",
            tooltip="Write initial scale, factor and window into the configuration",
            css="wb-button",
        )
        self.use_button.on_click(self.guarded(lambda _: self._use()))
        self._use_note = text_of("")

    def _make_grid_controls(self) -> None:
        first = {"init": _INITS, "factor": _FACTORS, "window": ""}
        self.lists = {
            name: placed.Text(first[name], continuous_update=False, css="wb-wide", tooltip=f"{title}, with commas")
            for name, title in _LIST_TITLES.items()
        }
        self.judge_button = placed.Button(
            description="Compare",
            tooltip="Replay the run under every combination, at most 50",
            css="wb-button",
        )
        self.judge_button.on_click(self.guarded(lambda _: self._judge_lists()))
        self.choice = placed.Select(options=[], rows=8, css="wb-wide", tooltip="Judged policies, least waste first")
        self.on_change(self.choice, lambda number: None if number is None else self.choose(number))

    def _begin(self, run: Run | str | Path | None) -> None:
        if run is None:
            self._look("runs", quiet=True)
        elif not isinstance(run, (str, Path)):
            self.open(run)
        elif (Path(run) / "environment.json").is_file():
            with self.showing():
                self.folder.value = str(Path(run).parent)
            self.open(run)
            self._lister.start(lambda _: _listed_runs(Path(run).parent))  # the others beside it can be chosen then
        else:
            with self.showing():
                self.folder.value = str(run)
            self._look(str(run))

    # -- what the user does --------------------------------------------------------------------------------------------

    def _look(self, folder: str, *, quiet: bool = False) -> None:
        """List a folder, or open it if it is a run itself."""
        path = Path(folder.strip() or ".").expanduser()
        if (path / "environment.json").is_file() or (path.exists() and not path.is_dir()):
            self.open(path)
        elif quiet and not path.is_dir():
            self.note("no folder `runs` here yet: train something, or name a folder of runs")
        elif not self._lister.alive:
            self.clear_error()
            self._lister.start(lambda _: _listed_runs(path))

    def _choose_run(self, path: Path | str) -> None:
        if path:  # the first line is no run
            self.open(path)

    def _judge_lists(self) -> None:
        from workbench.runs.replayed_run import policy_grid

        opened = self._opened
        if opened is None or opened.replayed is None:
            return
        values = {name: parsed(entry.value, "list", optional=False) for name, entry in self.lists.items()}
        try:
            policies = policy_grid(values["init"], values["factor"], values["window"], minimum=self._minimum(opened))
        except (TypeError, ValueError) as error:  # the user's lists, not a fault
            self.report_error(_RefusedListError(str(error)))
            return
        if self.machine.try_to(PanelState.RUNNING):
            self.clear_error()
            self._worker.start(functools.partial(self._judge, opened, policies))

    def _use(self) -> None:
        policy = self._policy_on_sliders(tell=True)
        if policy is None:
            return
        try:
            self.shared.change(dict(zip(_PATHS, (policy.init, policy.factor, policy.window), strict=True)))
        except ConfigError as error:
            self._use_note.value = error_html(str(error))
            return
        reason = self._idle_reason()
        told = f"The configuration has it now: {_name(policy)}."
        self._use_note.value = note_html(f"{told} It has no say yet: {reason}." if reason else told)
        self.log(told)

    def _idle_reason(self) -> str:
        try:
            return self.shared.plan().idle_reason("loss_scale.init")
        except ConfigError as error:
            return str(error)

    def _ask(self) -> None:
        """Have what the sliders say answered; what was asked before and not begun yet is dropped."""
        if self._opened is None or self._opened.replayed is None:
            return
        policy = self._policy_on_sliders(tell=True)
        if policy is None:
            return
        with self._lock:
            self._requests += 1
            self._wanted = policy
        self._answer_next()

    def _policy_on_sliders(self, *, tell: bool) -> ScalePolicy | None:
        from workbench.loss_scale import ScalePolicy

        values = {path: control.value for path, control in self._policy_controls.items()}
        valid = True
        for path, control in self._policy_controls.items():
            try:
                BoostConfig().with_values({path: values[path], "loss_scale.minimum": 2.0**-60})
            except ConfigError as error:
                valid = False
                if tell:
                    control.refuse(str(error))
            else:
                if tell:
                    control.refuse("")
        if not valid:
            return None
        init, factor, window = (values[path] for path in _PATHS)
        minimum = self._minimum(self._opened) if self._opened is not None else 1.0
        try:
            return ScalePolicy(init=init, factor=factor, window=window, minimum=min(minimum, init))
        except ValueError as error:  # a bound the configuration does not have
            if tell:
                self._policy_controls["loss_scale.init"].refuse(str(error))
            return None

    @staticmethod
    def _minimum(opened: _Opened) -> float:
        recorded = opened.replayed.recorded if opened.replayed is not None else None
        return recorded.minimum if recorded is not None and recorded.kind == "dynamic" else 1.0

    # -- in the workers ------------------------------------------------------------------------------------------------

    def _open(self, source: Run | str | Path, control: RunControl) -> str:
        from workbench.runs import read_run
        from workbench.runs.replayed_run import ReplayedRun, policy_grid, usual_windows

        # The trace needs no histograms, which take most of the time; the reader looks at it while they are read.
        run = read_run(source, most_histograms=0) if isinstance(source, (str, Path)) else source
        trace = loss_scale_drawing(run.steps, run.events, theme=self.theme)
        control.send(functools.partial(self._show_run, run, trace))
        if control.stop_requested():
            return "stopped; the trace is shown, nothing was replayed"
        if isinstance(source, (str, Path)):  # as many as figures and replay look at; all would take seconds
            run = read_run(source, most_histograms=_HISTOGRAMS)
        try:
            opened = _Opened(run, ReplayedRun(run)) if len(run.steps) else _Opened(run, None, _EMPTY)
        except ValueError as error:
            opened = _Opened(run, None, _why_not(run, error))
        exponents = gradient_exponents_figure(run.steps, theme=self.theme)
        groups = None
        if len(run.steps) and run.steps["group_scales"].map(len).any():
            groups = group_scales_figure(run.steps, run.events, theme=self.theme)
        control.send(functools.partial(self._show_opened, opened, exponents, groups))
        if opened.replayed is None:
            return f"read {counted(len(run.steps), 'step')} of {run.name}"
        if control.stop_requested():
            return "stopped; the run is shown, no policies were compared"
        windows = usual_windows(opened.replayed.n_windows)
        inits, factors = ([float(v) for v in parsed(text, "list", optional=False)] for text in (_INITS, _FACTORS))
        policies = policy_grid(inits, factors, windows, minimum=self._minimum(opened))
        control.send(functools.partial(self._show_lists, windows))
        return f"read {counted(len(run.steps), 'step')} of {run.name}; " + self._judge(opened, policies, control)

    def _judge(self, opened: _Opened, policies: list[ScalePolicy], control: RunControl) -> str:
        replayed = opened.replayed
        if replayed is None:
            return ""
        if replayed.recorded is not None:
            policies = [replayed.recorded, *(policy for policy in policies if policy != replayed.recorded)]
        policies = list(dict.fromkeys(policies))
        table = replayed.judge(policies)
        control.send(functools.partial(self._show_judged, opened, policies, table))
        if replayed.n_windows <= _WITH_RANGES and not control.stop_requested():
            ranged = replayed.ranges(policies).table
            table = table.assign(**{name: ranged[name] for name in ("overflows_low", "overflows_high")})
            control.send(functools.partial(self._show_judged, opened, policies, table))
        return f"{counted(len(policies), 'policy', 'policies')} judged"

    def _answer(self, control: RunControl) -> None:
        while True:
            with self._lock:
                policy, self._wanted = self._wanted, None
                number, opened = self._requests, self._opened
            if policy is None or opened is None or opened.replayed is None or control.stop_requested():
                break
            table = opened.replayed.judge([policy])
            scales = {_name(policy): opened.replayed.scales(policy)}
            trace = loss_scale_drawing(opened.run.steps, opened.run.events, policies=scales, theme=self.theme)
            control.send(functools.partial(self._show_answer, opened, policy, table, trace))
            with self._lock:
                superseded = self._wanted is not None
            if not superseded:  # the range takes a dozen times as long
                ranged = opened.replayed.ranges([policy])
                limits = {name: ranged.table[name] for name in ("overflows_low", "overflows_high")}
                control.send(functools.partial(self._show_answer, opened, policy, table.assign(**limits), None))
                control.send(functools.partial(self._show_assumption, opened, ranged.assumption))
            control.send(functools.partial(self._note_answered, number))

    def _answer_next(self) -> None:
        with self._lock:
            if self._wanted is not None and not self._answers.alive and not self.closed:
                self._answers.start(self._answer)

    def _answer_ended(self, outcome: Outcome) -> None:
        error = outcome.error or outcome.display_error
        if error is not None:
            self.report_error(error, outcome.traceback)
            self._note_answered(self._requests)
        self._answer_next()  # asked while the last answer was being told

    def _note_answered(self, number: int) -> None:
        with self._answered:
            self._answers_given = max(self._answers_given, number)
            self._answered.notify_all()

    # -- what it shows -------------------------------------------------------------------------------------------------

    def _listed(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            self.report_error(outcome.error, outcome.traceback)
            return
        options = outcome.result
        first = f"{counted(len(options), 'run')}: choose one" if options else "no runs in this folder"
        with self.showing():
            self.runs.options = [(first, ""), *options]
        self._select_run()
        self._enable()

    def _select_run(self) -> None:
        """Have the list show the run on show, if it is listed."""
        run = self.run
        listed = run is not None and any(path == run.path for _, path in self.runs.options)
        with self.showing():
            self.runs.value = run.path if run is not None and listed else ""

    def _show_run(self, run: Run, trace: Drawing) -> None:
        with self._lock:
            self._opened = _Opened(run, None)
            self._policies, self._judged = [], None
        _show(self.trace, trace)
        self._select_run()
        self._facts.value = _facts_html(run)
        self._prediction.value = self._assumption.value = self._use_note.value = ""
        self.note("")

    def _show_groups(self, figure: Any) -> None:
        if self.groups is None and figure is not None:
            self.groups = LiveFigure(
                _waiting("Does every group find its own loss scale?", "Nothing is known yet.", self.theme),
                theme=self.theme,
            )
            self.cleaned_up_by(self.groups.close)
            self.cleaned_up_by(self.groups.widget.close)  # it stands in the panel only while there are groups
        if self.groups is None:
            return
        shown = [child for child in self.plots.children if child is not self.groups.widget]
        # A figure that is drawn while it is hidden does not know its width.
        self.plots.children = (*shown, *([] if figure is None else [self.groups.widget]))
        if figure is not None:
            _show(self.groups, figure)

    def _show_opened(self, opened: _Opened, exponents: Any, groups: Any) -> None:
        with self._lock:
            self._opened = opened
        _show(self.exponents, exponents)
        self._show_groups(groups)
        if opened.problem:
            self._prediction.value = note_html(opened.problem)
            _show(self.scatter, _waiting(_SCATTER_QUESTION, opened.problem, self.theme))
            with self.showing():
                self.choice.options = []
        elif opened.replayed is not None:
            recorded = opened.replayed.recorded
            if recorded is not None and recorded.kind == "dynamic":
                for path, value in zip(_PATHS, (recorded.init, recorded.factor, recorded.window), strict=True):
                    self._policy_controls[path].set(value)
        self._enable()

    def _show_lists(self, windows: list[int]) -> None:
        with self.showing():
            self.lists["init"].value, self.lists["factor"].value = _INITS, _FACTORS
            self.lists["window"].value = ", ".join(str(window) for window in windows)

    def _show_judged(self, opened: _Opened, policies: list[ScalePolicy], table: pd.DataFrame) -> None:
        if self._opened is not opened:
            return
        with self._lock:
            self._policies, self._judged = policies, table
        names = policy_names(table)
        wasted, lost = table["wasted_share"].tolist(), table["underflow_share"].fillna(0.0).tolist()
        order = sorted(range(len(table)), key=lambda i: (wasted[i], lost[i]))
        with self.showing():
            self.choice.options = [(_row_text(names[i], table.iloc[i]), i) for i in order]
            self.choice.value = None
        self._show_scatter(opened, None)

    def _show_scatter(self, opened: _Opened, chosen: tuple[ScalePolicy, pd.DataFrame] | None) -> None:
        import pandas as pd

        table, policies = self._judged, self._policies
        if table is None:
            return
        name = None
        if chosen is not None:
            policy, judged = chosen
            name = policy_names(judged)[0]
            if policy not in policies:
                table = pd.concat([table, judged], ignore_index=True)
            with self.showing():
                self.choice.value = policies.index(policy) if policy in policies else None
        figure = replay_policies_figure(table, name, theme=self.theme)
        if not table["underflow_share"].notna().any():
            figure = _waiting(_SCATTER_QUESTION, _NO_EXPONENTS, self.theme)
        _show(self.scatter, figure)

    def _show_answer(self, opened: _Opened, policy: ScalePolicy, table: pd.DataFrame, trace: Drawing | None) -> None:
        if self._opened is not opened:
            return  # another run was opened meanwhile
        if trace is not None:
            _show(self.trace, trace)
        self._prediction.value = note_html(_prediction_sentence(opened, policy, table.iloc[0]))
        self._show_scatter(opened, (policy, table))

    def _show_assumption(self, opened: _Opened, assumption: str) -> None:
        if self._opened is opened:
            self._assumption.value = f"<p>{faint(f'{assumption} {_error_sentence(opened)}')}</p>"

    def _ended(self, outcome: Outcome) -> None:
        self.note("")
        error = outcome.error or outcome.display_error
        if error is not None:
            self.report_error(error, outcome.traceback)
            self.machine.to(PanelState.FAILED)
            return
        self.log(f"{outcome.result} ({outcome.seconds:.2g} s)")
        self.machine.to(PanelState.DONE)
        self._ask()

    def _enable(self) -> None:
        busy = self.state.busy
        replayable = self._opened is not None and self._opened.replayed is not None
        for entry in (self.folder, self.look_button, self.runs):
            entry.disabled = busy
        self.stop_button.disabled = self.state is not PanelState.RUNNING
        self.stop_button.present(busy)
        for entry in (*self.lists.values(), self.judge_button, self.choice):
            entry.disabled = busy or not replayable
        self.use_button.disabled = not replayable
        problem = self._opened.problem if self._opened is not None else ""
        reason = "" if replayable else (problem and "there is nothing to replay") or "no run is open"
        for control in self._policy_controls.values():
            control.disable(reason)


class _RefusedListError(ValueError):
    """A list that the user has to mend; its sentence needs no traceback."""


_LIST_TITLES: Final = {"init": "Initial scales", "factor": "Factors", "window": "Windows (steps)"}
_SCATTER_QUESTION: Final = "Which loss-scale policy would have wasted least?"
_EMPTY: Final = "This run has recorded no step yet, so there is nothing to see or to replay."
_UNWATCHED: Final = (
    "It ran without a loss scale, so nobody watched for overflow: a replay rests on the sizes of its gradients alone."
)
_NO_EXPONENTS: Final = (
    "This run recorded no gradient exponents, so underflow is unknown;<br>the list on the left has the wasted steps."
)


def _run_all(messages: list[Callable[[], None]]) -> None:
    for message in messages:
        message()


def _waiting(question: str, sentence: str, theme: Theme) -> Any:
    return empty_figure(question, sentence, theme=theme, height=_HEIGHT)


def _show(live: LiveFigure | FigurePlace, figure: go.Figure | Drawing) -> None:
    """Show a figure in the height of its place: plotly gives up following the width when a height changes."""
    if isinstance(figure, Drawing):
        figure.set(height=_HEIGHT)
    else:
        figure.update_layout(height=_HEIGHT)
    live.update(figure)
    live.flush()


def _listed_runs(folder: Path) -> list[tuple[str, Path]]:
    """Return labels and directories of the newest runs below a folder."""
    from workbench.runs import list_runs

    table = list_runs(folder).head(_LONGEST_LIST)
    return [
        (
            " · ".join(
                part
                for part in (
                    Path(entry["run"]).name[:15],
                    entry["task"],
                    entry["level"],
                    counted(entry["steps"], "step"),
                    counted(entry["overflows"], "overflow"),
                    "" if entry["finished"] else "not finished",
                )
                if part
            ),
            folder / entry["run"],
        )
        for entry in table.to_dict("records")
    ]


def _facts_html(run: Run) -> str:
    told = [part for part in (str(run.environment.get("task") or ""), str(run.environment.get("level") or "")) if part]
    told += [counted(len(run.steps), "step"), counted(len(run.overflow_steps), "overflow")]
    lines = [f"<div><b>{words(run.name)}</b></div>", f"<div>{words(', '.join(told))}</div>"]
    if not len(run.steps):
        lines.append(f"<div>{words(_EMPTY)}</div>")
    elif not run.finished:
        lines.append(
            f"<div>{words('Not finished: it still runs, or was killed; what had reached the disk is shown.')}</div>"
        )
    if len(run.steps) and not _watched(run):
        lines.append(f"<div>{words(_UNWATCHED)}</div>")
    if len(run.steps) and run.steps["group_scales"].map(len).any():
        lines.append(f"<div>{words('It ran with group scales; a replay asks what one scale for all would do.')}</div>")
    return "".join(lines)


def _watched(run: Run) -> bool:
    from workbench.runs.replayed_run import recorded_policy

    policy = recorded_policy(run)
    return policy is None or policy.kind == "dynamic" or policy.init != 1.0 or bool(len(run.overflow_steps))


def _why_not(run: Run, error: ValueError) -> str:
    if len(run.steps) and not run.steps["grad_amax"].notna().any():
        return "This run recorded no gradient sizes, so there is nothing to replay; record it again with `out` set."
    return str(error)


def _error_sentence(opened: _Opened) -> str:
    """Say how far the thresholds may lie off, and what they were calibrated on."""
    if opened.replayed is None:
        return ""
    thresholds = opened.replayed.thresholds
    off = f"all thresholds may lie off by a factor of {2.0**thresholds.error_log2:.3g} either way"
    if not thresholds.calibrated:
        return f"Nothing overflowed in this run, so nothing could be calibrated; {off}."
    told = counted(len(opened.run.overflow_steps), "overflow")
    return f"Calibrated on {told}, which tells {percent(thresholds.misclassified)} of the updates wrong; {off}."


def _prediction_sentence(opened: _Opened, policy: ScalePolicy, judged: Any) -> str:
    n, found = opened.replayed.n_windows if opened.replayed is not None else 0, int(judged["overflows"])
    text = f"{_name(policy)}: {counted(found, 'overflow')} in {counted(n, 'update')}"
    if "overflows_low" in judged:
        text += f" (likely {int(judged['overflows_low'])} to {int(judged['overflows_high'])})"
    text += f", {percent(float(judged['wasted_share']))} of them wasted"
    lost = float(judged["underflow_share"])
    if math.isfinite(lost):
        text += f"; {percent(lost)} of the gradient lost to underflow"
    return f"{text}. The recorded run had {counted(len(opened.run.overflow_steps), 'overflow')}."


def _name(policy: ScalePolicy) -> str:
    import pandas as pd

    rows = {"kind": [policy.kind], "init": [policy.init], "factor": [policy.factor], "window": [policy.window]}
    return superscripted(policy_names(pd.DataFrame(rows))[0])


def _row_text(name: str, judged: Any) -> str:
    told = superscripted(name).removeprefix("init ")
    return f"{percent(float(judged['wasted_share']))}: {told}{' (recorded)' if judged['recorded'] else ''}"
