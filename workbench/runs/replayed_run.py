"""A recorded run, opened for replay: what each answer needs is read once, so that a slider answers at once.

Policies are judged without `replay`'s range, but with the scale at every step; underflow is read from an evenly spaced
selection of the histograms.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from workbench.config import BoostConfig, ConfigError
from workbench.loss_scale import ScalePolicy, simulate
from workbench.loss_scale.replay import trace_scale
from workbench.runs import Run
from workbench.runs.replay import (
    ReplayResult,
    estimate_thresholds,
    mean_underflow,
    policy_columns,
    recorded_exponents,
    replay,
)

_HISTOGRAMS = 2000  # as many as an exponent map shows
_LADDER = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_LONG_RUN = 100_000


class ReplayedRun:
    """A recorded run with ``grad_amax``, and its thresholds; a ValueError when it recorded no gradients."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.thresholds = estimate_thresholds(run)
        self.recorded = recorded_policy(run)  # that it ran with
        self._windows, self._exponents = recorded_exponents(run, self.thresholds, _HISTOGRAMS)
        window_of_step = np.searchsorted(self.thresholds.steps, run.steps["step"].to_numpy())
        self._window_of_step = np.minimum(window_of_step, self.n_windows - 1)

    @property
    def n_windows(self) -> int:
        """Number of windows, that is of attempted updates."""
        return len(self.thresholds.steps)

    def judge(self, policies: list[ScalePolicy]) -> pd.DataFrame:
        """Return what policies would have done, without a range, in milliseconds each: one row per policy."""
        result = simulate(self.thresholds.scale, policies, at=self._windows)
        return pd.DataFrame(
            {
                **policy_columns(policies),
                "overflows": result.overflows,
                "wasted_share": result.wasted_share,
                "underflow_share": mean_underflow(self._exponents, result.scale_at),
                "recorded": [policy == self.recorded for policy in policies],
            }
        )

    def ranges(self, policies: list[ScalePolicy]) -> ReplayResult:
        """Return what policies would have done, with a range, as ``replay`` does; each takes some simulations."""
        return replay(self.run, policies, thresholds=self.thresholds)

    def scales(self, policy: ScalePolicy) -> np.ndarray:
        """Return the scale that a policy would have used at every recorded step, shape ``[n_steps]``."""
        used = trace_scale(self.thresholds.scale, policy).per_step()
        answer: np.ndarray = used[self._window_of_step]
        return answer


def recorded_policy(run: Run) -> ScalePolicy | None:
    """Return the loss-scale policy a run was trained with, fixed at 1 without a loss scale.

    It is None for group scales, and where the configuration is of another version.
    """
    try:
        plan = BoostConfig.from_dict(run.config).resolve(str(run.environment.get("level") or "O1"))
    except ConfigError:
        return None
    if plan.matters("loss_scale.groups"):
        return None
    rule, kind = plan.config.loss_scale, plan.parameters_in_effect().get("loss_scale.kind", "dynamic")
    if kind == "none":
        return ScalePolicy(kind="fixed", init=1.0)
    return ScalePolicy(
        init=rule.init,
        factor=rule.factor,
        window=rule.window,
        minimum=min(rule.minimum, rule.init),
        maximum=rule.maximum,
        kind="fixed" if kind == "fixed" else "dynamic",
    )


def policy_grid(
    init: Sequence[float],
    factor: Sequence[float],
    window: Sequence[int],
    *,
    minimum: float = 1.0,
    most: int | None = 50,
) -> list[ScalePolicy]:
    """Return every combination of three lists. A floor above an initial scale is lowered to it.

    Raises:
        ValueError: When a list is empty, or there are more combinations than ``most``.
    """
    for name, values in (("init", init), ("factor", factor), ("window", window)):
        if not values:
            raise ValueError(f"`{name}` must name at least one value, got none")
    wanted = len(init) * len(factor) * len(window)
    if most is not None and wanted > most:
        raise ValueError(
            f"{len(init)} initial scales x {len(factor)} factors x {len(window)} windows are {wanted} policies; at "
            f"most {most} are judged at once, shorten a list"
        )
    floor = {i: min(minimum, i) if isinstance(i, int | float) and i > 0 else minimum for i in init}
    grid = itertools.product(init, factor, window)
    return [ScalePolicy(init=i, factor=f, window=w, minimum=floor[i]) for i, f, w in grid]


def usual_windows(n_windows: int) -> list[int]:
    """Return five growth windows, ascending, that are worth a try for a run of ``n_windows`` updates.

    They reach up to twice the run, where the scale never grows; for long runs they waste less than a thousandth.
    """
    if n_windows > _LONG_RUN:
        return [1000, 2000, 3000, 4000, 5000]
    fitting = [window for window in _LADDER if window <= 2 * n_windows]
    return fitting[-5:] if len(fitting) >= 5 else list(_LADDER[:5])
