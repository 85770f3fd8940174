"""Has the loss risen for good? The Page-Hinkley test, in units of the loss's own scatter."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from workbench.core.arguments import checked_count, checked_number


class DriftDetector(Protocol):
    """Looks at one number after the other for a change."""

    def update(self, value: float) -> bool:
        """Take one number; return whether a change is seen."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what the next ``update`` depends on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        ...


class PageHinkley:
    """Sequential test for an increase of the mean.

    With z_t the t-th number, less the mean so far and in units of the scatter so far, it sums ``S_t = S_(t-1) + z_t -
    tolerance`` and sees a change when S exceeds its least value so far by more than ``threshold``. After a change it
    starts over. Numbers that are not finite are passed over. Unlike in the original, mean and scatter are exponentially
    weighted, so that a loss which falls during the first hour is forgotten, and the parameters hold for any loss.

    Args:
        threshold: Sum of excess that is a change, in standard deviations, above 0. For independent normal numbers the
            mean time between false alarms is about ``exp(2 * tolerance * threshold) / (2 * tolerance ** 2)``.
        tolerance: Excess per number that is allowed, in standard deviations, at least 0.
        warm_up: Numbers after a start from which mean and scatter are learned before anything is summed, at least 2.
        memory: Numbers after which a weight has fallen to 1/e, above 1.

    Reference:
        Page, "Continuous inspection schemes", Biometrika 41, 1954; Hinkley, "Inference about the change-point from
        cumulative sum tests", Biometrika 58, 1971; in streams: Gama et al., "A survey on concept drift adaptation",
        ACM Computing Surveys 46(4), 2014, section 3.2.
    """

    def __init__(
        self, threshold: float = 30.0, tolerance: float = 0.25, warm_up: int = 100, memory: float = 1000.0
    ) -> None:
        if not threshold > 0:
            raise ValueError(f"`threshold` must be greater than 0, got {threshold}")
        if not memory > 1:
            raise ValueError(f"`memory` must be greater than 1, got {memory}")
        self.threshold = threshold
        self.tolerance = checked_number("tolerance", tolerance)
        self.warm_up = checked_count("warm_up", warm_up, 2)
        self.memory = memory
        self._state = _State()

    def update(self, value: float) -> bool:
        """Take one number, such as the mean log loss of a batch; return whether a change is seen."""
        if not math.isfinite(value):
            return False
        state = self._state
        if state.n >= self.warm_up:
            scatter = math.sqrt(state.variance)
            z = (value - state.mean) / scatter if scatter > 0 else 0.0
            state.sum += z - self.tolerance
            state.least = min(state.least, state.sum)
            if state.sum - state.least > self.threshold:
                self._state = _State()
                return True
        state.n += 1
        # Plain averages at first, exponentially weighted ones once they are the longer memory.
        weight = max(1 / state.n, 1 / self.memory)
        difference = value - state.mean
        state.mean += weight * difference
        state.variance = (1 - weight) * (state.variance + weight * difference * difference)
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return ``n``, ``mean``, ``variance``, ``sum`` and ``least``."""
        return asdict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self._state = _State(**state)


@dataclass
class _State:
    n: int = 0
    mean: float = 0.0
    variance: float = 0.0
    sum: float = 0.0
    least: float = 0.0
