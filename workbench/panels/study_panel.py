"""Tune: ask a question, watch the search answer it, pick a trial, take the files.

The controls write ``studies/<name>/study.toml``, and the same folder goes on under ``workbench tune``. The study runs
in a thread beside the kernel (with several workers: in processes), is stored trial by trial, and continues wherever it
was stopped. Opening a folder that holds a study shows its state; nothing is trained for that.
"""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from workbench.config import BoostConfig, ConfigError
from workbench.core.files import write_text_atomically
from workbench.core.records import StudyResult, TrialRecord
from workbench.core.text import format_duration
from workbench.figures.labels import counted
from workbench.panels.config_history import Taking
from workbench.panels.controls import is_usable_count
from workbench.panels.kit import row, text_of
from workbench.panels.panel import PanelState, Theme, WorkPanel, error_sentence
from workbench.panels.run_controls import look_for_task
from workbench.panels.shared_config import SharedConfig
from workbench.panels.study_answer import ANSWERS, TARGETS, answer_html, curve_of
from workbench.panels.study_figures import StudyFigures
from workbench.panels.study_form import StudyForm
from workbench.panels.style import faint, note_html, words
from workbench.panels.trial_table import TrialTable
from workbench.panels.worker import Outcome, RunControl

if TYPE_CHECKING:
    from workbench.study import TuneProgress
    from workbench.tasks import Task

Objective = Literal["time_to_quality", "time_to_target", "speed", "pareto"]

_OVERLAID: Final = 4
_QUESTION_CHANGED: Final = "the settings differ from the stored study; start over, or restore them"


