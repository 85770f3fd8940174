"""How a run is resumed: what its checkpoints hold besides the model's state, and how that is restored.

A checkpoint is written between two steps, when everything measured before it is on the disk. What it belongs to (task,
data, configuration, seed, length) is part of it, so that a run never goes on as another one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from workbench.config.run_request import RunRequest
from workbench.core import distributed as ranks
from workbench.runs import RunRecorder, TelemetryError, new_run_id, read_run
from workbench.runs.overview import is_finished, is_run
from workbench.tasks import Task
from workbench.training.checkpoint import read_checkpoint
from workbench.training.checkpoint_folder import CheckpointFolder

FOLDER = "checkpoints"
"""Name of the folder inside a run directory."""


class ResumeError(ValueError):
    """There is nothing to resume from, or it belongs to another run."""


def identity(task: Task, request: RunRequest) -> dict[str, Any]:
    """Return what identifies a run, as plain values by name."""
    asked = {name: value for name, value in dataclasses.asdict(request).items() if name not in ("config", "run_id")}
    config = request.config.to_dict()
    return {"task": task.name, "data": task.data_digest(), "config": config, **asked, "ranks": ranks.world_size()}


def state_to_resume(folder: CheckpointFolder, this: Mapping[str, Any], device: torch.device) -> dict[str, Any] | None:
    """Return the newest checkpoint that all ranks have whole, None when there is none.

    A ResumeError if it belongs to another run than ``this`` (an `identity`), or if none is whole.
    """
    try:
        state = folder.load(device)
    except ValueError as error:
        raise ResumeError(str(error)) from error
    if state is None:
        return None
    was = json.loads(state.get("identity", "{}"))  # a checkpoint of another kind names none
    differs = [name for name in this if was.get(name) != this[name]]
    if differs:
        name = differs[0]
        change = "" if name == "config" else f": it was {was.get(name)}, and is {this[name]}"
        raise ResumeError(f"the checkpoints in {folder.folder} belong to a run with another `{name}`{change}")
    return state


def resumed_recorder(out: Path, request: RunRequest, state: Mapping[str, Any]) -> RunRecorder | None:
    """Return the recorder that continues the record of the interrupted run; None if there is none."""
    path = out / (state["run_id"] or request.run_id)
    is_open = bool(path.name) and is_run(path) and not is_finished(path)
    return RunRecorder.reopen(path, next_step=int(state["run"]["done"])) if is_open else None


def finished_before(out: Path | None, request: RunRequest, state: Mapping[str, Any] | None) -> Path | None:
    """Return the directory of the run that wrote a checkpoint at its end and is finished; None for any other."""
    if out is None or state is None or not (run_id := state["run_id"] or request.run_id):
        return None
    return out / run_id if _state_of(out / run_id) == "finished" else None


def run_to_resume(where: Path, this: Callable[[], Mapping[str, Any]]) -> tuple[Path, str]:
    """Return the folder of runs and the id of the run to resume: a run, or the newest unfinished one of a folder.

    A folder without one gets a new run, unless its newest is finished and has the `identity` that ``this`` returns: a
    scheduler may restart a command that was killed after its last line, and then nothing is left to be trained.

    Raises:
        ResumeError: When a run is finished or has no checkpoint.
    """
    if is_run(where):
        if is_finished(where):
            raise ResumeError(f"{where} is finished; there is nothing to resume")
        if not CheckpointFolder(where / FOLDER).steps():
            raise ResumeError(
                f"{where} has no checkpoint to resume from; a run writes them only if it was begun with "
                "`checkpoint_every` (--checkpoint-every)"
            )
        return where.parent, where.name
    kept = sorted(path.parent for path in where.glob(f"*/{FOLDER}") if CheckpointFolder(path).steps())
    begun = [path for path in kept if not is_finished(path)]
    if not begun and kept and _state_of(kept[-1]) == "finished" and _identity_of(kept[-1]) == this():
        begun = kept[-1:]
    return where, begun[-1].name if begun else new_run_id()


def _state_of(run: Path) -> str:
    """Return how a run ended; empty if it has not, or cannot be read."""
    try:
        return str(read_run(run, columns=()).summary.get("state", "")) if is_finished(run) else ""
    except (TelemetryError, OSError):
        return ""


def _identity_of(run: Path) -> Any:
    kept = CheckpointFolder(run / FOLDER)
    try:
        return json.loads(read_checkpoint(kept.path_of(kept.newest_step()), torch.device("cpu")).get("identity", "{}"))
    except (ValueError, FileNotFoundError):
        return None
