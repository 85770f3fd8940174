"""The controls of a study, and what they ask as the text of its ``study.toml``.

Everything about a field comes from the models of the study's file. Optuna is not loaded before a form is made.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench.config import BoostConfig, ParameterInfo
from workbench.config.errors import inner_type, rule_of, shown
from workbench.config.parameters import describe_field
from workbench.methods.registry import METHODS
from workbench.panels import kit
from workbench.panels.controls import ParameterControl, count_control, number_text
from workbench.panels.kit import column, parts, text_box, text_of
from workbench.panels.panel import Panel
from workbench.panels.shared_config import SharedConfig
from workbench.panels.study_space import SearchSpace
from workbench.panels.style import faint

if TYPE_CHECKING:
    from workbench.tasks import Task

_MINUTES: Final = "study.timeout_seconds"
"""Path of a value that is entered in minutes and kept in seconds."""

_STEPS: Final = "study.budget_steps"
_DROP: Final = "allowed_drop.o1"
_OBJECTIVE: Final = "study.objective"
_FIRST: Final = (_MINUTES, _DROP, _STEPS, _OBJECTIVE)
_COMMON: Final = ("study.task", "study.n_trials", "allowed_drop.o2")
_MORE: Final = (
    *("sampler.name", "pruner.name", "study.device_hours", "study.patience", "study.evaluate_every", "study.seed"),
    *("study.device", "study.threads", "confirm.seeds_min", "confirm.seeds_max", "confirm.candidates"),
    *("speed.rounds", "speed.steps_per_block"),
)

_MINIMISED: Final = {
    "time_to_quality": "The time of a whole run that ends with O0's metric, less the allowed drop.",
    "time_to_target": "The time until O0's final metric, less the allowed drop, is reached.",
    "speed": "The time of a step.",
    "pareto": "Metric and time of a step at once; no trial is pruned.",
}
"""What each objective minimises; the description in the file's model has all of them."""

_EXTENDED: Final = {
    "study.n_trials": "trials",
    "study.timeout_seconds": "timeout",
    "confirm.seeds_max": "confirm_seeds",
}
"""Values that may grow without changing the question: they are also options of the command."""
_ALWAYS_WRITTEN: Final = ("study.task", "study.n_trials", _STEPS, _OBJECTIVE, "sampler.name")
_SET_UPS: Final = "time_to_quality"
_LEFT_TO_THE_LOOK: Final = "Decided by a look at the task when the search begins:"
_BASELINE_SECTIONS: Final = ("common.", "loss_scale.", "amp.", "optimizer.")
_FIRST_SPACE: Final[Mapping[str, Any]] = {
    "level": ["O1", "O2"],
    **{path: value for method in METHODS for path, value in method.first_space.items()},
}


@functools.cache
def study_fields() -> Mapping[str, ParameterInfo]:
    """Return every field by its path in ``study.toml``, in the order of the controls."""
    from workbench.study.sample.sampling import PRUNERS, SAMPLERS  # loads Optuna, so not before it is needed

    names: dict[str, tuple[str, ...]] = {"sampler.name": tuple(SAMPLERS), "pruner.name": tuple(PRUNERS)}
    return {path: _described(path, names.get(path, ())) for path in (*_FIRST, *_COMMON, *_MORE)}


def _described(path: str, names: tuple[str, ...]) -> ParameterInfo:
    from workbench.study import StudyFile

    section, key = path.split(".")
    whole = StudyFile.model_fields[section]
    member = inner_type(whole.annotation).model_fields[key]
    about = describe_field(path, whole if names else member)  # a name is described by what it names
    default = member.get_default() if whole.is_required() else getattr(whole.get_default(), key)
    return replace(
        about,
        kind="choice" if names else "str" if about.kind == "list" else about.kind,
        choices=names or about.choices,
        default=None if member.is_required() and whole.is_required() else default,
        unit="minutes" if path == _MINUTES else about.unit,
        rule=rule_of(member),
    )


