"""The study of optimizers: its arithmetic on cases that can be said by heart, and one tiny run of every part."""

from __future__ import annotations

import csv
import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from workbench.config import BoostConfig

STUDY = Path(__file__).parents[2] / "studies" / "optimizers"


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(STUDY)
    return importlib.import_module("measures")


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(STUDY)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the study does; threads of a busy machine wait for each other at every small product
    yield importlib.import_module("compare")
    torch.set_num_threads(n_threads)


CURVE = [(5, 0.9), (10, 0.66), (15, 0.7), (20, 0.5)]


@pytest.mark.parametrize(
    ("target", "higher", "steps"),
    [(0.66, False, 10), (0.65, False, 20), (0.4, False, math.inf), (0.9, True, 5), (0.95, True, math.inf)],
)
def test_steps_to_a_target_are_those_of_the_first_evaluation_that_stands_at_it(
    measures: ModuleType, target: float, higher: bool, steps: float
) -> None:
    assert measures.first_step_at(CURVE, target, higher_is_better=higher) == steps
    assert measures.first_step_at([(5, math.nan)], target, higher_is_better=higher) == math.inf


def test_the_worst_after_a_step_counts_that_step(measures: ModuleType) -> None:
    assert measures.worst_after(CURVE, 10, higher_is_better=False) == 0.7
    assert measures.worst_after(CURVE, 10, higher_is_better=True) == 0.5
    assert measures.worst_after(CURVE[:2], 10, higher_is_better=False) == 0.66
    assert math.isnan(measures.worst_after(CURVE, math.inf, higher_is_better=False))


def test_a_trial_is_worth_its_steps_times_their_time_or_ten_budgets_and_what_remained(measures: ModuleType) -> None:
    options = {"higher_is_better": False, "step_time": 1.5, "budget": 20}
    assert measures.trial_value(CURVE, 0.66, **options) == 15.0
    assert measures.trial_value(CURVE, 0.4, **options) == pytest.approx(10 * 20 * 1.25)
    assert measures.trial_value(CURVE, 0.4, **options, diverged=True) == 10 * 20 * 101
    assert measures.trial_value([(5, math.inf)], 0.4, **options) == 10 * 20 * 101


def test_the_ratio_is_that_of_medians_times_the_median_step_time(measures: ModuleType) -> None:
    found = measures.ratio_interval([10, 20, 90], [40, 100, 50], [1.5, 2.0, 9.0])
    assert found.middle == pytest.approx(20 / 50 * 2.0)
    assert found.low < found.middle < found.high


def test_the_interval_draws_seeds_in_pairs_and_step_times_by_themselves(measures: ModuleType) -> None:
    # Every seed has the ratio 1/2, so pairs leave no spread: what is left is that of the step times.
    alone = measures.ratio_interval([10, 200, 3000], [20, 400, 6000])
    assert (alone.middle, alone.low, alone.high) == (0.5, 0.5, 0.5)
    timed = measures.ratio_interval([10, 200, 3000], [20, 400, 6000], [1.0, 3.0])
    assert (timed.middle, timed.low, timed.high) == (1.0, 0.5, 1.5)  # both 1, one of each, both 3


def test_the_interval_has_the_quantiles_of_every_resample_that_is_possible(measures: ModuleType) -> None:
    # Two seeds: (a, a) with 1/4, (a, b) with 1/2, (b, b) with 1/4; the tails of 2.5 % lie inside the outer two.
    found = measures.ratio_interval([10, 30], [10, 10])
    assert (found.middle, found.low, found.high) == (2.0, 1.0, 3.0)


def test_seeds_that_never_arrive_are_infinite(measures: ModuleType) -> None:
    found = measures.ratio_interval([10, 10, math.inf], [10, 10, 10])
    assert (found.middle, found.low, found.high) == (1.0, 1.0, math.inf)
    both = measures.ratio_interval([math.inf], [math.inf])
    assert all(math.isnan(value) for value in (both.middle, both.low, both.high))


def test_both_sides_need_the_same_seeds(measures: ModuleType) -> None:
    with pytest.raises(ValueError, match="the same seeds on both sides and a step time, got 2, 1 and 1"):
        measures.ratio_interval([1, 2], [1])


def test_every_arm_makes_a_valid_configuration_from_its_start_and_its_space_holds_it(compare: ModuleType) -> None:
    for task in compare._tables()["tasks"]:
        for name in compare._tables()["arms"]:
            arm = compare.read_arm(name, task)
            if arm.made_by:
                others, _ = compare.setting(compare.read_goal(task), arm, arm.start)
                assert others.arguments.keys() == arm.fixed.keys() | {"lr", "betas"}
            else:
                assert BoostConfig.from_dict(arm.config(arm.start, 1e-4)).optimizer.name == arm.fixed["name"]
            assert set(arm.start) == set(arm.space)
            if not arm.thor_arguments:
                assert all(arm.space[key]._contains(arm.space[key].to_internal_repr(v)) for key, v in arm.start.items())


def test_every_part_runs_and_what_is_done_is_not_done_again(compare: ModuleType, tmp_path: Path) -> None:
    task, out = "digits-autoencoder", ["--out", str(tmp_path)]
    arms = ["--arms", "sgd", "thor"]

    def rows() -> list[dict[str, str]]:
        with (tmp_path / "runs.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    compare.main(["tune", task, *arms, "--trials", "1", "--steps", "5", "--seeds", "2", "--rounds", "1", *out])
    compare.main(["confirm", task, *arms, "--seeds", "2", "--steps", "5", *out])
    compare.main(["stability", task, "--seeds", "1", "--steps", "10", *out])
    compare.main(["speed", task, *arms[:1], "sgd", "--calls", "1", "--rounds", "1", *out])
    first = rows()
    assert [row["kind"] for row in first] == ["tune"] * 4 + ["confirm"] * 4 + ["stability"] * 2
    assert [row["arm"] for row in first[:8]] == ["sgd", "sgd", "thor", "thor"] * 2
    # The trial did not arrive with its first seed and tried no other; being the best, it was run with all then.
    assert [int(row["seed"]) for row in first[:4]] == [0, 1, 0, 1]
    assert {row["steps"] for row in first[:8]} == {"5"}
    assert {row["steps_to_target"] for row in first[:8]} == {"inf"}
    compare.main(["tune", task, *arms, "--trials", "1", "--steps", "5", "--seeds", "2", "--rounds", "1", *out])
    compare.main(["confirm", task, *arms, "--seeds", "2", "--steps", "5", *out])
    assert rows() == first
    compare.main(["report", *out])
    tables = (tmp_path / "tables.md").read_text()
    assert "| THOR | 0 of 2 | never (never to never) |" in tables
    assert "2 runs" not in tables
    assert "| THOR | x 0.95 per refresh | 1 runs of 10 steps | 0 | 1 |" in tables
    assert (tmp_path / "time_to_target.svg").read_text().startswith("<svg ")
    told = json.loads((tmp_path / "tuned" / f"{task}_sgd.json").read_text())
    assert BoostConfig.from_dict(told).optimizer.lr == 0.01
