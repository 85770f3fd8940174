"""Search, confirm and export: a study from its question (``study.toml``) to its answer (``result/``).

Start at `tune`: ``run/search_and_confirm.py`` tells the whole way in its first lines and has one
line for every part. The names below are loaded on first use: what only reads `status.json` needs no Optuna.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from workbench.study.answer.result import StudyResult, export_study, read_result
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
    from workbench.study.run.searching import search
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
    "search",
    "trial_table",
    "trials_of",
    "tune",
    "write_trial_table",
]

_HOME = {
    **dict.fromkeys(("StudyResult", "export_study", "read_result"), "workbench.study.answer.result"),
    **dict.fromkeys(("TRIAL_COLUMNS", "trial_table", "write_trial_table"), "workbench.study.answer.trial_table"),
    **dict.fromkeys(("StudyFile", "parse_study", "read_study"), "workbench.study.ask.study_file"),
    "begin_study": "workbench.study.ask.task_study",
    **dict.fromkeys(
        (
            "OutOfTimeError",
            "StudyBusyError",
            "StudyChangedError",
            "StudyError",
            "StudyFailedError",
            "StudyStoppedError",
        ),
        "workbench.study.errors",
    ),
    "TaskExperimenter": "workbench.study.run.experimenter",
    **dict.fromkeys(("WorkerResult", "join_study"), "workbench.study.run.joining"),
    **dict.fromkeys(("ProgressLine", "TuneProgress"), "workbench.study.run.progress"),
    "RayEngine": "workbench.study.run.ray_engine",
    "Experimenter": "workbench.study.run.runner",
    "tune": "workbench.study.run.search_and_confirm",
    "search": "workbench.study.run.searching",
    "trials_of": "workbench.study.store.stored_records",
}

__getattr__ = lazy_names(__name__, _HOME)
