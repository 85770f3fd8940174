"""What a mirror is: a run, sent to a tool that other people's dashboards read.

A mirror is given a run in the blocks in which it is recorded, about one a second, never step by step: nothing here
waits for the device. TensorBoard and MLflow are imported when such a mirror is opened, not before.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

import pandas as pd

from workbench.config import BoostConfig
from workbench.core.credentials import hide_passwords
from workbench.core.records import Event, EventKind, StepRecord
from workbench.runs.mirrors.selection import Point, Selection

_INSTALL = 'pip install "boost-workbench[mirrors]"'
_SUMMARY_NUMBERS = ("metric", "final_loss", "final_loss_scale", "seconds", "steps", "overflows")


class MirrorError(ValueError):
    """The mirror cannot be opened as requested; the message is one sentence."""


class MirrorFailedError(RuntimeError):
    """A mirror that was opened could not be written."""


class MirrorWarning(UserWarning):
    """A mirror was given up; the run it followed goes on."""


@dataclass(frozen=True, slots=True)
class MirroredRun:
    """What is known of a run before its first step."""

    name: str  # in the mirror; a slash makes a group, such as the study
    config: Mapping[str, Any]
    environment: Mapping[str, Any]  # as in ``environment.json``

    @property
    def started(self) -> float:
        """When it began, seconds since the epoch; now, when the environment does not say."""
        try:
            return datetime.fromisoformat(str(self.environment.get("started"))).timestamp()
        except ValueError:
            return datetime.now().timestamp()

    @property
    def parameters(self) -> dict[str, Any]:
        """Task, level, seed, device, and the values of the configuration that are in effect, by path."""
        environment = self.environment
        device = environment.get("device") or {}
        facts = {
            "task": environment.get("task"),
            "level": environment.get("level"),
            "seed": environment.get("seed"),
            "device": device.get("type") if isinstance(device, Mapping) else device,
        }
        return {name: value for name, value in {**facts, **self._in_effect()}.items() if value not in (None, "")}

    def _in_effect(self) -> dict[str, Any]:
        # All hundred values, most of them of methods that are off, would hide the few that tell two runs apart.
        ranks = self.environment.get("world_size")
        try:
            config = BoostConfig.from_dict(self.config)
            plan = config.resolve(str(self.environment.get("level") or "O0"), ranks if isinstance(ranks, int) else 1)
        except (TypeError, ValueError):  # of another version, say: everything is better than nothing
            (row,) = pd.json_normalize(dict(self.config)).to_dict("records")
            return {str(path): value for path, value in row.items()}
        return plan.parameters_in_effect()


class Mirror(ABC):
    """One place that runs are mirrored to, one at a time: ``begin``, ``write`` for each block, then ``finish``."""

    most_points: ClassVar[int] = 10_000  # of each curve, about

    @abstractmethod
    def __str__(self) -> str:
        """Return in a few words where the run goes; never with a password."""

    @abstractmethod
    def check(self) -> None:
        """Raise MirrorError, with the command that installs it, when the library is not there."""

    @abstractmethod
    def has(self, run: MirroredRun) -> bool:
        """Return whether the run is there as a whole; a MirrorError if another is, or the place cannot be reached."""

    def begin(self, run: MirroredRun) -> None:
        """Open the run, or raise MirrorError; what an earlier attempt left of the same run is replaced."""
        steps = run.environment.get("steps")
        self._selection = Selection(self.most_points, steps if isinstance(steps, int) else None)
        self._run = run
        self._begin(run)

    def write(self, records: Iterable[StepRecord], events: Iterable[Event] = ()) -> None:
        """Send a block of steps, in order, and their events."""
        events = list(events)
        points = self._selection.points(records, events)
        self._write(points, [event for event in events if event.kind is not EventKind.EVALUATION])

    @abstractmethod
    def finish(self, summary: Mapping[str, Any]) -> None:
        """Send the results, as in ``summary.json``, and close the run; their ``state`` is how it ended."""

    def abandon(self) -> None:  # noqa: B027  # most have nothing to give back
        """Release what the run holds here, after an error; never raises."""

    @abstractmethod
    def _begin(self, run: MirroredRun) -> None: ...

    @abstractmethod
    def _write(self, points: Sequence[Point], events: Sequence[Event]) -> None: ...

    def _when(self, step: int) -> float:
        """Return when a step of this block ended, seconds since the epoch; -1 is the end of the block."""
        return self._run.started + self._selection.seconds_at(step)


def summary_numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a run's summary under the names they have in a mirror."""
    found = {name: summary.get(name) for name in _SUMMARY_NUMBERS}
    return {
        f"summary/{name}": float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def reason_of(error: BaseException) -> str:
    """Return what went wrong in one line, without passwords."""
    return hide_passwords(" ".join(str(error).split()) or type(error).__name__)


def require(library: str, what: str) -> None:
    """Import an optional library, whose name for people is ``what``; a MirrorError when it is not installed."""
    try:
        importlib.import_module(library)
    except ImportError as error:
        raise MirrorError(f"a mirror to {what} needs a library that is not installed ({error}): {_INSTALL}") from None