class StudyPanel(WorkPanel):
    """Search the best configuration of a task, or open a study that exists.

    Args:
        task_or_study_dir: A task, its name as on the command line, or the folder of a study.
        shared: Takes the configuration of a picked trial, and gives precision, loss scale and optimizer of O0 to a new
            study; None makes a new one.
        studies: Folder in which a new study gets its own.
        trials: Trials of a new study of boost methods.
        steps: How long the task is trained today, in batches; if this is left alone, what a Task says of itself
            counts.
        objective: What a new study minimises. ``"time_to_quality"`` searches whole set-ups, as ``workbench tune TASK``
            does; the others search boost methods.
        theme: See ``Panel``.

    Attributes:
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
        objective: Objective = "time_to_quality",
        theme: Theme = "auto",
    ) -> None:
        super().__init__(
            "Tune", shared, theme=theme, stop_help="End after the current step; everything finished is kept"
        )
        self.study: StudyResult | None = None
        self.picked: list[int] = []
        self._unreadable: Exception | None = None
        self._progress: TuneProgress | None = None  # not shown yet
        self._reader = self.new_reader(self._cannot_read)
        self._task: Task | None = None if isinstance(task_or_study_dir, (str, Path)) else task_or_study_dir
        task, folder = _task_and_folder(task_or_study_dir, Path(studies))
        given = {
            "study.task": task,
            "study.n_trials": trials,
            "study.budget_steps": steps,
            "study.objective": objective,
        }
        self.form = StudyForm(self, self.shared, folder, given)
        self.folder, self.entries, self.jobs = self.form.folder, self.form.entries, self.form.jobs
        self.space = self.form.space
        task_entry = self.entries["study.task"]
        self._task_check = self.new_reader(lambda error: task_entry.refuse(error_sentence(error)))
        task_entry.observe(lambda entry: self._task_check.ask(lambda: look_for_task(str(entry.value), self.form.place)))
        self.on_change(self.folder, lambda text: self.open(Path(text).expanduser()))
        self.start_button = self.button("Start", "Search, confirm, export", self.start, style="success")
        fresh_help = "Archive what is there and begin again"
        self.fresh_button = self.button("Start over", fresh_help, lambda: self.start(fresh=True), style="warning")
        self.fresh_button.present(False)
        self.locked = [self.form, self.start_button, self.fresh_button]
        self.controls.children = (
            *self.form.first,
            row(self.start_button, self.stop_button, self.fresh_button),
            self.bar,
            self.progress_text,
            self.form.sections,
        )
        self._make_plots()
        self.state_changed(self.state)
        self.open(folder)

    def _make_plots(self) -> None:
        self._answer = text_of("")
        self._pick_help = text_of(faint("Click a point: its configuration goes to the other panels."))
        self._taking = Taking(self, self.shared)
        self.take_buttons = {
            target: self.button(
                f"Take {target}",
                f"Put boost_config.{target}.json into the configuration of the panels",
                functools.partial(self._take_export, target),
            )
            for target in TARGETS
        }
        self._take_row = row(*self.take_buttons.values(), faint(ANSWERS))
        self.lasting = (self._answer,)
        self.figures = StudyFigures(self, self.pick)
        self.view, self.live = self.figures.view, self.figures.live
        self.table = TrialTable(self, self.pick, self._keep_note)
        self.plots.children = (
            self._answer,
            self._take_row,
            self._taking.widget,
            self.figures.gains,
            self.view,
            self.figures.stage,
            self._pick_help,
            self.figures.curves_stage,
            self.table.stage,
        )

    def open(self, folder: str | Path) -> None:
        """Show the study in a folder; one without ``study.toml`` is for a new study."""
        if self.state.busy:
            return
        folder = Path(folder)
        with self.showing():
            self.folder.value = str(folder)
        self.machine.try_to(PanelState.IDLE)  # whatever was shown before
        self.clear_error()
        self.fresh_button.present(False)
        self._forget()
        self.form.file = self._unreadable = None
        path = folder / "study.toml"
        try:
            self.form.show(path.read_text(encoding="utf-8") if path.exists() else None)
        except (OSError, ValueError) as error:  # what decoding, tomllib and a ConfigError say are ValueErrors
            self._unreadable = error
            self._error.refuse(f"{path}: {error}")
        self._show_study()
        self.state_changed(self.state)
        if (folder / "study.db").exists():
            self.tell("reading the study ...")
            self._reader.ask(lambda: _read_study(folder), self._opened)
        else:
            self.tell("not started")

    def start(self, *, fresh: bool = False) -> None:
        """Begin the study that the controls describe, or continue it; ``fresh`` archives what is there first."""
        if self._unreadable is not None:
            problem = f"{self._unreadable}; fix the file, or name another folder"
            self._error.refuse(f"{self.folder.value}/study.toml: {problem}")
            return
        if not is_usable_count(self.jobs):
            self.form.sections.selected_index = 2  # where the sentence stands
            return
        if self.form.asks_for_set_ups and not self.form.can_be_asked():
            return
        if not self.machine.try_to(PanelState.RUNNING):
            return
        folder, text, options = self.form.place, self.form.text(), dict[str, Any]()
        set_ups = self.form.asks_for_set_ups
        if self.form.file is not None and (folder / "study.db").exists() and not fresh:
            options = self.form.extensions(text)
            text = self.form.file if options else text
        if self._task is not None and self.entries["study.task"].value == self._task.name:
            options["task"] = self._task  # one that only this program knows
        options |= {"jobs": self.jobs.value, "fresh": fresh}
        self.fresh_button.present(False)
        self.bar.value, self.bar.bar_style = 0.0, ""
        if fresh:
            self._forget()
            self._show_study()
        self.begin(lambda control: self._run_study(control, folder, None if set_ups else text, options))

    def pick(self, number: int) -> None:
        """Lay the curves of a trial over O0's, and take its configuration; edits are not replaced unasked."""
        study = self.study
        trial = next((one for one in self._trials() if one.number == int(number)), None)
        if study is None or trial is None or not trial.config:
            self.log(f"trial {number} has no configuration to show yet")
            return
        config, name = _config_of(study, trial), f"trial {trial.number}"
        self._taking.take(
            config,
            trial.level,
            name,
            lambda: self.log(f"{name} is in the configuration now: {trial.summary or trial.level}"),
        )
        others = [one for one in self.picked if one not in (0, trial.number)]
        self.picked = [*others[-(_OVERLAID - 2) :], trial.number] if trial.number else others
        self._pick_help.present(False)
        self.table.open(trial.number)
        shown = [one for one in study.trials if one.number in (0, *self.picked)]
        self._reader.ask(
            lambda: [curve_of(one, study.directory, study.objective) for one in shown], self.figures.show_curves
        )

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for work and reading to end; return whether both did."""
        return super().wait(timeout) and self._reader.wait(timeout)

    def state_changed(self, state: PanelState) -> None:
        """Enable what can be used in a state."""
        super().state_changed(state)
        fixed = self._task is not None and self.form.file is None
        self.entries["study.task"].disable("the panel was made for this task" if fixed else "")

    def refresh(self) -> None:
        """Draw the progress received since the last refresh."""
        if self.study is not self.figures.study:
            self._show_study()
        progress, self._progress = self._progress, None
        if progress is not None and self.state is not PanelState.STOPPING:
            self._show_progress(progress)

    def _run_study(
        self, control: RunControl, folder: Path, text: str | None, options: dict[str, Any]
    ) -> StudyResult | None:
        """Write the study's file and run it, in a thread; None when it was stopped on the way.

        Without a text a look at the task writes the file. After each trial it sends what is known of the study. If the
        question differs from the stored one, the file stays, and a StudyError says so.
        """
        from workbench import api
        from workbench import study as studies
        from workbench.study.answer.result import StudyReader
        from workbench.study.store.storage import archive_idle_study

        self._reader.wait()  # Optuna's verbosity and the warnings filter belong to one thread at a time
        if text is None:
            task = options.get("task") or look_for_task(str(self.entries["study.task"].value), folder)
            note = functools.partial(control.send, self.log)
            asked = self.form.set_up_question(task)
            control.send(self.tell, "looking at the task ...")
            jobs = 1 if "task" in options else options["jobs"]  # what only this program knows is trained here alone
            try:
                stop = control.stop_requested
                studies.begin_study(task, **asked, folder=folder, on_note=note, stop=stop, jobs=jobs)
            except studies.StudyStoppedError:
                return None
            text = (folder / "study.toml").read_text(encoding="utf-8")
            control.send(self.form.show, text)
            if control.stop_requested():
                return None
        studies.parse_study(text, source="study.toml", default_name=folder.resolve().name)
        path = folder / "study.toml"
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if before != text:
            if options["fresh"]:
                options["fresh"] = archive_idle_study(folder) is None  # with its own file
            folder.mkdir(parents=True, exist_ok=True)
            write_text_atomically(path, text)
        seen, reader = list[Any](), StudyReader(folder)

        def send(progress: TuneProgress) -> None:
            control.send(setattr, self, "_progress", progress)
            if seen != [progress.phase, progress.trials]:
                seen[:] = [progress.phase, progress.trials]
                control.send(setattr, self, "study", reader.read())

        try:
            return api.tune(folder, on_progress=send, stop=control.stop_requested, **options)
        except studies.StudyStoppedError:
            with contextlib.suppress(studies.StudyError):  # stopped before there was anything to read
                control.send(setattr, self, "study", reader.read())
            return None
        except studies.StudyChangedError:
            if before is not None and before != text:  # until the user says so the stored question stands
                write_text_atomically(path, before)
            raise

    def finished(self, outcome: Outcome) -> PanelState:
        """Show that the study has its answer, or was stopped."""
        ended = counted(self._n_ended(), "trial")
        if outcome.result is None:
            self.tell(f"stopped; everything finished is kept; {self.start_button.description} resumes it")
            self.log(f"stopped after {ended}")
            return PanelState.STOPPED
        self.bar.value, self.bar.bar_style = self.bar.max, "success"
        self.tell(f"{ended} in {format_duration(outcome.seconds)}")
        for sentence in outcome.result.remarks:
            self.log(sentence)
        return PanelState.DONE

    def _end(self, outcome: Outcome) -> None:
        from workbench.study import StudyChangedError

        path = self.form.place / "study.toml"
        if path.exists():
            self.form.file = path.read_text(encoding="utf-8")
        is_another = isinstance(outcome.error, StudyChangedError)
        self.fresh_button.present(is_another)
        self.failure_note = _QUESTION_CHANGED if is_another else WorkPanel.failure_note
        self.study = outcome.result or self.study
        self._show_study()
        super()._end(outcome)

    def _opened(self, result: StudyResult) -> None:
        from workbench.study.store.status_file import phase_now

        if self.state.busy or result.directory.resolve() != self.form.place.resolve():
            return
        self.study = result
        ended = self._n_ended()
        self.bar.max = 1.0
        self.bar.value = 1.0 if result.exported else min(ended / max(result.n_trials, 1), 1.0)
        self._show_study()
        if phase := phase_now(result.directory):
            self.tell(f"{phase}, {result.progress}; another command is at work on it")
        elif result.exported:  # there may be many more trials than the time was for
            self.tell(f"{counted(ended, 'trial')}; its answer is shown")
        else:
            self.tell(f"{result.progress}; {self.start_button.description} resumes the search")
        if result.is_over:
            self.machine.try_to(PanelState.DONE)

    def _cannot_read(self, error: BaseException) -> None:
        self.report_error(error)
        self.tell("the study cannot be read")

    def _forget(self) -> None:
        """Forget the study: another one is opened, or this one begins again."""
        self.study, self.picked = None, []
        self.figures.hide_curves()

    def _show_progress(self, progress: TuneProgress) -> None:
        self.bar.max, self.bar.value = max(progress.total, 1e-9), progress.done
        parts = [progress.phase]
        unit = {"O0": "run", "search": "trial", "timing": "runtime", "confirm": "run"}.get(progress.phase)
        if unit is not None:
            parts.append(f"{math.floor(progress.done)} of {counted(round(progress.total), unit)}")
        if math.isfinite(progress.eta_seconds) and progress.eta_seconds > 0:
            parts.append(f"about {format_duration(progress.eta_seconds)} left")
        leads = f"<div>{words(f'leading the search, {progress.best}')}</div>" if progress.best else ""
        note = f"<div>{words(progress.note)}</div>" if progress.note else ""
        self.progress_text.value = note_html(" · ".join(parts)) + leads + note

    def _show_study(self) -> None:
        if self.closed:
            return
        study = self.study
        begun = any(one.state != "waiting" for one in self._trials())
        self.start_button.description = "Continue" if begun else "Start"
        self.start_button.button_style = "" if study is not None and study.is_over else "success"
        self._answer.value = "" if study is None else answer_html(study)
        self._take_row.present(study is not None and bool(study.exported))
        for target, button in self.take_buttons.items():
            button.present(study is not None and target in study.exported)
        self._pick_help.present(len(self._trials()) > 1 and not self.picked)
        if not self.picked:
            self.figures.hide_curves()
        self.figures.show(study)
        self.table.show(study)

    def _take_export(self, target: str) -> None:
        if self.study is None or target not in self.study.exported:
            return
        path = self.study.exported[target]
        said = f"{path.name} is in the configuration now"
        self._taking.take(BoostConfig.from_json(path), target.upper(), path.name, lambda: self.log(said))

    def _keep_note(self, number: int, text: str) -> None:
        from workbench.study import write_note

        if self.study is not None:
            write_note(self.study.directory, number, text)
            trials = [replace(one, note=text.strip()) if one.number == number else one for one in self.study.trials]
            self.study = replace(self.study, trials=trials)
            self.table.show(self.study)

    def _trials(self) -> list[TrialRecord]:
        return self.study.trials if self.study is not None else []

    def _n_ended(self) -> int:
        return 0 if self.study is None else len(self.study.ended)


def _config_of(study: StudyResult, trial: TrialRecord) -> BoostConfig:
    """Return a trial's configuration, with the provenance of the file that it was exported to as it is, if it was."""
    config = BoostConfig.from_dict(trial.config)
    for target, choice in study.choices.items():
        chosen = choice.candidate
        if target not in study.exported or chosen is None or chosen.trial_number != trial.number:
            continue
        with contextlib.suppress(ConfigError, OSError):  # somebody may have changed the file, or removed it
            exported = BoostConfig.from_json(study.exported[target])
            # An export may have a loss-scale policy that the trial had not.
            if exported.resolve(target.upper()).key() == config.resolve(trial.level).key():
                return config.with_values({"provenance": exported.provenance})
    return config


def _task_and_folder(given: Task | str | Path, studies: Path) -> tuple[str, Path]:
    """Return the name of the task, empty for a study, and the folder of the study."""
    if not isinstance(given, (str, Path)):
        return given.name, studies / given.name
    path = Path(given)
    if isinstance(given, Path) or path.is_dir() or path.name == "study.toml":
        return "", path.parent if path.name == "study.toml" else path
    return given, studies / (path.stem if ":" in given else given)


def _read_study(folder: Path) -> StudyResult:
    from workbench.study import read_result

    return read_result(folder.absolute())  # a terminal is seldom in the kernel's folder