class StudyForm:
    """Fields for what a study is asked, with those that few change folded away.

    A new study's O0 gets precision, loss scale and optimizer of the shared configuration; ``given`` are first values by
    path. ``file`` is the text of the study's file, None while there is none.
    """

    def __init__(self, panel: Panel, shared: SharedConfig, folder: Path, given: Mapping[str, Any]) -> None:
        self._shared = shared
        self.file: str | None = None
        self._shortened = ""  # why the file's runs are shorter than the task's own
        self.folder = text_box(str(folder), "Folder of the study; one that holds a study is opened")
        self.entries = {
            path: ParameterControl(replace(info, default=given.get(path, info.default)))
            for path, info in study_fields().items()
        }
        for path in _FIRST:  # what everybody is asked says what it means, and what it is when left alone
            self.entries[path].note(self.entries[path].info.description)
        self.entries[_OBJECTIVE].observe(lambda _: self.show_baseline())
        jobs_help = (
            "Processes that train at the same time; empty lets a search for a set-up take the cores that are idle."
        )
        self.jobs = count_control("jobs", "Workers", jobs_help, None, optional=True)
        self.space = SearchSpace(panel)
        self.space.set(_FIRST_SPACE)
        self._baseline = text_of("")
        self._why_disabled = text_of(""), text_of("")  # once for all fields of a section
        self._common, self._more = column(), column()  # filled when they are unfolded
        self.sections = kit.Accordion(
            children=(self._common, column(self._baseline, self.space.widget), self._more),
            titles=("Study", "What is searched", "More"),
            selected_index=None,
            css="wb-wide",
        )
        panel.on_change(self.sections, self._unfold, "selected_index")
        for part in (self.folder, *self.entries.values(), self.jobs, *self._why_disabled):
            panel.cleaned_up_by(part.close)  # it stands in the panel only once its section was unfolded

    @property
    def first(self) -> tuple[Any, ...]:
        """The widgets of the fields that everybody is asked."""
        return self._widgets_of(_FIRST)

    @property
    def place(self) -> Path:
        """The folder of the study, as typed now."""
        return Path(self.folder.value).expanduser()

    def lock(self, locked: bool) -> None:
        """Disable everything while work is under way, or free it again."""
        for part in (self.folder, *self.entries.values(), self.jobs, self.space):
            part.lock(locked)

    def show(self, text: str | None) -> None:
        """Show what a study's file asks, None if there is none yet; a ValueError if it cannot be read."""
        self.file, self._shortened = text, ""
        if text is not None:
            self._show_values(text)
        self.show_baseline()

    @property
    def asks_for_set_ups(self) -> bool:
        """Whether a new study, written after a look at the task, is to find the fastest whole set-up."""
        return self.file is None and self.entries[_OBJECTIVE].value == _SET_UPS

    def can_be_asked(self) -> bool:
        """Return whether a study may have this time, drop and length, and show beneath each what is wrong if not."""
        from workbench.study.ask.study_file import wrong_paths

        wrong = wrong_paths({path: self.entries[path].value for path in (_MINUTES, _DROP, _STEPS)})
        for control in [self.entries[path] for path in wrong]:
            control.refuse(f"it must {control.info.rule}, got {shown(control.value)}")
        return not wrong

    def set_up_question(self, task: Task) -> dict[str, Any]:
        """Return the arguments of `begin_study`: the first fields, or its own defaults where they were left alone."""
        minutes, drop, steps = (self.entries[path] for path in (_MINUTES, _DROP, _STEPS))
        own_length = steps.value == steps.info.default and (task.steps or task.epochs) is not None
        return {
            "minutes": minutes.value,
            "steps": None if own_length else steps.value,
            "allowed_drop": None if drop.value == drop.info.default else drop.value,
        }

    def show_baseline(self) -> None:
        """Show what O0 means in this study, and what the look at a task decides about a new one."""
        from workbench.study.ask.task_study import DEFAULT_MINUTES

        left = _LEFT_TO_THE_LOOK if self.asks_for_set_ups else ""
        limit = f"{DEFAULT_MINUTES:g} minutes when unset" if left else "no limit when unset"
        self.entries[_MINUTES].note(f"Search and confirmation together; {limit}.")
        self.entries[_OBJECTIVE].note(_MINIMISED.get(self.entries[_OBJECTIVE].value, ""))
        shortened = self._shortened if self.file is not None else ""
        own = " Left alone, it is the task's own where the task names one." if left else ""
        self.entries[_STEPS].note(shortened or f"{self.entries[_STEPS].info.description}{own}")
        for path in (*_COMMON, *_MORE):
            if path != "study.task":
                self.entries[path].disable(left, said_elsewhere=True)
        for sentence in self._why_disabled:
            sentence.value = faint(left)
        self.space.widget.present(not left)  # ranges that Start would pass over
        if left:
            self._baseline.value = faint(
                "Start looks at the task and searches what applies to it: precision, compiler, schedule, batch size, "
                "optimizer, input sizes and boost methods. For ranges of your own choose another objective."
            )
            return
        if self.file is not None:
            self._baseline.value = faint("O0 is defined by [baseline] in study.toml.")
            return
        named = ", ".join(f"`{path}` = {number_text(value)}" for path, value in self._new_baseline().items())
        self._baseline.value = faint(f"O0 of a new study: {named}." if named else "O0 of a new study: all defaults.")

    def text(self) -> str:
        """Return what the controls ask as the text of ``study.toml``; an existing file keeps its comments."""
        from workbench.study.ask.study_text import new_study_text, study_text, values_of

        written = {} if self.file is None else values_of(self.file)
        values = {path: control.value for path, control in self.entries.items()}
        values[_MINUTES] = _seconds(values[_MINUTES], written.get(_MINUTES))
        # What the file does not say and the user left at its default stays out of it.
        asked = {
            path: value
            for path, value in values.items()
            if path in written or path in _ALWAYS_WRITTEN or value != self.entries[path].info.default
        }
        if self.file is not None:
            return study_text(self.file, asked, self.space.value)
        return new_study_text(str(asked.pop("study.task")), self._new_baseline(), asked, self.space.value)

    def extensions(self, text: str) -> dict[str, Any]:
        """Return what a study that has begun is asked beyond its file, as options, if nothing else changes."""
        from workbench.study.ask.study_text import space_of, values_of

        file = self.file or ""
        before, after = values_of(file), values_of(text)
        changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
        if not changed or not changed <= set(_EXTENDED) or space_of(file) != space_of(text):
            return {}
        return {_EXTENDED[path]: after[path] for path in changed if path in after}

    def _show_values(self, text: str) -> None:
        from workbench.study.ask.sections import SetUpSection
        from workbench.study.ask.study_text import space_of, values_of

        values, space = values_of(text), space_of(text)
        self._shortened = SetUpSection(left_out=values.get("set_up.left_out", [])).shortened
        if _MINUTES in values:
            values[_MINUTES] = _minutes(values[_MINUTES])
        self.space.set(space)
        for path, control in self.entries.items():
            control.set(values.get(path, control.info.default))

    def _new_baseline(self) -> dict[str, Any]:
        """Return what O0 means in a new study: precision, loss scale and optimizer of the shared configuration."""
        default, config = BoostConfig().leaves(), self._shared.config.leaves()
        chosen = {
            path: list(value) if isinstance(value, tuple) else value
            for path, value in config.items()
            if path.startswith(_BASELINE_SECTIONS) and value != default[path] and value is not None
        }
        steps = self.entries["study.budget_steps"].value
        if isinstance(steps, int) and steps >= 1:  # the schedule of a trial ends with the trial
            lengths = [method.updates for method in METHODS if method.updates and method.updates not in self.space.rows]
            chosen |= dict.fromkeys(lengths, steps)
        return chosen

    def _unfold(self, index: int | None) -> None:
        if index == 0 and not self._common.children:
            task, *others = self._widgets_of(_COMMON)
            self._common.children = parts("Folder of the study", self.folder, task, self._why_disabled[0], *others)
        if index == 2 and not self._more.children:
            self._more.children = (self.jobs.widget, self._why_disabled[1], *self._widgets_of(_MORE))

    def _widgets_of(self, paths: Iterable[str]) -> tuple[Any, ...]:
        return tuple(self.entries[path].widget for path in paths)


def _minutes(seconds: Any) -> Any:
    return round(seconds / 60.0, 2) if isinstance(seconds, (int, float)) else seconds


def _seconds(minutes: Any, written: Any) -> Any:
    """Return minutes as seconds for the file; an equal value keeps the file's own digits."""
    if written is not None and minutes == _minutes(written):
        return written
    return 60.0 * minutes if isinstance(minutes, (int, float)) else minutes
