"""Search, confirm and export: a study from its question (``study.toml``) to its answer (``result/``).

Start at `tune`: ``study.py`` tells the whole way in its first lines and has one line for every part.
"""

from __future__ import annotations

from workbench.tuning.answer import StudyResult, export_study, read_result
from workbench.tuning.errors import (
    OutOfTimeError,
    StudyBusyError,
    StudyChangedError,
    StudyError,
    StudyFailedError,
    StudyStoppedError,
)
from workbench.tuning.experimenter import Experimenter, TaskExperimenter
from workbench.tuning.joining import WorkerResult, join_study
from workbench.tuning.progress import TuneProgress
from workbench.tuning.ray_engine import RayEngine
from workbench.tuning.searching import search
from workbench.tuning.stored_records import trials_of
from workbench.tuning.study import tune
from workbench.tuning.study_file import StudyFile, parse_study, read_study
from workbench.tuning.trial_table import TRIAL_COLUMNS, trial_table, write_trial_table

__all__ = [
    "TRIAL_COLUMNS",
    "Experimenter",
    "OutOfTimeError",
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
