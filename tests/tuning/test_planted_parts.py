"""What the attribution does with a part that is planted into every plan: one that does nothing, and one that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.set_up_search import LINEAR, run, write
from tests.kit.surface_runner import SurfaceRunner, optimizer_of
from workbench.config import BoostConfig

AVERAGE = '"regularization.weight_average" = ["ema"]\n"regularization.decay" = [0.9]'
N_SEARCHES = 20


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_part_that_does_nothing_goes_and_the_one_that_helps_stays(tmp_path: Path) -> None:
    """Averaging the weights does nothing on the surface; AdamW needs 0.6 of the time that the task's own SGD needs."""
    gone = kept = 0
    for seed in range(N_SEARCHES):
        folder = write(tmp_path / str(seed), space=f"{LINEAR}\n{AVERAGE}")
        text = (folder / "study.toml").read_text().replace('["AdamW", "SGD"]', '["AdamW"]')
        (folder / "study.toml").write_text(text)
        taken = run(folder, SurfaceRunner(folder, noise=0.004, seed=seed)).choices["o1"].candidate
        config = BoostConfig() if taken is None else BoostConfig.from_dict(taken.config)
        gone += config.leaves()["regularization.weight_average"] == "none"
        kept += optimizer_of(config) == "AdamW"
    print(f"of {N_SEARCHES} searches {gone} left out what does nothing, {kept} kept what helps")
    assert gone >= N_SEARCHES - 1
    assert kept >= N_SEARCHES - 1
