"""Read run directories (`recorder` says what is in them), list them, and remove old ones."""

from __future__ import annotations

import contextlib
import html
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from workbench.core.checksums import crc_of_file, is_intact
from workbench.core.records import Event, EventKind, ExponentCounts, StepRecord
from workbench.runs import writer_lock
from workbench.runs.errors import RunError
from workbench.runs.json_lines import intact_size
from workbench.runs.schema import COLUMNS, SCHEMA_VERSION, is_method_column
from workbench.runs.tables import EVENTS, STEPS, read_frame

_DEPTH = 4  # runs/<study>/<run id>, with room for one more level on either side
_OVERVIEW = {
    "run": "str",
    "started": "datetime64[us, UTC]",
    "task": "str",
    "level": "str",
    "steps": "int64",
    "final_metric": "float64",
    "overflows": "int64",
    "size_bytes": "int64",
    "finished": "bool",
}


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One run, read back: running, killed or finished.

    Args:
        path: The run directory.
        config: The configuration it ran with.
        environment: Versions, device, seed, data hash, schema version.
        summary: Results; empty until the run is finished.
        steps: One row per micro-batch; columns and units in ``runs.COLUMNS``, then the methods' own columns.
        events: One row per event; columns in ``runs.EVENT_COLUMNS``.
        finished: Whether the run reached its end; false while it runs and after a kill.
    """

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    steps: pd.DataFrame
    events: pd.DataFrame
    finished: bool

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return self.path.name

    @property
    def duration(self) -> float:
        """Time from the start of the run to the end of its last recorded step, seconds; 0 without steps."""
        ends = self.steps["seconds"] + self.steps["step_ms"].fillna(0.0) / 1000.0
        longest = float(ends.max())  # NaN for an empty run, and when no step has a time
        return longest if longest == longest else 0.0

    @property
    def overflow_steps(self) -> npt.NDArray[np.int64]:
        """Micro-batch indices at which a gradient overflowed, shape ``[n_overflows]``."""
        return np.asarray(self.steps.loc[self.steps["overflow"], "step"], dtype=np.int64)

    def step_records(self) -> list[StepRecord]:
        """Return the steps as records; method columns are left out where they are NaN."""
        names = [name for name in self.steps.columns if is_method_column(name)]
        columns = [
            {name: value for name, value in zip(names, row, strict=True) if value == value}
            for row in self.steps[names].to_numpy(dtype=np.float64).tolist()
        ]
        rows: list[dict[Any, Any]] = self.steps[list(COLUMNS)].to_dict("records")
        for row in rows:
            cells = row["grad_exponents"]
            row["grad_exponents"] = tuple(ExponentCounts(**{**cell, "counts": tuple(cell["counts"])}) for cell in cells)
        return [StepRecord(**row, columns=own) for row, own in zip(rows, columns, strict=True)]

    def event_records(self) -> list[Event]:
        """Return the events as records; a RunError when one is of a kind that this version does not know."""
        try:
            return [
                Event(int(step), EventKind(kind), subject, float(value), message)
                for step, kind, subject, value, message in self.events.itertuples(index=False)
            ]
        except ValueError as error:
            unknown = f"unknown kind of event ({error!s:.80})"
            raise RunError(f"{self.path}: {unknown}; read it with a newer version") from error

    def _facts(self) -> dict[str, str]:
        metric = _metric(self.summary)
        facts = {
            "task": _text(self.environment.get("task")),
            "level": _text(self.environment.get("level")),
            "steps": f"{len(self.steps):,}",
            "overflows": f"{len(self.overflow_steps):,}",
            "duration": f"{self.duration:.1f} s",
            "metric": f"{metric:.6g} {_text(self.summary.get('metric_name'))}".strip() if metric == metric else "",
            "state": "finished" if self.finished else "not finished",
        }
        return {name: text for name, text in facts.items() if text}

    def __repr__(self) -> str:
        facts = self._facts()
        what = " ".join(facts[name] for name in ("task", "level") if name in facts)
        counts = f"{facts['steps']} steps, {facts['overflows']} overflows, {facts['duration']}, {facts['state']}"
        return f"<Run {self.name}: {what + ', ' if what else ''}{counts}>"

    def _repr_html_(self) -> str:
        border = "1px solid var(--jp-border-color2, #bdbdbd)"
        cells = "".join(
            f'<tr><th scope="row" style="text-align:left;padding:2px 12px 2px 0">{html.escape(name)}</th>'
            f'<td style="text-align:left;padding:2px 0">{html.escape(text)}</td></tr>'
            for name, text in self._facts().items()
        )
        return (
            f'<div style="display:inline-block;border:{border};border-radius:4px;padding:8px 12px;'
            f'color:var(--jp-content-font-color1, inherit);background:var(--jp-layout-color1, transparent)">'
            f"<strong>Run {html.escape(self.name)}</strong><table>{cells}</table></div>"
        )


def read_run(path: str | os.PathLike[str], *, most_histograms: int | None = None) -> Run:
    """Read a run directory, whether its run is going on, was killed, or is finished.

    Args:
        path: ``<root>/<run id>``.
        most_histograms: Keep the ``grad_exponents`` of at most so many steps, evenly chosen; None keeps all. They take
            most of the time of a long run: of a million steps with one every tenth, all are read in seconds, 2000 in a
            fraction of one, none in a third of that.

    Returns:
        The run; whatever a kill tore off the end of its last block is left out.

    Raises:
        RunError: When the folder is no run directory, or a file in it is damaged or from a newer version.
        ValueError: When ``most_histograms`` is negative.
    """
    if most_histograms is not None and not most_histograms >= 0:
        raise ValueError(f"`most_histograms` must be at least 0, or None for all, got {most_histograms!r}")
    path = Path(path)
    if not path.is_dir():
        raise RunError(f"{path} is not a run directory: {_why_no_folder(path)}")
    environment = _read_json(path / "environment.json")
    version = environment.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise RunError(
            f"{path}: `schema_version` in environment.json must be at most {SCHEMA_VERSION}, got {version!r:.60}; "
            "read the run with the version of the workbench that wrote it"
        )
    config = _read_json(path / "config.json")
    steps, events = read_frame(path, STEPS, most_histograms), read_frame(path, EVENTS)
    # Last, because it appears last: a run that finishes meanwhile is read as running, never as finished but empty.
    finished = (path / "summary.json").exists()
    summary = _read_json(path / "summary.json") if finished else {}
    _check_intact(path, summary)
    return Run(path, config, environment, summary, steps, events, finished)


def _check_intact(path: Path, summary: dict[str, Any]) -> None:
    """Compare a finished run's files with their checksums, which runs of earlier versions lack."""
    known = summary.get("recorded", {}).get("files", {}) if isinstance(summary.get("recorded"), dict) else {}
    changed = [name for name, crc in known.items() if (path / name).is_file() and crc_of_file(path / name) != crc]
    if not is_intact(summary) or changed:
        name = changed[0] if changed else "summary.json"
        raise RunError(f"{path / name}: it was damaged after it was written; restore it or rerun")


