"""How often a search confirms what is truly worse, where every plan's true drop lies around the allowed one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.kit.set_up_search import LINEAR, run, write
from tests.kit.surface_runner import SurfaceRunner
from workbench.config import BoostConfig
from workbench.core.records import Verdict
from workbench.methods.schedule.section import ScheduleSection

ALLOWED = 0.02


def truth_with(drop: float) -> Callable[[BoostConfig], float]:
    """Return a truth where whatever is shorter than the task as given is worse, by so much or more."""

    def truth(config: BoostConfig) -> float:
        length = config.part(ScheduleSection).length
        return 0.95 if length >= 1.0 else 0.95 - drop + 0.004 * float(np.log2(length / 0.4))

    return truth


def verdict_of(folder: Path, seed: int) -> tuple[float, Verdict]:
    """Search once; return the true drop of what was tested, as a share of the allowed one, and the verdict."""
    drop = ALLOWED * float(np.random.default_rng(seed).uniform(0.6, 1.15))
    truth = truth_with(drop)
    write(folder, space=LINEAR, allowed=ALLOWED, set_up="attribution_share = 0.0", n_trials=5, plain_runs=0)
    result = run(folder, SurfaceRunner(folder, noise=0.008, seed=seed, truth=truth))
    if not result.candidates:
        return np.nan, Verdict.UNDECIDED
    tested = result.candidates[0]
    return (0.95 - truth(BoostConfig.from_dict(tested.config))) / ALLOWED, tested.verdict


def wrongly_confirmed(folder: Path, n_studies: int) -> tuple[int, int, int]:
    """Return how many were confirmed, how many of these wrongly, and how many plans were truly worse."""
    rows = [verdict_of(folder / str(seed), seed) for seed in range(n_studies)]
    confirmed = [share for share, verdict in rows if verdict is Verdict.CONFIRMED]
    worse = sum(share > 1.0 for share, _ in rows)
    return len(confirmed), sum(share > 1.0 for share in confirmed), worse


@pytest.mark.slow
def test_few_of_forty_searches_confirm_what_is_worse(tmp_path: Path) -> None:
    confirmed, wrongly, _ = wrongly_confirmed(tmp_path, 40)
    assert confirmed >= 3
    assert wrongly <= 3


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_below_five_percent_of_a_thousand_searches_confirm_what_is_worse(tmp_path: Path) -> None:
    confirmed, wrongly, worse = wrongly_confirmed(tmp_path, 1000)
    print(f"{confirmed} of 1000 confirmed, {wrongly} of them truly worse; {worse} plans tested were")
    assert confirmed >= 50
    assert worse >= 10
    assert wrongly < 50
