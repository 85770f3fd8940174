"""What a process knows of a running trial: whose it is, and what is buffered of it before it is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import FrozenTrial

Changes = Mapping[tuple[Callable[..., None], Any], Sequence[Any]]
"""(method of RDBStorage, what it sets: a name or a step) -> its further arguments."""


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A trial that is stored as running."""

    trial_id: int
    number: int
    mark: Mapping[str, Any] | None = field(hash=False)
    """Mark of the process that runs it, with its heartbeats so far; None when it has none."""


@dataclass(slots=True)
class TrialBuffer:
    """The trial that a thread runs, what is not yet written of it, and the study as the thread last read it."""

    trial_id: int
    own: FrozenTrial
    trials: Sequence[FrozenTrial] = ()
    read_at: float = -float("inf")
    began: float = field(default_factory=time.monotonic)
    written_at: float = field(default_factory=time.monotonic)
    changes: dict[tuple[Callable[..., None], Any], Sequence[Any]] = field(default_factory=dict)