def find_runs(root: str | os.PathLike[str]) -> list[Path]:
    """Return the run directories below a folder, four levels deep, symbolic links left out, sorted by path.

    Raises:
        RunError: When there is no such folder.
    """
    root = Path(root)
    if not root.is_dir():
        raise RunError(f"{root} is not a folder of runs: {_why_no_folder(root)}")
    return sorted(_walk(root, _DEPTH))


def list_runs(root: str | os.PathLike[str]) -> pd.DataFrame:
    """Return an overview of the runs below a folder, the newest first, without reading their steps.

    Args:
        root: Folder of runs, or of studies with runs.

    Returns:
        Columns run (path below ``root``), started (UTC), task, level, steps, final_metric (``metric`` of the summary,
        NaN without), overflows, size_bytes, finished. A run with damaged files is listed with what can be read.

    Raises:
        RunError: When there is no such folder.
    """
    rows = [_overview(Path(root), path) for path in find_runs(root)]
    frame = pd.DataFrame(rows, columns=list(_OVERVIEW)).astype(_OVERVIEW)
    return frame.sort_values(["started", "run"], ascending=False, kind="stable", ignore_index=True)


def prune_runs(
    root: str | os.PathLike[str],
    *,
    keep: int | None = None,
    older_than_days: float | None = None,
    dry_run: bool = False,
) -> list[Path]:
    """Remove old runs, and only runs.

    A run goes when it is not among the ``keep`` newest and has not changed for ``older_than_days``; a rule left out
    lets every run go. Runs that are being written stay, and so do folders that are not clearly runs, and symbolic
    links.

    Args:
        root: Folder of runs, or of studies with runs.
        keep: Number of newest runs below ``root`` that stay, >= 0.
        older_than_days: Days without a change after which a run may go, >= 0.
        dry_run: Only say what would go.

    Returns:
        The run directories removed, or that would be, the oldest first.

    Raises:
        ValueError: When neither rule is given, or one is out of range.
        RunError: When there is no such folder.
        OSError: When a run cannot be removed.
    """
    if keep is None and older_than_days is None:
        raise ValueError("give `keep`, `older_than_days` or both; without a rule every run would go")
    if keep is not None and not keep >= 0:
        raise ValueError(f"`keep` must be at least 0, got {keep}")
    if older_than_days is not None and not 0 <= older_than_days < math.inf:
        raise ValueError(f"`older_than_days` must be at least 0 and finite, got {older_than_days}")
    now = time.time()
    newest_first = sorted(find_runs(root), key=lambda path: (_started(path), path.name), reverse=True)
    chosen = [
        path
        for path in reversed(newest_first[keep or 0 :])
        if _is_certainly_run(path)
        and not writer_lock.being_written(path, finished=(path / "summary.json").exists(), now=now)
        and now - writer_lock.last_change(path) >= (older_than_days or 0.0) * 86_400.0
    ]
    if not dry_run:
        for path in chosen:
            shutil.rmtree(path)
    return chosen


