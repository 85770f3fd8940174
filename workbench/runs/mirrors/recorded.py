"""Mirror runs that are recorded already: one run directory, or a folder of them, such as the runs of a study."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from workbench.core.records import Event, StepRecord
from workbench.runs import Run, find_runs, read_run
from workbench.runs.mirrors.mirror import Mirror, MirroredRun, MirrorError, MirrorFailedError, reason_of
from workbench.runs.overview import is_run

_BLOCK = 5000


def mirror_runs(path: str | os.PathLike[str], mirrors: Sequence[Mirror]) -> dict[Path, list[str]]:
    """Send a run directory, or a folder of them, to mirrors, unless it is there in full already.

    Return for each run the mirrors, in words, that it was sent to. If one fails on the way (MirrorFailedError), what
    was sent before stays there.
    """
    for mirror in mirrors:
        mirror.check()
    path = Path(path)
    runs = [path] if not path.is_dir() or is_run(path) else find_runs(path)
    if not runs:
        raise MirrorError(f"{path} holds no runs")
    return {run: _mirror_run(run, mirrors) for run in runs}


def _mirror_run(path: Path, mirrors: Sequence[Mirror]) -> list[str]:
    run = read_run(path, most_histograms=0)
    here = path.resolve()
    study = here.parent.parent
    name = f"{study.name}/{here.name}" if (study / "study.toml").is_file() else here.name
    described = MirroredRun(name, run.config, run.environment)
    wanted = [mirror for mirror in mirrors if not mirror.has(described)]
    for mirror in wanted:
        mirror.begin(described)
        try:
            for records, events in blocks_of(run):
                mirror.write(records, events)
            mirror.finish(run.summary)
        except Exception as error:  # a disk, a server, a database: each library has its own errors
            mirror.abandon()
            raise MirrorFailedError(
                f"{path} could not be mirrored to {mirror} as a whole: {reason_of(error)}; the same command sends it "
                "again"
            ) from error
    return [str(mirror) for mirror in wanted]


def blocks_of(run: Run) -> Iterator[tuple[list[StepRecord], list[Event]]]:
    """Yield what a run has recorded, block by block."""
    events = run.event_records()
    sent = 0
    for at in range(0, max(len(run.steps), 1), _BLOCK):
        records = dataclasses.replace(run, steps=run.steps.iloc[at : at + _BLOCK]).step_records()
        is_last = at + _BLOCK >= len(run.steps)
        mine = [e for e in events[sent:] if is_last or e.step <= records[-1].step]
        sent += len(mine)
        if records or mine:
            yield records, mine
