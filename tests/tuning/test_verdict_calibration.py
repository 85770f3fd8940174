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


def verdicts_of(folder: Path, seed: int) -> list[tuple[float, Verdict]]:
    """Search once; return the true drop of each form tested, as a share of the allowed one, and its verdict."""
    drop = ALLOWED * float(np.random.default_rng(seed).uniform(0.6, 1.15))
    truth = truth_with(drop)
    off = "attribution_share = 0.0"
    write(folder, space=LINEAR, allowed=ALLOWED, set_up=off, n_trials=5, plain_runs=0, candidates=3)
    result = run(folder, SurfaceRunner(folder, noise=0.008, seed=seed, truth=truth))
    drops = [0.95 - truth(BoostConfig.from_dict(tested.config)) for tested in result.candidates]
    return [(lost / ALLOWED, tested.verdict) for lost, tested in zip(drops, result.candidates, strict=True)]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_below_five_percent_of_a_thousand_searches_confirm_what_is_worse(tmp_path: Path) -> None:
    rows = [verdicts_of(tmp_path / str(seed), seed) for seed in range(1000)]
    confirmed = [shares for row in rows if (shares := [share for share, one in row if one is Verdict.CONFIRMED])]
    wrongly = sum(max(shares) > 1.0 for shares in confirmed)
    worse = sum(share > 1.0 for row in rows for share, _ in row)
    print(f"{len(confirmed)} of 1000 confirmed, {wrongly} of them truly worse; {worse} plans tested were")
    assert len(confirmed) >= 50
    assert worse >= 10
    assert wrongly < 50
