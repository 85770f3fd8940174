"""Runs in TensorBoard: one folder of event files per run, below one log folder.

Scalars carry unit and meaning as their description; the configuration goes to the HParams tab, events to the Text tab.
Only tensorboard itself is used: neither TensorFlow nor torch is loaded.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from workbench.core.files import write_text_atomically
from workbench.core.records import Event
from workbench.runs.mirrors.mirror import Mirror, MirroredRun, MirrorError, require, summary_numbers
from workbench.runs.mirrors.selection import Point, described

_MARK = "mirrored_run.json"
_EVENT_FILES = "events.out.tfevents.*"
_MOST_SENTENCES = 1000  # events of one kind; what comes after them is in the run directory


class TensorBoardMirror(Mirror):
    """Mirror runs to a folder that ``tensorboard --logdir FOLDER`` shows.

    Args:
        folder: Log folder; made when it is missing. Each run gets a folder of its name in it.

    Example:
        >>> print(TensorBoardMirror("logs"))
        TensorBoard in logs
    """

    def __init__(self, folder: str | Path = "tensorboard") -> None:
        self.folder = Path(folder)
        self._described: set[str] = set()
        self._sentences: dict[str, int] = {}
        self._file: BinaryIO | None = None

    def __str__(self) -> str:
        return f"TensorBoard in {self.folder}"

    def check(self) -> None:
        """Raise MirrorError when tensorboard is not installed."""
        require("tensorboard.summary.writer.record_writer", "TensorBoard")

    def has(self, run: MirroredRun) -> bool:
        """Return whether the run is there, by our own file next to the event files; others' files are a MirrorError."""
        folder = self.folder / run.name
        try:
            mark = json.loads((folder / _MARK).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            if any(folder.glob(_EVENT_FILES)):
                raise MirrorError(f"{folder} holds event files of another program; choose another folder") from None
            return False
        except (OSError, ValueError) as error:
            raise MirrorError(f"{folder / _MARK} cannot be read ({error}); choose another folder") from None
        if not isinstance(mark, dict) or mark.get("started") != run.environment.get("started"):
            raise MirrorError(f"{folder} holds another run of the same name; choose another folder")
        return mark.get("complete") is True

    def _begin(self, run: MirroredRun) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as FileEvent
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.check()
        self.has(run)
        folder = self.folder / run.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(_EVENT_FILES):  # ours, as the mark beside them said
                left.unlink()
            self._mark(complete=False)
            # Not by the writer with its own thread: an error is to come out here.
            name = f"events.out.tfevents.{round(run.started):010d}.workbench"
            self._file = (folder / name).open("wb")
            self._writer = RecordWriter(self._file)
            self._described, self._sentences = set(), {}
            self._writer.write(FileEvent(wall_time=run.started, file_version="brain.Event:2").SerializeToString())
            plain = bool | int | float | str
            parameters = {n: v if isinstance(v, plain) else json.dumps(v) for n, v in run.parameters.items()}
            self._add(hparams_pb(parameters, start_time_secs=run.started), 0, run.started)
            self._text("about/environment", _as_table(run.environment), 0, run.started)
            self._writer.flush()
        except OSError as error:
            self.abandon()
            raise MirrorError(f"{folder}: cannot be written ({error.strerror or error})") from None

    def _write(self, points: Sequence[Point], events: Sequence[Event]) -> None:
        for point in points:
            self._scalars(point.values, point.step, self._run.started + point.seconds)
        for event in events:
            kind = str(event.kind)
            self._sentences[kind] = self._sentences.get(kind, 0) + 1
            if self._sentences[kind] <= _MOST_SENTENCES:
                value = f"{event.value:g}" if event.value == event.value else ""
                sentence = event.message or " ".join(filter(None, (kind, event.subject, value)))
                self._text(f"events/{kind}", sentence, event.step, self._when(event.step))
        self._writer.flush()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the results and the state, and close the event file."""
        end, step, state = self._when(-1), int(summary.get("steps") or 0), summary.get("state")
        self._scalars(summary_numbers(summary), step, end)
        shown = {name: value for name, value in summary.items() if name != "curve"}
        self._text("about/summary", _as_table(shown), step, end)
        outcome = "FAILURE" if state in {"diverged", "interrupted"} else "SUCCESS" if state else "UNKNOWN"
        self._add(_session_end(f"STATUS_{outcome}", end), step, end)
        self._writer.close()
        self._file = None
        self._mark(complete=bool(state))

    def abandon(self) -> None:
        """Close the event file; what is in it stays readable."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # what a full disk did not take is lost
                self._file.close()
            self._file = None

    def _mark(self, *, complete: bool) -> None:
        mark = {"run": self._run.name, "started": self._run.environment.get("started"), "complete": complete}
        write_text_atomically(self.folder / self._run.name / _MARK, json.dumps(mark) + "\n")

    def _scalars(self, values: Mapping[str, float], step: int, when: float) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.scalar.metadata import create_summary_metadata

        new = [name for name in values if name not in self._described]
        about = described(new)
        self._described.update(new)
        entries = []
        for name, value in values.items():
            info = about.get(name)
            words = f"{info.description} Unit: {info.unit or 'none'}." if info is not None else ""
            meta = create_summary_metadata(display_name="", description=words) if name in new else None
            entries.append(Summary.Value(tag=name, simple_value=value, metadata=meta))
        self._add(Summary(value=entries), step, when)

    def _text(self, tag: str, markdown: str, step: int, when: float) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add(text_pb(tag, markdown), step, when)

    def _add(self, summary: Any, step: int, when: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as FileEvent

        self._writer.write(FileEvent(wall_time=when, step=step, summary=summary).SerializeToString())


def _session_end(status: str, when: float) -> Any:
    """Return what ``hparams.summary.session_end_pb`` would, which needs TensorFlow."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2
    from tensorboard.plugins.hparams.api_pb2 import Status

    ended = plugin_data_pb2.SessionEndInfo(status=Status.Value(status), end_time_secs=when)
    content = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=ended))
    entry = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=content, tensor=metadata.NULL_TENSOR)
    return Summary(value=[entry])


def _as_table(values: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join(["| | |", "| --- | --- |", *rows])


def _cell(value: Any) -> str:
    """Return a value in one line, without what ends a cell: the message of an error may have both."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return " ".join(text.split()).replace("|", "\\|")
