"""Read run directories (`recorder` describes them) and list them; `overview` finds them and removes old ones."""

from __future__ import annotations

import html
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from workbench.core.checksums import crc_of_file, is_intact
from workbench.core.records import Event, EventKind, ExponentCounts, StepRecord
from workbench.runs.errors import RunError
from workbench.runs.overview import is_finished, metric_of, read_json, run_overviews, text_of, why_no_folder
from workbench.runs.schema import COLUMNS, SCHEMA_VERSION, is_method_column
from workbench.runs.tables import EVENTS, STEPS, read_frame

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
        metric = metric_of(self.summary)
        facts = {
            "task": text_of(self.environment.get("task")),
            "level": text_of(self.environment.get("level")),
            "steps": f"{len(self.steps):,}",
            "overflows": f"{len(self.overflow_steps):,}",
            "duration": f"{self.duration:.1f} s",
            "metric": f"{metric:.6g} {text_of(self.summary.get('metric_name'))}".strip() if metric == metric else "",
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


def read_run(
    path: str | os.PathLike[str], *, most_histograms: int | None = None, columns: Collection[str] | None = None
) -> Run:
    """Read the directory of a run that is going on, was killed, or is finished.

    Args:
        path: ``<root>/<run id>``.
        most_histograms: Keep the ``grad_exponents`` of this many steps at most, evenly chosen; None keeps all. They
            take most of the time of a long run: with a million steps and one every tenth, all are read in seconds,
            2000 in a fraction of a second, none in a third of that.
        columns: Read these columns of ``steps`` alone, which saves time and memory; None reads all. Those of methods
            may be named whether the run has them or not; a table without columns has no rows either.

    Returns:
        The run; whatever a kill tore off the end of its last block is left out.

    Raises:
        RunError: When the folder is not a run directory, or a file in it is damaged or from a newer version.
        ValueError: When ``most_histograms`` is negative, or steps cannot have a column of that name.
    """
    if most_histograms is not None and not most_histograms >= 0:
        raise ValueError(f"`most_histograms` must be at least 0, or None for all, got {most_histograms!r}")
    if unknown := sorted(name for name in columns or () if not STEPS.may_hold(name)):
        known = f"{', '.join(COLUMNS)}, or a method's"
        raise ValueError(f"`columns` must name columns of steps ({known}), got {unknown[0]!r}")
    path = Path(path)
    if not path.is_dir():
        raise RunError(f"{path} is not a run directory: {why_no_folder(path)}")
    environment = read_json(path / "environment.json")
    version = environment.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise RunError(
            f"{path}: `schema_version` in environment.json must be at most {SCHEMA_VERSION}, got {version!r:.60}; "
            "read the run with the version of the workbench that wrote it"
        )
    config = read_json(path / "config.json")
    steps, events = read_frame(path, STEPS, most_histograms, columns), read_frame(path, EVENTS)
    # Last, because it appears last: a run that finishes meanwhile is read as running, never as finished but empty.
    finished = is_finished(path)
    summary = read_json(path / "summary.json") if finished else {}
    _check_intact(path, summary)
    return Run(path, config, environment, summary, steps, events, finished)


def _check_intact(path: Path, summary: dict[str, Any]) -> None:
    """Compare a finished run's files with their checksums, which runs of earlier versions lack."""
    known = summary.get("recorded", {}).get("files", {}) if isinstance(summary.get("recorded"), dict) else {}
    changed = [name for name, crc in known.items() if (path / name).is_file() and crc_of_file(path / name) != crc]
    if not is_intact(summary) or changed:
        name = changed[0] if changed else "summary.json"
        raise RunError(f"{path / name}: it was damaged after it was written; restore it or rerun")


def list_runs(root: str | os.PathLike[str]) -> pd.DataFrame:
    """Return an overview of the runs below a folder, the newest first, without reading their steps.

    Columns are run (path below ``root``), started (UTC), task, level, steps, final_metric (``metric`` of the summary,
    NaN without), overflows, size_bytes, finished. A run with damaged files is listed with what can be read. A RunError
    says that there is no such folder.
    """
    return pd.DataFrame(run_overviews(root), columns=list(_OVERVIEW)).astype(_OVERVIEW)
