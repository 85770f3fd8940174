"""Runs over two ranks against one rank with the joint batch."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from tests.experiments.small_tasks import BATCH_SIZE, small_task
from tests.kit.configurations import accumulating, freezing
from tests.kit.runs import read_back, run_task
from tests.ranks import Ranks
from workbench.config import BoostConfig
from workbench.core import distributed as ranks
from workbench.runs import read_run
from workbench.tasks import Task
from workbench.training.compare import Side, compare_configs
from workbench.training.run import RunProgress, RunResult
from workbench.training.setup import prepare
from workbench.training.speed import measure_speed_ratio

pytestmark = pytest.mark.slow  # starting ranks takes seconds

CPU = torch.device("cpu")
FREEZING = freezing(2, steps=16)
CONFIGS: dict[str, dict[str, Any]] = {
    "nothing": {"boost": {"mode": "disable_all"}},
    "freezing": FREEZING,
    "accumulation": accumulating(2),
}


def _sgd(named: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    return SGD(named, lr=0.1)


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2))


def _points(joint: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(24, BATCH_SIZE, 4, generator=generator)
    y = (x.sum(dim=2) > 0).long()
    return [(a.reshape(-1, 4), b.reshape(-1)) for a, b in zip(x.chunk(24 // joint), y.chunk(24 // joint), strict=True)]


def smooth_task(joint: int) -> Task:
    """Return a task without BatchNorm and dropout, whose batches are so many of the plain ones in one."""
    return Task(
        name="smooth",
        model=_model,
        loss=nn.CrossEntropyLoss(),
        optimizer=_sgd,
        train=functools.partial(_points, joint),
        evaluate=functools.partial(_points, 1),
        metric="loss",
        data_hash="points 1",
    )


def _run(config: dict[str, Any], out: str | None = None, joint: int = 1, steps: int = 8, **options: Any) -> RunResult:
    folder = None if out is None else Path(out)
    settings = BoostConfig.from_dict({"boost": {"mode": "disable_all"}} | config)
    return run_task(smooth_task(joint), settings, level="O1", steps=steps, seed=3, device=CPU, out=folder, **options)


def _column(result: RunResult, name: str) -> Tensor:
    return torch.tensor(read_back(result).steps[name].to_numpy())


@pytest.mark.parametrize("name", CONFIGS)
def test_two_ranks_train_as_one_with_the_joint_batch(pair: Ranks, tmp_path: Path, name: str) -> None:
    both = pair.run(_run, CONFIGS[name], str(tmp_path / "two"))
    alone = _run(CONFIGS[name], str(tmp_path / "one"), joint=2)
    assert both[0] == both[1], "every rank gets the same result"
    assert both[0].metric == pytest.approx(alone.metric, rel=1e-5)
    assert list((tmp_path / "two").iterdir()) == [both[0].path], "one run directory"
    torch.testing.assert_close(_column(both[0], "loss"), _column(alone, "loss"), rtol=1e-5, atol=0)
    assert (_column(both[0], "samples") == 2 * BATCH_SIZE).all()
    assert _column(both[0], "frozen_groups").tolist() == _column(alone, "frozen_groups").tolist()
    torch.testing.assert_close(
        _column(both[0], "grad_norm"), _column(alone, "grad_norm"), rtol=1e-4, atol=0, equal_nan=True
    )
    assert [read_run(one.path).environment["world_size"] for one in (both[0], alone) if one.path] == [2, 1]


def _weights_and_noise(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    prepared = prepare(small_task(), BoostConfig(), level="O0", seed=seed, device=CPU, steps=4)
    weight = next(prepared.boosted.model.parameters()).detach().clone()
    batch = next(iter(small_task().batches(seed)))[0]
    return weight, torch.rand(4), batch


def test_ranks_begin_with_the_same_weights_but_draw_their_own_noise(pair: Ranks) -> None:
    (weight, noise, batch), (other_weight, other_noise, other_batch) = pair.run(_weights_and_noise, 5)
    alone_weight, alone_noise, alone_batch = _weights_and_noise(5)
    assert torch.equal(weight, other_weight)
    assert torch.equal(weight, alone_weight)
    assert torch.equal(noise, alone_noise), "rank 0 draws what it would draw alone"
    assert not torch.equal(noise, other_noise)
    assert torch.equal(batch, alone_batch)
    assert not torch.equal(batch, other_batch)


def _stop_on_rank(who: int, at: int, out: str) -> RunResult:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return ranks.rank() == who and asked >= at

    return _run({}, out, steps=20, stop=stop)


@pytest.mark.parametrize("who", [0, 1])
def test_a_stop_of_any_rank_ends_all_at_the_same_step(pair: Ranks, tmp_path: Path, who: int) -> None:
    results = pair.run(_stop_on_rank, who, 5, str(tmp_path))
    assert [(one.stopped, one.steps) for one in results] == [(True, 6)] * 2, "one step after it was asked for"
    assert results[0].message == "stopped on request after 6 steps"
    assert results[0].path is not None
    assert read_run(results[0].path).summary["state"] == "stopped"


def _pruned_and_watched() -> tuple[RunResult, list[int], list[int]]:
    evaluated: list[int] = []
    seen: list[RunProgress] = []

    def on_evaluation(step: int, metric: float) -> bool:
        evaluated.append(step)
        return step == 4

    result = _run({}, evaluate_every=2, on_evaluation=on_evaluation, on_progress=seen.append)
    return result, evaluated, [progress.step for progress in seen]


def test_rank_0_alone_evaluates_reports_and_is_asked(pair: Ranks) -> None:
    (result, evaluated, seen), (other, other_evaluated, other_seen) = pair.run(_pruned_and_watched)
    assert result.steps == other.steps == 4
    assert result == other
    assert [step for step, _ in result.curve] == evaluated == [2, 4]
    assert seen
    assert other_evaluated == other_seen == []


def _poisoned(config: dict[str, Any], who: int, out: str) -> RunResult:
    task = small_task(poison_from=5 if ranks.rank() == who else None, poison=math.inf)
    return run_task(task, BoostConfig.from_dict(config), steps=12, device=CPU, out=Path(out))


def test_a_loss_that_is_not_finite_on_one_rank_ends_all(pair: Ranks, tmp_path: Path) -> None:
    results = pair.run(_poisoned, {}, 1, str(tmp_path))
    assert [one.diverged for one in results] == [True, True]
    assert repr(results[0]) == repr(results[1])
    assert results[0].message == "step 5: the loss is inf; training diverged"


def test_an_overflow_on_one_rank_makes_all_skip(pair: Ranks, tmp_path: Path) -> None:
    config = {"loss_scale": {"kind": "dynamic", "init": 8.0, "window": 100, "collapse_after": 3}}
    results = pair.run(_poisoned, config, 1, str(tmp_path))
    assert repr(results[0]) == repr(results[1])
    assert results[0].diverged
    assert "loss scale" in results[0].message
    overflow = _column(results[0], "overflow")
    assert not overflow[:5].any()
    assert overflow[5:].all()


def _speed() -> Any:
    sides = (BoostConfig(), "O0"), (BoostConfig.from_dict(FREEZING), "O1")
    return measure_speed_ratio(smooth_task(1), *sides, device=CPU, rounds=2, steps_per_block=2, precision=0.0)


def test_a_speed_ratio_is_rank_0s_on_every_rank(pair: Ranks) -> None:
    first, other = pair.run(_speed)
    assert first == other
    assert first.rounds == 8
    assert 0 < first.low <= first.ratio <= first.high


def _comparison(out: str) -> Any:
    sides = [Side("O0", BoostConfig(), "O0"), Side("accumulation", BoostConfig.from_dict(accumulating(2)))]
    return compare_configs(smooth_task(1), sides, seeds=[0, 1], steps=4, device=CPU, out=Path(out))


@pytest.mark.long
def test_a_comparison_is_the_same_on_every_rank(pair: Ranks, tmp_path: Path) -> None:
    first, other = pair.run(_comparison, str(tmp_path))
    assert first == other
    assert len(list(tmp_path.iterdir())) == 4, "a run directory per side and seed"
