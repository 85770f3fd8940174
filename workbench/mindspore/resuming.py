"""A Model's training that goes on where it was interrupted, in the middle of an epoch, too.

What was trained on is read again and left out, as `workbench.training.data_order` has it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.core import distributed as ranks
from workbench.core.arguments import checked_count
from workbench.mindspore.callbacks import CallbackParameters
from workbench.training.boosted import Boosted
from workbench.training.checkpoint import checkpoint_state, with_threads_of
from workbench.training.checkpoint_folder import CheckpointFolder
from workbench.training.generator_states import restore_generators
from workbench.training.resuming import ResumeError, state_to_resume

_EVERY = 1000  # steps, by default


def folder_of(resume: CheckpointFolder | Path | str | None, checkpoint_every: int | None) -> CheckpointFolder | None:
    """Return what two arguments of ``train`` and ``fit`` mean: this rank's folder of checkpoints, or None."""
    if resume is None:
        if checkpoint_every is not None:
            raise ValueError("`checkpoint_every` needs a folder for the checkpoints; name it in `resume`")
        return None
    if isinstance(resume, CheckpointFolder):
        if checkpoint_every is not None:
            raise ValueError(
                "`checkpoint_every` cannot be given together with a CheckpointFolder, which says it itself"
            )
        given = resume
    elif isinstance(resume, str | Path):
        every = _EVERY if checkpoint_every is None else checked_count("checkpoint_every", checkpoint_every)
        given = CheckpointFolder(resume, every, keep=2)
    else:
        raise TypeError(f"`resume` must be the path of a folder or a CheckpointFolder, got {type(resume).__name__}")
    return given if ranks.rank() == 0 else given.at(given.folder / f"rank-{ranks.rank()}")


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far a training has come."""

    epoch: int = 0  # number of the present one; 0 before the first
    step: int = 0  # steps that were trained in it
    steps: int = 0  # and altogether


class ResumedTraining:
    """Keeps how far a training has come, and continues it; ``identity`` makes the training the one it is.

    Raises:
        ResumeError: When the checkpoints belong to another training, or none is whole.
    """

    def __init__(self, folder: CheckpointFolder, boosted: Boosted, identity: Mapping[str, Any]) -> None:
        self._folder, self._boosted = folder, boosted
        self._identity = json.dumps(identity)
        self._parts = dict(folder.also)
        self._state = state_to_resume(folder, json.loads(self._identity), boosted.device)
        self.progress = Progress()
        if self._state is None:
            return
        try:
            formerly = {"criterion": state} if (state := self._state["parts"].get("criterion")) is not None else {}
            boosted.load_state_dict(formerly | self._state["boosted"])
            for name, part in self._parts.items():
                part.load_state_dict(self._state["parts"][name])
        except (KeyError, ValueError, RuntimeError) as error:
            raise ResumeError(
                f"the checkpoints in {folder.folder} do not fit this network and optimizer ({error})"
            ) from error
        if "epochs" in self._state:  # where earlier versions kept it
            boosted.course.order.load_state_dict(dict(enumerate(self._state["epochs"])))
        self.progress = Progress(*self._state["place"])

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Surround the training: with the threads that it began with, and everything on the disk at its end."""
        with contextlib.closing(self._folder), with_threads_of(self._state, self._boosted.device):
            yield

    def batches_of(self, dataset: Iterable[Any], number: int) -> Iterator[Any]:
        """Yield the batches of an epoch that are still to be trained on."""
        order, device = self._boosted.course.order, self._boosted.device

        def epoch() -> Iterator[Any]:
            order.epoch_begins(dataset, 0, device)
            yield from dataset

        batches = epoch()
        self.put_back()
        if number == self.progress.epoch and self.progress.step:
            order.leave_out(batches, self.progress.step, device)
        yield from batches

    def step_ended(self, state: CallbackParameters, *, stopping: bool) -> None:
        """Keep the progress after a step, if it is time or the training stops there."""
        if stopping or self._folder.is_due(self._boosted.step_index):
            self._save(Progress(state.cur_epoch_num, state.cur_step_in_epoch, state.cur_step_num), wait=stopping)

    def ended(self, state: CallbackParameters) -> None:
        """Keep the progress after the last epoch."""
        if self.put_back():
            return  # no epoch was left
        self._save(Progress(state.cur_epoch_num + 1, 0, state.cur_step_num), wait=True)

    def put_back(self) -> bool:
        """Put the random generators back to where the training stopped, once; return whether that was now."""
        state, self._state = self._state, None
        if state is not None:
            restore_generators(state, self._boosted.device)
        return state is not None

    def _save(self, progress: Progress, *, wait: bool) -> None:
        state = {
            **checkpoint_state(self._boosted),
            "identity": self._identity,
            "place": list(dataclasses.astuple(progress)),
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
        }
        self._folder.save(state, self._boosted.step_index, wait=wait)
