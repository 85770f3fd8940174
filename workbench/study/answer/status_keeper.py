"""Keep ``status.json`` while a study is worked on: after what happens, in a small share of the time, and at the end."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Self

import optuna

from workbench.study.answer.result import standing_result
from workbench.study.ask.study_file import StudyFile
from workbench.study.store.status_file import stamp_of, write_status

_LEAST_SECONDS = 1.0
_SHARE = 0.01
"""At most one write in ``_LEAST_SECONDS``, and at most this share of the time: seldom with thousands of trials."""

_log = logging.getLogger("workbench")


class StatusKeeper:
    """Keeps a study's state beside its database; as a context manager it writes the final one on leaving.

    It does nothing if ``storage`` names a database that others share. Failing to write ends no study:
    `workbench status` then reads the database.
    """

    def __init__(self, study_dir: str | Path, study: optuna.Study, file: StudyFile, storage: str | None = None) -> None:
        self._active = storage is None
        self._study_dir, self._study, self._file = study_dir, study, file
        self._due, self._warned = -math.inf, False

    def refresh(self, phase: str) -> None:
        """Write the state in a phase of the work, unless it was written a moment ago; not while anything is timed."""
        if time.monotonic() >= self._due:
            self._write(phase)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._write()

    def _write(self, phase: str = "") -> None:
        if not self._active:
            return
        began = time.monotonic()
        try:
            before = stamp_of(self._study_dir)
            result = standing_result(self._study_dir, self._study, self._file)
            # If another process has written to the study since, the stamp no longer fits: readers take the database.
            write_status(self._study_dir, result, before, phase=phase)
        except Exception as error:
            if not self._warned:
                _log.warning("status.json could not be written, so `workbench status` will be slower: %s", error)
            self._warned = True
        now = time.monotonic()
        self._due = now + max(_LEAST_SECONDS, (now - began) / _SHARE)
