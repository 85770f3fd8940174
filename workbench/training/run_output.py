"""What receives a run's measurements: its directory on the disk, mirrors and monitors.

What was drained from the device is kept until it is on the disk, so neither a full disk nor Ctrl-C loses a step that
was measured.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.core.records import Event, StepRecord
from workbench.runs import RunRecorder, new_run_id, read_run
from workbench.runs.mirrors.live import LiveMirrors
from workbench.runs.mirrors.recorded import blocks_of


class RunOutput:
    """The outputs of a run on one rank; each of them may be missing.

    Args:
        recorder: Writes the run directory.
        on_records: Called with each block of records and events.
    """

    def __init__(
        self,
        recorder: RunRecorder | None = None,
        on_records: Callable[[Sequence[StepRecord], Sequence[Event]], None] | None = None,
    ) -> None:
        self._recorder, self._on_records = recorder, on_records
        self._mirrors: LiveMirrors | None = None  # once they have begun
        self._records: list[StepRecord] = []  # not yet on the disk
        self._events: list[Event] = []

    @property
    def path(self) -> Path | None:
        """The run directory."""
        return None if self._recorder is None else self._recorder.path

    @property
    def run_id(self) -> str:
        """The name of the run directory; empty where nothing is recorded."""
        return "" if self._recorder is None else self._recorder.run_id

    @property
    def lasts(self) -> bool:
        """Whether anything of the run outlasts it."""
        return self._recorder is not None or self._mirrors is not None

    def begin_mirrors(
        self, mirrors: LiveMirrors, config: Mapping[str, Any], environment: Callable[[], dict[str, Any]]
    ) -> None:
        """Show the run to mirrors, with the recorded run's name, environment and earlier steps if there is one."""
        if self._recorder is not None:
            run = read_run(self._recorder.path, most_histograms=0)
            mirrors.begin(run.name, config, run.environment, functools.partial(blocks_of, run))
        else:
            mirrors.begin(new_run_id(), config, environment() | {"started": datetime.now(UTC).isoformat()})
        self._mirrors = mirrors

    def keep(self, records: Sequence[StepRecord], events: Sequence[Event]) -> None:
        """Keep a block of records and events for the disk, to which `write` brings it."""
        self._records += records
        self._events += events

    def show(self, records: Sequence[StepRecord], events: Sequence[Event]) -> None:
        """Show a block to mirrors and watchers."""
        if records or events:
            if self._on_records is not None:
                self._on_records(records, events)
            if self._mirrors is not None:
                self._mirrors.write(records, events)

    def write(self) -> None:
        """Bring what has been kept to the disk."""
        if self._recorder is not None:
            self._recorder.write(self._records, self._events)
        self._records, self._events = [], []

    def finish(self, summary: Mapping[str, Any], *, goes_on: bool) -> None:
        """Close the record of a run; one that ``goes_on`` another time stays unfinished."""
        if self._recorder is not None:
            self._close(self._recorder, summary, goes_on)
        if self._mirrors is not None:
            self._mirrors.finish(_for_mirrors(summary, goes_on))

    def interrupt(self, summary: Mapping[str, Any], error: BaseException, *, goes_on: bool) -> None:
        """Close the record of a run that an exception ends; never raises, so that the exception itself is seen."""
        if self._mirrors is not None:
            with contextlib.suppress(Exception):  # where warnings are errors, what it has to say is one
                self._mirrors.finish(_for_mirrors(summary, goes_on))
        if self._recorder is None:
            return
        try:
            self.write()
            self._close(self._recorder, summary, goes_on)
        except Exception as failure:  # the disk may be full: what is on it stays, and the user should know
            error.add_note(f"the end of the run could not be recorded in {self._recorder.path}: {failure}")
            with contextlib.suppress(Exception):
                self._recorder.close()

    @staticmethod
    def _close(recorder: RunRecorder, summary: Mapping[str, Any], goes_on: bool) -> None:
        if goes_on:
            recorder.close()
        else:
            recorder.finish(summary)


def _for_mirrors(summary: Mapping[str, Any], goes_on: bool) -> Mapping[str, Any]:
    """Return the results of a run; one that goes on is in no state to be called complete."""
    return {**summary, "state": ""} if goes_on else summary
