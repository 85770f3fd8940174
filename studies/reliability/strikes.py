"""The kills of a setting: seeded draws, and a line for each."""

from __future__ import annotations

import csv
import os
import platform
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

SHARE_OF_REAL = 0.25


@dataclass(frozen=True, slots=True)
class Strike:
    """A kill.

    Args:
        victim: What was killed: driver, worker, server, rank.
        real: Whether it was a process as a shell starts it, and not one that was forked ready to begin.
        inside: Numbers of the trials that it ran, or the step that it had reached.
        where: Study or run.
    """

    victim: str
    real: bool
    inside: list[int]
    where: str


@dataclass
class Strikes:
    """The kills of a setting so far.

    Args:
        setting: Its name.
        seed: Of all that is drawn.
        path: Table of the kills, which is written as they come.
    """

    setting: str
    seed: int
    path: Path
    draw: random.Random = field(init=False)
    began: float = field(default_factory=time.monotonic)
    count: int = 0
    of: Counter[str] = field(default_factory=Counter)
    real: int = 0

    def __post_init__(self) -> None:
        self.draw = random.Random(f"{self.setting} {self.seed}")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", newline="", encoding="utf-8") as table:
            csv.writer(table).writerow(["kill", "seconds", "victim", "process", "inside", "where"])

    def draw_real(self) -> bool:
        """Return whether the next process is one as a shell starts it."""
        return self.draw.random() < SHARE_OF_REAL

    def note(self, strike: Strike) -> None:
        """Note a kill."""
        self.count += 1
        self.of[strike.victim] += 1
        self.real += strike.real
        seconds, inside = f"{time.monotonic() - self.began:.1f}", " ".join(map(str, strike.inside))
        row = [self.count, seconds, strike.victim, "real" if strike.real else "forked", inside, strike.where]
        with self.path.open("a", newline="", encoding="utf-8") as table:
            csv.writer(table).writerow(row)
        print(self.setting, *row, flush=True)


def versions() -> dict[str, str]:
    """Return what it ran on."""
    names = ("boost-workbench", "torch", "optuna", "sqlalchemy", "psycopg", "ray")
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), **found, "machine": platform.machine(), "cores": str(os.cpu_count())}
