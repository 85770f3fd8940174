"""A run in one line: a test names what it asks for and who watches, and this sorts it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from workbench.api import train
from workbench.config import BoostConfig
from workbench.core.records import StepRecord
from workbench.runs import Run, read_run
from workbench.tasks import Task
from workbench.training import run

REQUESTED = {field.name for field in fields(run.RunRequest)}
WATCHING = {field.name for field in fields(run.RunMonitor)}


def run_task(task: Task, config: BoostConfig, **options: Any) -> run.RunResult:
    """Train a task; options are fields of `RunRequest` and `RunMonitor`, and ``device`` and ``out``."""
    request = run.RunRequest(config, **{name: options.pop(name) for name in REQUESTED & options.keys()})
    monitor = run.RunMonitor(**{name: options.pop(name) for name in WATCHING & options.keys()})
    return run.run_task(task, request, monitor=monitor, **options)


def train_and_watch(task: Task, config: BoostConfig, **options: Any) -> tuple[run.RunResult, list[StepRecord]]:
    """Train with `workbench.train` at level O0 without a directory, unless told otherwise; return its steps, too."""
    seen: list[StepRecord] = []
    options = {"level": "O0", "out": None, "device": "cpu"} | options
    return train(task, config, on_records=lambda records, _: seen.extend(records), **options), seen


def read_back(result: run.RunResult) -> Run:
    """Return what a run has left in its directory."""
    assert result.path is not None
    return read_run(result.path)


def without_checksums(run: Path) -> None:
    """Make a finished run one of an earlier version, so that its files may be changed on purpose."""
    path = run / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    del summary["crc32"], summary["recorded"]["files"]
    path.write_text(json.dumps(summary), encoding="utf-8")
