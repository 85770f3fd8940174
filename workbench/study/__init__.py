"""Search, confirm and export: a study from its question (``study.toml``) to its answer (``result/``).

Start at `tune`: ``run/search_and_confirm.py`` describes the whole way in its first lines, with a line for every part;
``run/study_stages.py`` has a method for each. The names below are loaded on first use: what only reads `status.json`
needs no Optuna.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from workbench.study.answer.result import StudyResult, export_study, read_result, write_note
    from workbench.study.answer.trial_table import TRIAL_COLUMNS, trial_table, write_trial_table
    from workbench.study.ask.study_file import StudyFile, parse_study, read_study
    from workbench.study.ask.task_study import begin_study
    from workbench.study.errors import (
        OutOfTimeError,
        StudyBusyError,
        StudyChangedError,
        StudyError,
        StudyFailedError,
        StudyStoppedError,
    )
    from workbench.study.run.experimenter import TaskExperimenter
    from workbench.study.run.joining import WorkerResult, join_study
    from workbench.study.run.progress import ProgressLine, TuneProgress
    from workbench.study.run.ray_engine import RayEngine
    from workbench.study.run.runner import Experimenter
    from workbench.study.run.search_and_confirm import tune
    from workbench.study.store.stored_records import trials_of

__all__ = [
    "TRIAL_COLUMNS",
    "Experimenter",
    "OutOfTimeError",
    "ProgressLine",
    "RayEngine",
    "StudyBusyError",
    "StudyChangedError",
    "StudyError",
    "StudyFailedError",
    "StudyFile",
    "StudyResult",
    "StudyStoppedError",
    "TaskExperimenter",
    "TuneProgress",
    "WorkerResult",
    "begin_study",
    "export_study",
    "join_study",
    "parse_study",
    "read_result",
    "read_study",
    "trial_table",
    "trials_of",
    "tune",
    "write_note",
    "write_trial_table",
]

_HOME = {
    "answer.result": ("StudyResult", "export_study", "read_result", "write_note"),
    "answer.trial_table": ("TRIAL_COLUMNS", "trial_table", "write_trial_table"),
    "ask.study_file": ("StudyFile", "parse_study", "read_study"),
    "ask.task_study": ("begin_study",),
    "errors": tuple(name for name in __all__ if name.endswith("Error")),
    "run.experimenter": ("TaskExperimenter",),
    "run.joining": ("WorkerResult", "join_study"),
    "run.progress": ("ProgressLine", "TuneProgress"),
    "run.ray_engine": ("RayEngine",),
    "run.runner": ("Experimenter",),
    "run.search_and_confirm": ("tune",),
    "store.stored_records": ("trials_of",),
}

__getattr__ = lazy_names(__name__, {name: f"{__name__}.{home}" for home, names in _HOME.items() for name in names})
