"""How much longer steps take because something is at work beside them now and then.

Two whole runs differ by several percent on a machine that others use, too. The steps during which the other was busy
and those just before and after differ by much less for that reason: what disturbs both lasts longer than they do. So
every stretch of disturbed steps is compared with its neighbours, and the sum of the differences with the whole run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from workbench.bench import Estimate

_NEIGHBOURS = 3  # undisturbed steps on either side with which a stretch is compared
_RESAMPLES = 2000


@dataclass(slots=True)
class Interference:
    """What the stretches of all runs so far have cost.

    ``seconds`` is the time of all steps during which the other could be busy, ``excess`` what each stretch of disturbed
    steps took beyond the same number of steps beside it.
    """

    seconds: float = 0.0
    excess: list[float] = field(default_factory=list)

    def add(
        self, boundaries: Sequence[float], turns: Sequence[tuple[float, float]], seconds: float | None = None
    ) -> None:
        """Take in one run.

        Args:
            boundaries: When its steps began, and when the last one ended; seconds of one clock, increasing.
            turns: When the other began to be busy and when it was done, by the same clock. The step after counts as
                disturbed, too: it finds its caches cold.
            seconds: Time of the steps during which the other could be busy; None is the time of all.
        """
        edges = np.asarray(boundaries, dtype=float)
        took = np.diff(edges)
        disturbed = np.zeros(len(took), dtype=bool)
        for began, ended in turns:
            disturbed |= (edges[:-1] < ended) & (edges[1:] > began)
        disturbed[1:] |= disturbed[:-1].copy()
        self.seconds += float(took.sum()) if seconds is None else seconds
        quiet = np.flatnonzero(~disturbed)
        for first, last in _stretches(disturbed):
            before = quiet[quiet < first][-_NEIGHBOURS:]
            after = quiet[quiet > last][:_NEIGHBOURS]
            sides = [took[side].mean() for side in (before, after) if len(side)]
            if sides:
                self.excess.append(float(took[first : last + 1].sum() - (last + 1 - first) * np.mean(sides)))

    def ratio(self) -> Estimate:
        """Return the time of the runs divided by what it would be without the other, with a bootstrap over stretches.

        Raises:
            ValueError: When nothing was disturbed, or nothing was not.
        """
        if not self.excess:
            raise ValueError("no step was disturbed, or all were: there is nothing to compare")
        excess = np.asarray(self.excess)
        draws = np.random.default_rng(0).choice(excess, (_RESAMPLES, len(excess))).sum(axis=1)
        low, high = np.quantile(draws, (0.025, 0.975))
        value, low, high = (self.seconds / (self.seconds - spent) for spent in (excess.sum(), low, high))
        return Estimate(float(value), float(low), float(high), len(excess))


def _stretches(flags: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield first and last position of every run of true flags."""
    steps = np.diff(np.concatenate(([0], flags.astype(np.int8), [0])))
    yield from zip(np.flatnonzero(steps == 1), np.flatnonzero(steps == -1) - 1, strict=True)
