"""Loss scale: what it did in a recorded run, and what other policies would have done.

Opening a run and judging many policies is work with a state. A moved slider is answered meanwhile: only the newest
request counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench.config import BoostConfig, ConfigError, describe_parameters
from workbench.figures import policy_names
from workbench.figures.drawing import Drawing
from workbench.figures.gradient_exponents import gradient_exponents_drawing
from workbench.figures.group_scales import group_scales_drawing
from workbench.figures.labels import counted
from workbench.figures.loss_scale import LOSS_SCALE_COLUMNS, loss_scale_drawing
from workbench.figures.replay_policies import replay_policies_drawing
from workbench.panels import kit, replay_text
from workbench.panels.controls import ParameterControl, parsed
from workbench.panels.figure_place import FigurePlace
from workbench.panels.kit import column, parts, row, section, text_of
from workbench.panels.panel import PanelState, Theme, WorkPanel
from workbench.panels.run_chooser import RunChooser
from workbench.panels.shared_config import SharedConfig
from workbench.panels.style import faint
from workbench.panels.worker import Outcome, RunControl

if TYPE_CHECKING:
    import pandas as pd

    from workbench.loss_scale import ScalePolicy
    from workbench.runs import Run
    from workbench.runs.replayed_run import ReplayedRun

_PATHS: Final = ("loss_scale.init", "loss_scale.factor", "loss_scale.window")
_WITH_RANGES: Final = 20_000  # windows up to which every policy gets a range; in longer runs the chosen one only
_HISTOGRAMS: Final = 2000
_INITS: Final = "2^8, 2^12, 2^16, 2^20, 2^24"
_FACTORS: Final = "2, 4"
_LIST_TITLES: Final = {"init": "Initial scales", "factor": "Factors", "window": "Windows (steps)"}
_CHOOSE: Final = "Choose a recorded run."
_TRACE_QUESTION: Final = "Which loss scale did training settle on?"
_SCATTER_QUESTION: Final = "Which loss-scale policy would have wasted least?"
_NO_EXPONENTS: Final = (
    "This run recorded no gradient exponents, so underflow is unknown;<br>the list on the left has the wasted steps."
)


class LossScalePanel(WorkPanel):
    """Look at the loss scale of a recorded run and try other policies on it.

    Args:
        run: A run, its directory, or a folder of runs to choose from; None is the folder ``runs``.
        shared: The configuration that "Use this policy" writes into; None makes a new one.
        theme: See ``Panel``.

    Attributes:
        run: The run shown, with at most 2000 of its histograms; None when there is none yet.
        policies: The judged policies, in the order of their rows.
    """

    failure_note = ""

    def __init__(
        self, run: Run | str | Path | None = None, shared: SharedConfig | None = None, *, theme: Theme = "auto"
    ) -> None:
        super().__init__("Loss scale", shared, theme=theme)
        self.progress_text = self._header_note  # beside the title
        self.run: Run | None = None
        self._replayed: ReplayedRun | None = None  # the same run, if it can be replayed
        self._problem = "no run is open"  # why it cannot
        self.policies: list[ScalePolicy] = []
        self._judged: pd.DataFrame | None = None
        self._answers = self.new_reader()
        self.trace = FigurePlace(self, _TRACE_QUESTION, _CHOOSE)
        self.scatter = FigurePlace(self, _SCATTER_QUESTION, _CHOOSE, on_pick=self.guarded(self.choose))
        self.exponents = FigurePlace(self, "Do the gradients fit into float16 at this loss scale?", _CHOOSE)
        self.groups = FigurePlace(self, "Does every group find its own loss scale?", _CHOOSE)
        for later in (self.scatter, self.exponents, self.groups):  # until there is a run, with group scales
            later.widget.present(False)
        self._assumption = text_of("")
        self._make_controls()
        above, below = (self.trace, self.scatter), (self.exponents, self.groups)
        self.plots.children = (*(one.widget for one in above), self._assumption, *(one.widget for one in below))
        self.lasting = (self._facts, self._prediction)
        self.state_changed(self.state)
        self._open_first(run)

    @property
    def policy(self) -> ScalePolicy | None:
        """The policy on the sliders; None while one of them has an invalid value, with the reason shown next to it."""
        from workbench.loss_scale import ScalePolicy

        controls = self._policy_controls
        least = {"loss_scale.minimum": 2.0**-60}
        checked = [
            kit.read_from(one, partial(BoostConfig().with_values, {path: one.value, **least}))
            for path, one in controls.items()
        ]
        if None in checked:
            return None
        init, factor, window = (control.value for control in controls.values())
        try:
            return ScalePolicy(init=init, factor=factor, window=window, minimum=min(_minimum(self._replayed), init))
        except ValueError as error:  # a bound the configuration does not have
            controls[_PATHS[0]].refuse(str(error))
            return None

    def control(self, path: str) -> ParameterControl:
        """Return the control of ``loss_scale.init``, ``loss_scale.factor`` or ``loss_scale.window``."""
        return self._policy_controls[path]

    def open(self, source: Run | str | Path) -> None:
        """Show another run, or that in a directory; nothing happens while work is under way."""
        if self.machine.try_to(PanelState.RUNNING):
            name = source if isinstance(source, (str, Path)) else source.name
            self.begin(partial(self._open, source), saying=f"reading {name}")

    def look_again(self) -> None:
        """List the folder of runs once more: a training may have recorded one meanwhile."""
        folder = Path(self.folder.value).expanduser()
        if folder.is_dir() and not self.state.busy:
            self.chooser.list_folder(folder)

    def choose(self, number: int) -> None:
        """Put the judged policy of a row on the sliders."""
        policy = self.policies[number]
        if policy.kind == "fixed":
            self._prediction.say("A fixed scale has neither factor nor window, so the sliders stay.")
            return
        self._set_sliders(policy)
        self._ask()

    def wait_for_answer(self, timeout: float | None = None) -> bool:
        """Wait until the sliders' request has been answered, for ``timeout`` seconds at most; return whether it was."""
        return self._answers.wait(timeout)

    def state_changed(self, state: PanelState) -> None:
        """Enable what can be used in a state."""
        super().state_changed(state)
        replayable = self._replayed is not None
        self.stop_button.present(state.busy)
        for entry in (*self.lists.values(), self.judge_button, self.choice):
            entry.disabled = state.busy or not replayable
        self.use_button.disabled = not replayable
        for path, control in self._policy_controls.items():
            control.disable("" if replayable or path != _PATHS[0] else self._problem)  # shown once
            control.lock(not replayable)

    def _make_controls(self) -> None:
        self.chooser = RunChooser(self, self.open, lambda: self.run)
        self.folder, self.look_button, self.runs = self.chooser.folder, self.chooser.look_button, self.chooser.runs
        self.locked = [self.folder, self.look_button, self.runs]
        infos, leaves = describe_parameters(), self.shared.config.leaves()
        self._policy_controls = {path: ParameterControl(infos[path], leaves[path]) for path in _PATHS}
        for control in self._policy_controls.values():
            control.observe(self.guarded(lambda _: self._ask()))
        self._facts, self._prediction, self._use_note = text_of(""), text_of(""), text_of("")
        use_help = "Write initial scale, factor and window into the configuration"
        self.use_button = self.button("Use this policy", use_help, self._use, style="primary")
        first = {"init": _INITS, "factor": _FACTORS, "window": ""}
        self.lists = {name: kit.text_box(first[name], f"{title}, with commas") for name, title in _LIST_TITLES.items()}
        judge_help = "Replay the run under every combination, at most 50"
        self.judge_button = self.button("Compare", judge_help, self._judge_lists)
        self.choice = kit.Select(
            options=[], rows=8, css="wb-wide wb-wrapped-lines", tooltip="Replayed policies, least waste first"
        )
        self.on_change(self.choice, lambda number: None if number is None else self.choose(number))
        self.controls.children = (
            *section("Recorded run", *self.chooser.widgets, row(self.stop_button), self._facts),
            *section("Another policy", *(control.widget for control in self._policy_controls.values())),
            self._prediction,
            row(self.use_button),
            self._use_note,
            *section("Compare policies", *(column(_LIST_TITLES[name], self.lists[name]) for name in first)),
            *parts(row(self.judge_button), faint("Replayed policies, by their wasted steps"), self.choice),
        )

    def _open_first(self, run: Run | str | Path | None) -> None:
        if run is not None and not isinstance(run, (str, Path)):
            self.open(run)
            return
        path = Path("runs" if run is None else run)
        if path.exists():
            self.chooser.look(path)
        else:
            self.chooser.expect(path)

    def _judge_lists(self) -> None:
        from workbench.runs.replayed_run import policy_grid

        replayed = self._replayed
        if replayed is None:
            return
        values = {name: parsed(entry.value, "list", optional=False) for name, entry in self.lists.items()}
        try:
            policies = policy_grid(values["init"], values["factor"], values["window"], minimum=_minimum(replayed))
        except (TypeError, ValueError) as error:  # the user's lists, not a fault
            self.report_error(ConfigError(str(error)))
            return
        if self.machine.try_to(PanelState.RUNNING):
            self.begin(partial(self._judge, replayed, policies), saying="")

    def _use(self) -> None:
        policy = self.policy
        if policy is None:
            return
        values = dict(zip(_PATHS, (policy.init, policy.factor, policy.window), strict=True))
        if kit.read_from(self._use_note, lambda: self.shared.config.with_values(values)) is None:
            return
        self.shared.change(values)
        used = f"The configuration has it now: {replay_text.policy_name(policy)}."
        plan, problem = self.shared.plan_or_problem()
        reason = problem if plan is None else plan.idle_reason("loss_scale.init")
        self._use_note.say(f"{used} It is not in effect yet: {reason}." if reason else used)
        self.log(used)

    def _ask(self) -> None:
        """Have the sliders' request answered; an earlier one that has not begun is dropped."""
        replayed = self._replayed
        if replayed is not None and (policy := self.policy) is not None:
            self._answers.ask(partial(self._answer, replayed, policy))

    def _set_sliders(self, policy: ScalePolicy) -> None:
        for path, value in zip(_PATHS, (policy.init, policy.factor, policy.window), strict=True):
            self._policy_controls[path].set(value)

    def _open(self, source: Run | str | Path, control: RunControl) -> str:
        from workbench.runs import read_run
        from workbench.runs.replay import REPLAY_COLUMNS
        from workbench.runs.replayed_run import ReplayedRun, policy_grid, usual_windows

        # The trace needs no histograms, which take most of the time; the reader looks at it while they are read.
        shown = (*LOSS_SCALE_COLUMNS, "group_scales")
        run = read_run(source, columns=shown) if isinstance(source, (str, Path)) else source
        control.send(self._show_run, run, self._trace_of(run))
        if control.stop_requested():
            return "stopped; the trace is shown, nothing was replayed"
        if isinstance(source, (str, Path)):  # as many as figures and replay look at; all would take seconds
            run = read_run(source, most_histograms=_HISTOGRAMS, columns=(*shown, *REPLAY_COLUMNS))
        replayed, problem = None, "" if len(run.steps) else replay_text.EMPTY
        if not problem:
            try:
                replayed = ReplayedRun(run)
            except ValueError as error:
                problem = replay_text.why_not(run, error)
        exponents = gradient_exponents_drawing(run.steps, theme=self.theme)
        has_groups = replay_text.has_group_scales(run)
        groups = group_scales_drawing(run.steps, run.events, theme=self.theme) if has_groups else None
        control.send(self._show_opened, run, replayed, problem, exponents, groups)
        read = f"read {counted(len(run.steps), 'step')} of {run.name}"
        if replayed is None:
            return read
        if control.stop_requested():
            return "stopped; the run is shown, no policies were compared"
        windows = usual_windows(replayed.n_windows)
        inits, factors = ([float(v) for v in parsed(text, "list", optional=False)] for text in (_INITS, _FACTORS))
        policies = policy_grid(inits, factors, windows, minimum=_minimum(replayed))
        control.send(self._show_lists, windows)
        return f"{read}; {self._judge(replayed, policies, control)}"

    def _trace_of(self, run: Run, policies: Mapping[str, Any] | None = None) -> Drawing | None:
        """Draw the loss scale of a run and of other policies; None for a run that had none."""
        if len(run.steps) and not replay_text.is_watched(run):
            return None
        return loss_scale_drawing(run.steps, run.events, policies=policies, theme=self.theme)

    def _judge(self, replayed: ReplayedRun, policies: list[ScalePolicy], control: RunControl) -> str:
        recorded = [replayed.recorded] if replayed.recorded is not None else []
        policies = list(dict.fromkeys([*recorded, *policies]))
        table = replayed.judge(policies)
        control.send(self._show_judged, replayed, policies, table)
        if replayed.n_windows <= _WITH_RANGES and not control.stop_requested():
            ranged = _with_ranges(table, replayed.ranges(policies).table)
            control.send(self._show_judged, replayed, policies, ranged)
        return f"{counted(len(policies), 'policy', 'policies')} replayed"

    def _answer(self, replayed: ReplayedRun, policy: ScalePolicy) -> None:
        table = replayed.judge([policy])
        self._show_prediction(replayed, policy, table)  # first: a page takes long to draw a figure
        trace = self._trace_of(replayed.run, {replay_text.policy_name(policy): replayed.scales(policy)})
        if self._replayed is replayed and trace is not None:
            self.trace.update(trace)
        if not self._answers.is_superseded():  # the range takes a dozen times as long
            ranged = replayed.ranges([policy])
            table = _with_ranges(table, ranged.table)
            self._show_prediction(replayed, policy, table)
            if self._replayed is replayed:
                said = f"{ranged.assumption} {replay_text.error_sentence(replayed)}"
                self._assumption.value = f"<p>{faint(said)}</p>"
                self._show_scatter((policy, table))

    def finished(self, outcome: Outcome) -> PanelState:
        """Show what was done, and have the sliders' request answered."""
        self.tell("")
        if outcome.display_error is not None:  # all there is to see comes in messages
            self.report_error(outcome.display_error)
            return PanelState.FAILED
        self.log(f"{outcome.result} ({outcome.seconds:.2g} s)")
        self._ask()
        return PanelState.STOPPED if outcome.result.startswith("stopped") else PanelState.DONE

    def _show_run(self, run: Run, trace: Drawing | None) -> None:
        self.run, self._replayed, self._problem = run, None, "no run is open"
        self.trace.widget.present(trace is not None)
        self.policies, self._judged = [], None
        if trace is not None:
            self.trace.update(trace)
        self.chooser.select()
        self._facts.value = replay_text.facts_html(run)
        self._prediction.value = self._assumption.value = self._use_note.value = ""
        self.tell("")

    def _show_opened(
        self, run: Run, replayed: ReplayedRun | None, problem: str, exponents: Drawing, groups: Drawing | None
    ) -> None:
        self.run, self._replayed, self._problem = run, replayed, "there is nothing to replay"
        for place in (self.scatter, self.exponents):
            place.widget.present(True)
        self.exponents.update(exponents, reset_axes=True)
        self.groups.widget.present(groups is not None)
        if groups is not None:
            self.groups.update(groups, reset_axes=True)
        if replayed is None:
            self._prediction.say(problem)
            self.scatter.update(Drawing.empty(_SCATTER_QUESTION, problem, theme=self.theme))
            with self.showing():
                self.choice.options = []
        elif replayed.recorded is not None and replayed.recorded.kind == "dynamic":
            self._set_sliders(replayed.recorded)
        self.state_changed(self.state)

    def _show_lists(self, windows: list[int]) -> None:
        with self.showing():
            self.lists["init"].value, self.lists["factor"].value = _INITS, _FACTORS
            self.lists["window"].value = ", ".join(str(window) for window in windows)

    def _show_judged(self, replayed: ReplayedRun, policies: list[ScalePolicy], table: pd.DataFrame) -> None:
        if self._replayed is not replayed:
            return
        self.policies, self._judged = policies, table
        names = policy_names(table)
        wasted, lost = table["wasted_share"].tolist(), table["underflow_share"].fillna(0.0).tolist()
        order = sorted(range(len(table)), key=lambda i: (wasted[i], lost[i]))
        with self.showing():
            self.choice.options = [(replay_text.policy_line(names[i], table.iloc[i]), i) for i in order]
            self.choice.value = None
        self._show_scatter(None)

    def _show_scatter(self, chosen: tuple[ScalePolicy, pd.DataFrame] | None) -> None:
        import pandas as pd

        table, policies = self._judged, self.policies
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
        if table["underflow_share"].notna().any():
            self.scatter.update(replay_policies_drawing(table, name, theme=self.theme))
        else:
            self.scatter.update(Drawing.empty(_SCATTER_QUESTION, _NO_EXPONENTS, theme=self.theme))

    def _show_prediction(self, replayed: ReplayedRun, policy: ScalePolicy, table: pd.DataFrame) -> None:
        if self._replayed is replayed:  # else another run was opened meanwhile
            self._prediction.say(replay_text.prediction_sentence(replayed, policy, table.iloc[0]))


def _minimum(replayed: ReplayedRun | None) -> float:
    """Return the floor of the scale under which other policies are judged."""
    recorded = replayed.recorded if replayed is not None else None
    return recorded.minimum if recorded is not None and recorded.kind == "dynamic" else 1.0


def _with_ranges(table: pd.DataFrame, ranged: pd.DataFrame) -> pd.DataFrame:
    return table.assign(**{name: ranged[name] for name in ("overflows_low", "overflows_high")})
