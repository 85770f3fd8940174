from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.experiments.small_tasks import small_task
from tests.kit.runs import run_task
from workbench.config import BoostConfig
from workbench.core.paired_bounds import paired_drop_bounds, paired_drops, run_time_ratio
from workbench.runs import read_run
from workbench.training import compare as comparison
from workbench.training import run as training
from workbench.training.compare import Comparison, Side, compare_configs
from workbench.training.run import RunRequest, RunResult
from workbench.training.speed import SpeedRatio

CPU = torch.device("cpu")
BASE = Side("A.json", BoostConfig(), "O0")
OTHER = Side("B.json", BoostConfig.from_dict({"optimizer": {"lr": 1e-6}}), "O0")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Replace the measurement of speed by a known ratio."""
    asked: list[tuple[Any, Any]] = []

    def known(task: Any, baseline: Any, candidate: Any, **_: Any) -> SpeedRatio:
        asked.append((baseline, candidate))
        return SpeedRatio(0.5, 0.4, 0.8, 10.0, 5.0, 8)

    monkeypatch.setattr(comparison, "measure_speed_ratio", known)
    return asked


def compare(sides: list[Side], metric: str = "accuracy", **options: Any) -> Comparison:
    options = {"seeds": [3, 4], "steps": 30, "device": CPU} | options
    return compare_configs(small_task(metric=metric), sides, **options)


def test_every_pair_is_two_runs_with_the_same_seed(tmp_path: Path, measured: list[Any]) -> None:
    told: list[str] = []
    result = compare([BASE, OTHER], out=tmp_path, on_progress=lambda label, _: told.append(label))
    assert list(dict.fromkeys(told)) == [f"{side}, seed {seed}" for seed in (3, 4) for side in ("A.json", "B.json")]
    assert (result.task, result.metric, result.steps, result.seeds) == ("small", "accuracy", 30, (3, 4))
    base, other = result.sides
    for side, config in ((base, BASE), (other, OTHER)):
        alone = [run_task(small_task(), config.config, level="O0", steps=30, seed=s, device=CPU) for s in (3, 4)]
        assert side.metrics == tuple(run.metric for run in alone)
        paths = [path for path in side.paths if path is not None]
        assert [read_run(path).environment["seed"] for path in paths] == [3, 4]
    drops = paired_drops(list(zip(base.metrics, other.metrics, strict=True)), higher_is_better=True)
    assert other.drop == paired_drop_bounds(drops)
    assert other.drop is not None
    assert other.drop.mean > 0.05
    assert (base.drop, base.run_speed, base.speed) == (None, None, None)
    assert measured == [((BASE.config, "O0"), (OTHER.config, "O0"))]


def test_the_sentence_tells_speed_direction_and_bound(measured: list[Any]) -> None:
    result = compare([BASE, OTHER])
    drop, runs = result.sides[1].drop, result.sides[1].run_speed
    assert drop is not None
    assert runs is not None
    mean, bound = (f"{100 * one:.2f}".rstrip("0").rstrip(".") for one in (drop.mean, drop.upper))
    assert result.sentences() == [
        f"B.json: {runs.ratio:.2f} x as fast per run as A.json (95 % interval {runs.low:.2f} to {runs.high:.2f}), "
        f"2.00 x per step (1.25 to 2.50), accuracy {mean} points lower on average over 2 seeds "
        f"(one-sided 95 % bound of the drop {bound} points)."
    ]


def test_the_speed_is_that_of_whole_runs_paired_over_seeds(
    monkeypatch: pytest.MonkeyPatch, measured: list[Any]
) -> None:
    shorter = Side("half.json", BoostConfig.from_dict({"schedule": {"length": 0.5}}), "O0")
    steps = dict[str, int]()

    def timed(task: Any, request: RunRequest, **options: Any) -> RunResult:
        result = training.run_task(task, request, **options)
        label = "half.json" if request.config is shorter.config else "A.json"
        steps[label] = result.steps
        return dataclasses.replace(result, seconds=(3.0 if request.seed == 3 else 4.0) * result.steps)

    monkeypatch.setattr(comparison, "run_task", timed)
    side = compare([BASE, shorter]).sides[1]
    assert steps == {"A.json": 30, "half.json": 15}
    assert side.run_speed == run_time_ratio([(90.0, 45.0), (120.0, 60.0)], error=0.025)
    assert side.run_speed.ratio == pytest.approx(2.0)


def test_what_a_process_does_once_is_in_no_time_that_is_compared(
    monkeypatch: pytest.MonkeyPatch, measured: list[Any]
) -> None:
    seconds = iter([100.0, *[2.0] * 4])

    def timed(task: Any, request: RunRequest, **options: Any) -> RunResult:
        return dataclasses.replace(training.run_task(task, request, **options), seconds=next(seconds))

    monkeypatch.setattr(comparison, "run_task", timed)
    speed = compare([BASE, OTHER]).sides[1].run_speed
    assert speed is not None
    assert speed.ratio == pytest.approx(1.0)


def test_a_metric_that_should_be_small_gets_higher_when_it_is_worse(measured: list[Any]) -> None:
    (sentence,) = compare([BASE, OTHER], metric="loss").sentences()
    assert "loss " in sentence
    assert " higher on average over 2 seeds" in sentence
    (sentence,) = compare([OTHER, BASE], metric="loss").sentences()
    assert " lower on average over 2 seeds" in sentence


def test_each_further_side_has_a_sentence_equal_ones_say_so_and_one_seed_bounds_nothing(measured: list[Any]) -> None:
    same, other = compare([BASE, dataclasses.replace(BASE, label="same"), OTHER], seeds=[1]).sentences()
    assert same.startswith("same: ")
    assert same.endswith("accuracy equal on average over 1 seed (one seed bounds nothing).")
    assert other.startswith("B.json: ")


def test_a_seed_that_diverged_on_one_side_is_no_pair(monkeypatch: pytest.MonkeyPatch, measured: list[Any]) -> None:
    def sometimes_diverging(task: Any, request: RunRequest, **options: Any) -> RunResult:
        result = training.run_task(task, request, **options)
        bad = request.config is OTHER.config and request.seed == 3
        return dataclasses.replace(result, metric=math.nan, diverged=True) if bad else result

    monkeypatch.setattr(comparison, "run_task", sometimes_diverging)
    result = compare([BASE, OTHER])
    assert result.sentences()[0].endswith("(one seed bounds nothing); B.json diverged on 1 of 2 seeds.")
    side = result.sides[1]
    assert math.isnan(side.metrics[0])
    assert side.drop is not None
    assert side.drop.n_pairs == 1
    only = compare([BASE, OTHER], seeds=[3])
    assert only.sentences()[0].endswith("on both sides; B.json diverged on 1 of 1 seeds.")


def test_too_little_to_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 configurations, got 1"):
        compare([BASE])
    with pytest.raises(ValueError, match="at least 1 seed"):
        compare([BASE, OTHER], seeds=[])


def test_speed_is_really_measured() -> None:
    result = compare([BASE, OTHER], seeds=[1], steps=2)
    speed = result.sides[1].speed
    assert speed is not None
    assert 0 < speed.low <= speed.ratio <= speed.high < math.inf