def _why_no_folder(path: Path) -> str:
    return "it is a file" if path.exists() else "there is no such folder"


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "environment.json").is_file() and (folder / "config.json").is_file():
        yield folder
        return
    if depth == 0:
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # not ours to read, or gone meanwhile
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _walk(Path(entry.path), depth - 1)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise RunError(f"{path.parent} is not a run directory: it has no {path.name}") from error
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:  # wrong JSON and wrong UTF-8 alike
        raise RunError(f"{path}: not valid JSON ({error}); the file was damaged after it was written") from error
    if not isinstance(values, dict):
        raise RunError(f"{path}: must hold a JSON object, got {type(values).__name__}")
    return values


def _read_json_or_nothing(path: Path) -> dict[str, Any]:
    try:
        return _read_json(path)
    except RunError:
        return {}


def _overview(root: Path, path: Path) -> dict[str, Any]:
    environment = _read_json_or_nothing(path / "environment.json")
    summary = _read_json_or_nothing(path / "summary.json")
    recorded = summary.get("recorded")
    if isinstance(recorded, Mapping):
        steps, overflows = _count(recorded.get("steps")), _count(recorded.get("overflow_steps"))
    else:
        steps, overflows = _count_lines(path / "steps.jsonl")
    return {
        "run": _text(path.relative_to(root).as_posix()),
        "started": datetime.fromtimestamp(_started(path), UTC),
        "task": _text(environment.get("task")),
        "level": _text(environment.get("level")),
        "steps": steps,
        "final_metric": _metric(summary),
        "overflows": overflows,
        "size_bytes": _size(path),
        "finished": (path / "summary.json").exists(),
    }


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**63 else 0


def _text(value: Any) -> str:
    """Return text that can be shown and stored: a file's name, or a value of a file, may be no Unicode."""
    return str(value or "").encode("utf-8", "backslashreplace").decode()


def _size(folder: Path) -> int:
    total = 0
    for entry in folder.rglob("*"):
        with contextlib.suppress(OSError):  # gone in this moment: the run has just ended, or was pruned
            total += entry.lstat().st_size if entry.is_file() else 0
    return total


def _count_lines(path: Path) -> tuple[int, int]:
    """Return steps and overflows of a running run. A quote inside a name is escaped, so counting text is exact."""
    try:
        content = path.read_bytes()
    except OSError:
        return 0, 0
    end = intact_size(content)
    return content.count(b"\n", 0, end), content.count(b'"overflow":true', 0, end)


def _started(path: Path) -> float:
    """Return when a run began, in seconds since the epoch; the folder's own time where the run does not say."""
    try:
        started = datetime.fromisoformat(_read_json(path / "environment.json")["started"])
        return (started if started.tzinfo else started.replace(tzinfo=UTC)).timestamp()
    except (RunError, KeyError, ValueError, TypeError, OverflowError):
        return path.stat().st_mtime


def _is_certainly_run(path: Path) -> bool:
    # environment.json is a common name; only our recorder puts a schema version and the folder's kind of files there.
    return "schema_version" in _read_json_or_nothing(path / "environment.json") and any(
        (path / name).is_file() for name in ("steps.jsonl", "steps.parquet")
    )


def _metric(summary: Mapping[str, Any]) -> float:
    value = summary.get("metric")
    return float(value) if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63) else math.nan
