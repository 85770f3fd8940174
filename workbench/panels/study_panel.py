"""Tune: ask a question, watch the search answer it, pick a trial, take the files.

The controls write ``studies/<name>/study.toml``, and the same folder goes on under ``workbench tune``. The study runs
in a thread beside the kernel (with several workers: in processes), is stored trial by trial, and continues wherever it
was stopped. Opening a folder that holds a study shows its state; nothing is trained for that.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ipywidgets as widgets

from workbench.config import BoostConfig
from workbench.core.files import write_text_atomically
from workbench.core.records import objective_title
from workbench.core.text import format_duration
from workbench.figures import (
    MetricScale,
    RunCurve,
    attribution_figure,
    importance_figure,
    parallel_coordinates_figure,
    speed_accuracy_figure,
    study_history_figure,
)
from workbench.figures.labels import counted
from workbench.figures.live import LiveFigure
from workbench.figures.loss_curves import loss_curves_drawing
from workbench.panels import placed_widgets as placed
from workbench.panels.controls import control_for, number_text
from workbench.panels.figure_place import nothing_html
from workbench.panels.panel import (
    Panel,
    Theme,
    column,
    row,
    text_of,
)
from workbench.panels.shared_config import SharedConfig
from workbench.panels.state import PanelState
from workbench.panels.study_answer import answer_html, curve_of, trial_html
from workbench.panels.study_fields import COMMON_FIELDS, FIRST_FIELDS, JOBS, MINUTES, MORE_FIELDS
from workbench.panels.study_space import SearchSpace
from workbench.panels.study_text import (
    new_study_text,
    space_of,
    study_text,
    values_of,
)
from workbench.panels.style import (
    error_html,
    faint,
    note_html,
    words,
)
from workbench.panels.worker import Outcome, RunControl

if TYPE_CHECKING:
    from workbench.core.records import TrialRecord
    from workbench.study import StudyResult, TuneProgress
    from workbench.tasks import Task

__all__ = ["StudyOrder", "StudyPanel", "run_study"]

_VIEWS: Final = ("Overview", "Parameters", "Importance")
# What stands in a view while there is no trial: the question of its first figure.
_QUESTIONS: Final = {
    "Overview": "How much faster can this task be trained, and what does that cost?",
    "Parameters": "Which values do the good trials have in common?",
    "Importance": "Which parameters decided how a trial went?",
}
_NO_TRIAL: Final = "No trial has ended yet: Start searches, and a folder that holds a study is opened."
_NOTHING_HEIGHT: Final = 430  # pixels
_EXTENDED: Final = {
    "study.n_trials": "trials",
    "study.timeout_seconds": "timeout",
    "confirm.seeds_max": "confirm_seeds",
}
"""Values that may grow without making it another question: they are options of the command, too."""
_OVERLAID: Final = 4
_TARGETS: Final = ("o1", "o2")
_BASELINE_SECTIONS: Final = ("common.", "loss_scale.", "amp.", "optimizer.")


@dataclass(frozen=True, slots=True)
class StudyOrder:
    """What one click on Start asks for.

    Args:
        folder: Folder of the study.
        text: What ``study.toml`` shall say.
        task: The task, where only this program knows it; None loads the one that the file names.
        jobs: Processes that search at the same time.
        fresh: Whether to archive what is there and begin anew.
        options: Trials and timeout beyond those in the file of a study that has begun.
    """

    folder: Path
    text: str
    task: Task | None = None
    jobs: int = 1
    fresh: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of the study now."""

    result: StudyResult


@dataclass(frozen=True, slots=True)
class _Changed:
    """The study asks something else than the stored one."""


