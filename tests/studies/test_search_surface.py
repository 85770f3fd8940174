"""The surface through real runs of digits-resnet, and a whole study on it."""

from __future__ import annotations

import time

import pandas as pd
import pytest

from studies.plain_optuna.compare import OURS, PLAIN, SHARES, table
from studies.search_surface.plain_optuna import search
from studies.search_surface.simulate import network_facts, study, told
from studies.search_surface.surface import COLUMNS, FOLDER, Surface
from workbench.config import BoostConfig

GOOD = {
    "optimizer.name": "AdamW",
    "optimizer.lr": 0.004,
    "schedule.length": 0.63,
    "batch.factor": 4.0,
    "regularization.label_smoothing": 0.13,
    "runtime.memory_format": "channels_last",
}


@pytest.fixture(scope="module")
def surface() -> Surface:
    return Surface()


def test_the_surface_goes_through_the_runs(surface: Surface) -> None:
    runs = pd.read_csv(FOLDER / "result" / "runs.csv")
    assert tuple(runs.columns) == COLUMNS
    assert surface.metric(BoostConfig()) == pytest.approx(runs[runs.optimizer == "task"].metric.mean())
    assert surface.time(BoostConfig()) == 1.0
    config = BoostConfig().with_values(GOOD)
    like = runs[(runs.optimizer == "AdamW") & (runs.batch == 4.0) & runs.length.between(0.5, 0.8)]
    assert surface.metric(config) > like.metric.mean()
    assert surface.time(config) == pytest.approx(
        (like.seconds / like.length).mean() * 0.63 / (180 * surface.given_step), rel=0.1
    )


def test_shorter_is_worse_and_takes_less(surface: Surface) -> None:
    long, short = (BoostConfig().with_values({**GOOD, "schedule.length": length}) for length in (0.8, 0.3))
    assert surface.metric(long) > surface.metric(short)
    assert surface.time(long) > surface.time(short)


@pytest.mark.slow
def test_a_whole_study_keeps_its_time_and_exports_what_keeps_the_quality(surface: Surface) -> None:
    began = time.monotonic()
    found = study(surface, None, 0, 2.0, 0.01)
    assert time.monotonic() - began < 60.0
    assert found["drop"] <= 0.01
    assert found["time"] < 1.0 or found["verdict"] == "O0"
    assert max(found["stages"].values()) <= 120.0


def test_plain_optuna_searches_on_the_surface(surface: Surface) -> None:
    found = search(PLAIN, surface, network_facts(), 0, 1.0, 0.01)
    assert len(found) == len(SHARES)
    assert found[0] == (1.0, 0.0)  # the task's own runs are not over by then
    assert found[-1][0] < 1.0


def test_searches_are_compared_by_their_medians() -> None:
    slow, fast, failed = [1.0] * 8, [1.0] * 4 + [0.5] * 4, {OURS: 0, PLAIN: 1}
    text = table({OURS: [fast, fast, slow], PLAIN: [[1.0] * 7 + [0.5]] * 2}, failed)
    assert "| plain Optuna | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 0.500 | 1 of 2 |" in text
    assert "after 0.625 of the budget" in text
    assert "not within the budget" in table({OURS: [slow], PLAIN: [fast]}, failed)


def test_what_loses_too_much_counts_as_no_gain() -> None:
    rows = [
        {"time": 0.5, "drop": 0.0, "plain_time": 1.0, "plain_drop": 0.0, "verdict": "confirmed"},
        {"time": 0.25, "drop": 0.02, "plain_time": 0.5, "plain_drop": 0.02, "verdict": "confirmed"},
    ]
    assert told(rows, 0.01).startswith("1.41 x | 1.14 x | 2 of 2, 1 wrongly | 1.00 x")