def run_study(order: StudyOrder, control: RunControl) -> StudyResult | None:
    """Write the study's file and run it; the work of the panel's thread.

    Args:
        order: What to do.
        control: Where to speak and to listen.

    Returns:
        The result; None when it was stopped on the way.

    Raises:
        StudyError: When the study is wrong; a study that is asked something else keeps its file.
    """
    from workbench import api
    from workbench import study as tuning

    tuning.parse_study(order.text, source="study.toml", default_name=order.folder.resolve().name)
    path = order.folder / "study.toml"
    before = path.read_text(encoding="utf-8") if path.exists() else None
    if before != order.text:
        order.folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, order.text)
    seen: list[Any] = []

    def tell(progress: TuneProgress) -> None:
        control.send(progress)
        if seen != [progress.phase, progress.trials]:
            seen[:] = [progress.phase, progress.trials]
            control.send(_Known(tuning.read_result(order.folder)))

    try:
        return api.tune(
            order.folder,
            fresh=order.fresh,
            jobs=order.jobs,
            on_progress=tell,
            stop=control.stop_requested,
            task=order.task,
            **dict(order.options),
        )
    except tuning.StudyStoppedError:
        control.send(_Known(tuning.read_result(order.folder)))
        return None
    except tuning.StudyChangedError:
        if before is not None and before != order.text:  # until the user says so the stored question stands
            write_text_atomically(path, before)
        control.send(_Changed())
        raise


class StudyPanel(Panel):
    """Search the best configuration of a task, or open a study that exists.

    Args:
        task_or_study_dir: A task, its name as on the command line, or the folder of a study.
        shared: Takes the configuration of a picked trial, and gives precision, loss scale and optimizer of O0 to a new
            study; None makes one of its own.
        studies: Folder in which a new study gets its own.
        trials: Trials of a new study.
        steps: Micro-batches of one trial of a new study.
        theme: See ``Panel``.

    Attributes:
        shared: The configuration that a picked trial is put into.
        study: What is known of the study; None while it has not begun.
        picked: Numbers of the trials whose curves are laid over O0's.
    """

    def __init__(
        self,
        task_or_study_dir: Task | str | Path,
        shared: SharedConfig | None = None,
        *,
        studies: str | Path = "studies",
        trials: int = 12,
        steps: int = 200,
        theme: Theme = "auto",
    ) -> None:
        super().__init__("Tune", theme=theme)
        self.shared = shared if shared is not None else SharedConfig()
        self.study: StudyResult | None = None
        self.picked: list[int] = []
        self._lock = threading.RLock()
        self._task: Task | None = None
        self._file: str | None = None  # text of the study's file; None while there is none
        self._unreadable: Exception | None = None
        self._ordered: StudyOrder | None = None
        self._asks_anew = False
        self._wanted: tuple[Callable[[], Any], Callable[[Any], None]] | None = None
        self.worker = self.new_worker(self._take, self._end)
        self.reader = self.new_worker(lambda _: None, self._read_ended)
        task, folder = self._understood(task_or_study_dir, Path(studies))
        self._make_controls(task, folder, trials, steps)
        self._make_plots(theme)
        self.state_changed(self.state)
        self.open(folder)

    # -- what it is made of --------------------------------------------------------------------------------------------

    def _understood(self, given: Task | str | Path, studies: Path) -> tuple[str, Path]:
        """Return the name of the task and the folder."""
        if isinstance(given, (str, Path)):
            path = Path(given)
            if isinstance(given, Path) or path.is_dir() or path.name == "study.toml":
                return "", path.parent if path.name == "study.toml" else path
            stem = path.stem if ":" in given else given
            return given, studies / stem
        self._task = given
        return given.name, studies / given.name

    def _make_controls(self, task: str, folder: Path, trials: int, steps: int) -> None:
        self.folder = placed.Text(
            value=str(folder),
            continuous_update=False,
            css="wb-wide",
            tooltip="Folder of the study; one that holds a study is opened",
        )
        self.on_change(self.folder, lambda text: self.open(Path(text).expanduser()))
        given = {"study.task": task, "study.n_trials": trials, "study.budget_steps": steps}
        fields = (*FIRST_FIELDS, *COMMON_FIELDS, *MORE_FIELDS)
        self.entries = {info.path: control_for(info, given.get(info.path)) for info in fields}
        self.jobs = control_for(JOBS)
        self.space = SearchSpace(self)
        self.space.set(_FIRST_SPACE)
        self._baseline = text_of("")
        self.start_button = _button("Start", "Search, confirm, export", "success")
        self.stop_button = _button("Stop", "End after the present step; everything finished is kept")
        self.fresh_button = _button("Start over", "Archive what is there and begin anew", "warning")
        self.fresh_button.present(False)
        self.start_button.on_click(self.guarded(lambda _: self.start()))
        self.stop_button.on_click(self.guarded(lambda _: self.stop()))
        self.fresh_button.on_click(self.guarded(lambda _: self.start_over()))
        self.bar = placed.FloatProgress(min=0.0, max=1.0, css="wb-bar")
        self._told = text_of(faint("not started"))
        self._asked, self._more = column(), column()  # filled when they are unfolded
        self._sections = placed.Accordion(
            children=(self._asked, column(self.space.widget, self._baseline), self._more),
            titles=("Study", "What is searched", "More"),
            selected_index=None,
            css="wb-wide",
        )
        self.on_change(self._sections, self._unfold, "selected_index")
        self.cleaned_up_by(self.folder.close)  # it stands in the panel only once its section was unfolded
        for control in (*self.entries.values(), self.jobs):
            self.cleaned_up_by(control.close)
        self.controls.children = (
            *(self.entries[info.path].widget for info in FIRST_FIELDS),
            row(self.start_button, self.stop_button, self.fresh_button),
            self.bar,
            self._told,
            self._sections,
        )

    def _make_plots(self, theme: Theme) -> None:
        self._draw: dict[str, Callable[[], Any]] = {
            "history": lambda: study_history_figure(
                self._trials(),
                objective=self._objective(),
                allowed_drops=self.study.allowed_drops if self.study else None,
                theme=theme,
            ),
            "speed": self._speed_figure,
            "parameters": lambda: parallel_coordinates_figure(
                self._trials(),
                importance=self.study.importance if self.study else {},
                objective=self._objective(),
                theme=theme,
            ),
            "importance": lambda: importance_figure(self.study.importance if self.study else {}, theme=theme),
            "curves": lambda: loss_curves_drawing(self._curves, x="relative_time", metric=self._metric(), theme=theme),
        }
        for target in _TARGETS:
            self._draw[f"gain {target}"] = functools.partial(self._gain_figure, target)
        self._curves: list[RunCurve] = []
        self.live: dict[str, LiveFigure] = {}  # made when they are first looked at
        self.cleaned_up_by(self._close_figures)
        self.view = placed.ToggleButtons(options=list(_VIEWS), style={"button_width": "auto"}, css="wb-auto")
        # What is not looked at is not drawn, and a figure drawn while it is hidden would not know its width.
        self._stage = placed.Stack(css="wb-stage")
        self._nothing = placed.Html(css="wb-wide")
        self.cleaned_up_by(self._nothing.close)  # it stands in the panel only until there are trials
        self._answer = text_of("")
        self.take_buttons = {
            target: _button(f"Take {target}", f"Put boost_config.{target}.json into the configuration of the panels")
            for target in _TARGETS
        }
        for target, button in self.take_buttons.items():
            button.present(False)
            button.on_click(self.guarded(functools.partial(self._take_export, target)))
        self._gains = placed.Stack(css="wb-stage")
        self._trial_text = text_of("")
        self._trial_stage = placed.Stack(css="wb-stage")
        self.on_change(self.view, lambda _: self._show_figures())
        self.plots.children = (
            self._answer,
            row(*self.take_buttons.values()),
            self._gains,
            self.view,
            self._stage,
            self._trial_text,
            self._trial_stage,
        )

    def _unfold(self, index: int | None) -> None:
        if index == 0 and not self._asked.children:
            fields = tuple(self.entries[info.path].widget for info in COMMON_FIELDS)
            self._asked.children = (text_of("Folder of the study"), self.folder, *fields)
        if index == 2 and not self._more.children:
            controls = (*(self.entries[info.path] for info in MORE_FIELDS), self.jobs)
            self._more.children = tuple(control.widget for control in controls)

    # -- what the user does --------------------------------------------------------------------------------------------

    def open(self, folder: str | Path) -> None:
        """Show the study in a folder; one without ``study.toml`` is where a new study will be.

        Args:
            folder: The folder.
        """
        if self.state.busy:
            return
        folder = Path(folder)
        with self.showing():
            self.folder.value = str(folder)
        self.clear_error()
        self._forget_change()
        self.study, self.picked, self._curves = None, [], []
        self._file = self._unreadable = None
        try:
            path = folder / "study.toml"
            if path.exists():
                self._file = path.read_text(encoding="utf-8")
                self._show_file(self._file)
        except (
            OSError,
            ValueError,
        ) as error:  # UnicodeDecodeError and what tomllib and ConfigError say are ValueErrors
            self._unreadable = error
            self._error.value = error_html(f"{folder / 'study.toml'}: {error}")
        self._show_baseline()
        self._show_study()
        if (folder / "study.db").exists():
            self._told.value = note_html("reading the study ...")
            self._read(functools.partial(_read_study, folder), self._opened)
        else:
            self._told.value = note_html("not started")

    def start(self) -> None:
        """Begin the study with what the controls say, or go on with it."""
        order = self._order()
        if order is not None:
            self._begin(order)

    def start_over(self) -> None:
        """Archive what the study has produced and begin anew with what the controls say."""
        order = self._order()
        if order is not None:
            text = self._wanted_text() if order.options else order.text
            self._begin(replace(order, fresh=True, text=text, options={}))

    def stop(self) -> None:
        """End the study after the present step; everything finished is kept."""
        if self.machine.try_to(PanelState.STOPPING):
            self._told.value = note_html("stopping ...")
            self.worker.stop()

    def pick(self, number: int) -> None:
        """Put a trial's configuration into the shared one, and lay its curves over O0's.

        Args:
            number: Number of the trial.
        """
        trial = next((one for one in self._trials() if one.number == int(number)), None)
        if trial is None or not trial.config:
            self.log(f"trial {number} has no configuration to show yet")
            return
        self.shared.set(BoostConfig.from_dict(trial.config), trial.level)
        with self._lock:
            others = [one for one in self.picked if one not in (0, trial.number)]
            self.picked = [*others[-(_OVERLAID - 2) :], trial.number] if trial.number else others
        self._trial_text.value = trial_html(trial, self._metric(), self.study.per_trial if self.study else "per step")
        self.log(f"trial {trial.number} is in the configuration now: {trial.summary or trial.level}")
        shown = [one for one in self._trials() if one.number in (0, *self.picked)]
        directory, objective = (self.study.directory, self.study.objective) if self.study else (Path(), "")
        self._read(lambda: [curve_of(one, directory, objective) for one in shown], self._show_curves)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is under way.

        Args:
            timeout: Longest wait, seconds; None waits for ever.

        Returns:
            Whether the work has ended.
        """
        ended = self.machine.wait_for(PanelState.IDLE, PanelState.DONE, PanelState.FAILED, timeout=timeout)
        return ended and self.worker.join(timeout) and self.reader.join(timeout)

    def state_changed(self, state: PanelState) -> None:
        """Enable what makes sense in a state.

        Args:
            state: The new state.
        """
        busy = state.busy
        for entry in (self.folder, self.start_button, self.fresh_button):
            entry.disabled = busy
        self.stop_button.disabled = state is not PanelState.RUNNING
        for control in (*self.entries.values(), self.jobs):
            control.lock(busy)
        fixed = self._task is not None and self._file is None
        self.entries["study.task"].disable("the panel was made for this task" if fixed else "")
        self.space.enable(on=not busy)

    def static_html(self) -> str:
        """Return the answer in words."""
        return f"{super().static_html()}{self._answer.value}"

    # -- from the controls to an order ---------------------------------------------------------------------------------

    def _order(self) -> StudyOrder | None:
        """Read the controls; None when the present file cannot be used, which is then told."""
        if self._unreadable is not None:
            self._error.value = error_html(
                f"{self.folder.value}/study.toml: {self._unreadable}; mend the file, or name another folder"
            )
            return None
        jobs = self.jobs.value
        if not (isinstance(jobs, int) and jobs >= 1):
            self.jobs.refuse(f"`jobs` must {JOBS.rule}, got {jobs!r}")
            self._sections.selected_index = 2  # where the sentence stands
            return None
        folder, text, options = Path(self.folder.value).expanduser(), self._wanted_text(), {}
        if self._file is not None and self._begun(folder):
            options = self._extensions(text)
            text = self._file if options else text
        task = self._task if self._task is not None and self.entries["study.task"].value == self._task.name else None
        return StudyOrder(folder=folder, text=text, task=task, jobs=jobs, options=options)

    def _wanted_text(self) -> str:
        values = {path: control.value for path, control in self.entries.items()}
        values[MINUTES.path] = self._seconds(values[MINUTES.path])
        if self._file is not None:
            return study_text(self._file, self._without_defaults(values), self.space.value)
        task = str(values.pop("study.task"))
        return new_study_text(task, self._new_baseline(), self._without_defaults(values), self.space.value)

    def _seconds(self, minutes: Any) -> Any:
        """Return minutes as the file says them; what the file says already stays to the last digit."""
        said = values_of(self._file or "").get(MINUTES.path)
        if said is not None and minutes == _minutes(said):
            return said
        return 60.0 * minutes if isinstance(minutes, (int, float)) else minutes

    def _without_defaults(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out what the file does not say and the user left at its default."""
        said = {} if self._file is None else values_of(self._file)
        always = {"study.task", "study.n_trials", "study.budget_steps", "study.objective", "sampler.name"}
        return {
            path: value
            for path, value in values.items()
            if path in said or path in always or value != self.entries[path].info.default
        }

    def _extensions(self, text: str) -> dict[str, Any]:
        """Return what a study that has begun is asked beyond its file, if that is all that is asked."""
        before, after = values_of(self._file or ""), values_of(text)
        changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
        if not changed or not changed <= set(_EXTENDED) or space_of(self._file or "") != space_of(text):
            return {}
        return {_EXTENDED[path]: after[path] for path in changed if path in after}

    def _begun(self, folder: Path) -> bool:
        return (folder / "study.db").exists()

    def _new_baseline(self) -> dict[str, Any]:
        """Return what O0 means in a new study: precision, loss scale and optimizer of the shared configuration."""
        default, config = BoostConfig().leaves(), self.shared.config.leaves()
        chosen = {
            path: list(value) if isinstance(value, tuple) else value
            for path, value in config.items()
            if path.startswith(_BASELINE_SECTIONS) and value != default[path] and value is not None
        }
        steps = self.entries["study.budget_steps"].value
        if isinstance(steps, int) and steps >= 1 and "grad_freeze.total_steps" not in self.space.rows:
            chosen["grad_freeze.total_steps"] = steps  # the schedule of a trial ends with the trial
        return chosen

    def _begin(self, order: StudyOrder) -> None:
        if not self.machine.try_to(PanelState.RUNNING):
            return
        self.clear_error()
        self._forget_change()
        self._ordered = order
        self._told.value = note_html("loading ...")
        self.bar.value, self.bar.bar_style = 0.0, ""
        if order.fresh:
            self.study, self.picked, self._curves = None, [], []
            self._show_study()

        def work(control: RunControl) -> Any:
            self.reader.join()  # Optuna's verbosity and the warnings filter belong to one thread at a time
            return run_study(order, control)

        self.worker.start(work)

    # -- what the work tells -------------------------------------------------------------------------------------------

    def _take(self, messages: Sequence[Any]) -> None:
        known = [one.result for one in messages if isinstance(one, _Known)]
        progress = [one for one in messages if not isinstance(one, (_Known, _Changed))]
        self._asks_anew = self._asks_anew or any(isinstance(one, _Changed) for one in messages)
        if known:
            self.study = known[-1]
            self._show_study()
        if progress and self.state is not PanelState.STOPPING:
            self._show_progress(progress[-1])

    def _end(self, outcome: Outcome) -> None:
        order, self._ordered = self._ordered, None
        if order is not None and (order.folder / "study.toml").exists():
            self._file = (order.folder / "study.toml").read_text(encoding="utf-8")
        if outcome.error is not None:
            self.report_error(outcome.error, outcome.traceback if outcome.error.__cause__ is not None else "")
            self._told.value = note_html("failed; mend it and start again")
            if self._asks_anew:
                self.fresh_button.present(True)
                self._told.value = note_html("the study asks something else now; start over, or set it back")
        elif outcome.result is None:
            self._told.value = note_html("stopped; everything finished is kept, Continue goes on")
            self.log(f"stopped after {counted(self._n_ended(), 'trial')}")
        else:
            self.study = outcome.result
            self.bar.value, self.bar.bar_style = 1.0, "success"
            took = format_duration(outcome.seconds)
            self._told.value = note_html(f"{counted(self._n_ended(), 'trial')} in {took}")
            for sentence in outcome.result.messages:
                self.log(sentence)
        if outcome.display_error is not None:
            self.log(f"the display failed once: {outcome.display_error!r}")
        self._show_study()
        self.machine.to(PanelState.FAILED if outcome.error is not None else PanelState.DONE)

    def _forget_change(self) -> None:
        self._asks_anew = False
        self.fresh_button.present(False)

    # -- what is read without training ---------------------------------------------------------------------------------

    def _read(self, what: Callable[[], Any], show: Callable[[Any], None]) -> None:
        """Read something in the background; of several wishes the last one is fulfilled."""
        with self._lock:
            self._wanted = what, show
            if not self.reader.alive:
                self._read_next()

    def _read_next(self) -> None:
        with self._lock:
            if self._wanted is None or self.closed:
                return
            (what, show), self._wanted = self._wanted, None
            self.reader.start(lambda _: (show, what()))  # together: the next wish may be under way when this is shown

    def _read_ended(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            self.report_error(outcome.error)
            self._told.value = note_html("the study cannot be read")
        else:
            show, found = outcome.result
            self.guarded(show)(found)
        with self._lock:
            if not self.reader.alive:
                self._read_next()

    def _opened(self, result: StudyResult) -> None:
        if self.state.busy or result.directory.resolve() != Path(self.folder.value).expanduser().resolve():
            return
        self.study = result
        ended = self._n_ended()
        self.bar.max = 1.0
        self.bar.value = 1.0 if result.is_over else min(ended / max(result.n_trials, 1), 1.0)
        rest = "its answer is shown" if result.is_over else "Continue goes on"
        early = ", and the search is over" if result.is_over and ended < result.n_trials else ""
        self._told.value = note_html(f"{ended} of {counted(result.n_trials, 'trial')}{early}; {rest}")
        self._show_study()

    def _show_curves(self, curves: list[RunCurve]) -> None:
        self._curves = curves
        shown = self._shown_now("curves").widget
        if shown not in self._trial_stage.children:
            self._trial_stage.children = (shown,)

    # -- what it shows -------------------------------------------------------------------------------------------------

    def _show_file(self, text: str) -> None:
        values, space = values_of(text), space_of(text)
        if MINUTES.path in values:
            values[MINUTES.path] = _minutes(values[MINUTES.path])
        self.space.set(space)
        for path, control in self.entries.items():
            control.set(values.get(path, control.info.default))

    def _show_baseline(self) -> None:
        if self._file is not None:
            self._baseline.value = faint("O0 is what [baseline] in study.toml says.")
            return
        told = ", ".join(f"`{path}` = {number_text(value)}" for path, value in self._new_baseline().items())
        self._baseline.value = faint(f"O0 of a new study: {told}." if told else "O0 of a new study: all defaults.")

    def _show_progress(self, progress: TuneProgress) -> None:
        self.bar.max, self.bar.value = max(progress.total, 1e-9), progress.done
        unit = "trial" if progress.phase == "search" else "run"
        parts = [progress.phase]
        if progress.phase in ("search", "confirm"):
            parts.append(f"{math.floor(progress.done)} of {counted(round(progress.total), unit)}")
        if math.isfinite(progress.eta_seconds) and progress.eta_seconds > 0:
            parts.append(f"about {format_duration(progress.eta_seconds)} left")
        leads = f"<div>{words(f'leading the search, {progress.best}')}</div>" if progress.best else ""
        note = f"<div>{words(progress.note)}</div>" if progress.note else ""
        self._told.value = note_html(" · ".join(parts)) + leads + note

    def _show_study(self) -> None:
        if self.closed:
            return
        study = self.study
        begun = study is not None and any(one.state != "waiting" for one in study.trials)
        self.start_button.description = "Continue" if begun else "Start"
        self._answer.value = "" if study is None else answer_html(study)
        for target, button in self.take_buttons.items():
            button.present(study is not None and target in study.exported)
        self._show_gains()
        if not self.picked:
            self._trial_text.value = (
                faint("Click a point: its configuration goes to the other panels.") if begun else ""
            )
            self._trial_stage.children = ()
        self._show_figures()

    def _show_gains(self) -> None:
        """Show where the gain of each export comes from, once where two take the same."""
        parts = {} if self.study is None else self.study.attribution
        shown = [target for target in _TARGETS if parts.get(target)]
        if len(shown) == 2 and parts["o1"] == parts["o2"]:
            shown = ["o1"]
        wanted = tuple(self._shown_now(f"gain {target}").widget for target in shown)
        if self._gains.children != wanted:
            self._gains.children = wanted

    def _show_figures(self) -> None:
        if not self._trials():
            self._nothing.value = nothing_html(_QUESTIONS[self.view.value], _NO_TRIAL, height=_NOTHING_HEIGHT)
            self._stage.children = (self._nothing,)
            return
        is_alone = self.study is not None and len(self._trials()) == 1  # O0: one figure says so
        overview = ("speed",) if is_alone else ("speed", "history")
        names = {"Overview": overview, "Parameters": ("parameters",), "Importance": ("importance",)}
        shown = names[self.view.value]
        wanted = tuple(self._shown_now(name).widget for name in shown)
        if self._stage.children != wanted:
            self._stage.children = wanted

    def _shown_now(self, name: str) -> LiveFigure:
        """Return a figure with what is known now."""
        figure = self._draw[name]()
        with self._lock:
            if name in self.live:
                self.live[name].update(figure)
            else:
                pick = self.guarded(self.pick) if name in _PICKABLE else None
                self.live[name] = LiveFigure(figure, theme=self.theme, interval=0.0, on_pick=pick)
            if self.closed:  # while the figure was drawn, and the others have been closed
                self.live[name].close()
            return self.live[name]

    def _close_figures(self) -> None:
        with self._lock:
            for live in self.live.values():
                live.close()

    def _take_export(self, target: str, _: Any) -> None:
        if self.study is None or target not in self.study.exported:
            return
        config = BoostConfig.from_json(self.study.exported[target]).to_dict()
        config.pop("provenance", None)
        self.shared.set(BoostConfig.from_dict(config), target.upper())
        self.log(f"boost_config.{target}.json is in the configuration now")

    def _gain_figure(self, target: str) -> Any:
        study = self.study
        if study is None:
            return attribution_figure((), theme=self.theme)
        taken = study.choices[target].candidate if target in study.choices else None
        _, speed = study.fair_baselines.get(target, (None, math.nan))
        return attribution_figure(study.attribution.get(target, ()), taken, speed, theme=self.theme)

    def _speed_figure(self) -> Any:
        study = self.study
        return speed_accuracy_figure(
            self._trials(),
            study.candidates if study else (),
            metric=self._metric(),
            allowed_drops=study.allowed_drops if study else None,
            choices=list(study.choices.values()) if study else (),
            per=study.per if study else "",
            tuned_plain=study.fair_baselines if study else None,
            theme=self.theme,
            height=460,
        )

    def _trials(self) -> list[TrialRecord]:
        return self.study.trials if self.study is not None else []

    def _n_ended(self) -> int:
        return 0 if self.study is None else len(self.study.ended)

    def _metric(self) -> MetricScale:
        return MetricScale("metric") if self.study is None else MetricScale.of(self.study)

    def _objective(self) -> str:
        return objective_title(self.study.objective if self.study is not None else "time_to_target")


def _minutes(seconds: Any) -> Any:
    return round(seconds / 60.0, 2) if isinstance(seconds, (int, float)) else seconds


def _read_study(folder: Path) -> StudyResult:
    from workbench import study as tuning

    return tuning.read_result(folder.absolute())  # a terminal is seldom in the kernel's folder


_PICKABLE: Final = frozenset({"history", "speed", "parameters"})


_FIRST_SPACE: Final[Mapping[str, Any]] = {
    "level": ["O1", "O2"],
    "boost.less_bn": True,
    "boost.grad_freeze": True,
    "grad_freeze.freeze_type": True,
    "grad_freeze.freeze_p": {"low": 0.3, "high": 0.9},
}


def _button(text: str, tooltip: str, style: str = "") -> widgets.Button:
    return placed.Button(description=text, tooltip=tooltip, button_style=style, css="wb-auto")
