from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.experiments.small_tasks import small_task
from workbench.config import BoostConfig
from workbench.methods.dim_reduce.pca_files import save_pca_matrix
from workbench.methods.grad_freeze.method import FreezeOpt
from workbench.optim.thor.preconditioner import Preconditioner
from workbench.tasks import Task
from workbench.training import Boosted
from workbench.training import speed as speed_ratio
from workbench.training.setup import prepare
from workbench.training.speed import (
    KeptBaseline,
    SpeedRatio,
    TimedSide,
    bootstrap_median_interval,
    measure_speed_ratio,
)

CPU = torch.device("cpu")
PLAIN = BoostConfig()
GROUPS = 9


class FakeClock:
    """A clock that only moves when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(speed_ratio, "time", fake)
    return fake


def timed_task(clock: FakeClock, cost: Any, n_layers: int = 3 * GROUPS) -> Task:
    """Return a task of which a micro-batch takes ``cost(number of parameters that are trained)`` seconds."""

    class Deep(nn.Sequential):
        def __init__(self) -> None:
            layers: list[nn.Module] = [nn.Linear(4, 4, bias=False) for _ in range(n_layers)]
            super().__init__(*layers, nn.Linear(4, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            clock.now += cost(sum(p.requires_grad for p in self.parameters()))
            return super().forward(x)

    return small_task(model=Deep)


def freezing(**options: Any) -> BoostConfig:
    section = {"param_groups": GROUPS, "freeze_type": 1, "freeze_p": 0.4, "total_steps": 200} | options
    return BoostConfig.from_dict({"boost": {"mode": "manual", "grad_freeze": True}, "grad_freeze": section})


def schedule_of(task: Task, config: BoostConfig, seed: int = 0) -> tuple[dict[int, float], dict[int, int]]:
    """Return how often each group is used, and how many parameters it trains."""
    optimizer = prepare(task, config, level="O0", seed=seed, device=CPU, steps=10).boosted.optimizer
    assert isinstance(optimizer, FreezeOpt)
    assert optimizer.strategy is not None
    counts = Counter(optimizer.strategy)
    shares = {group: count / len(optimizer.strategy) for group, count in counts.items()}
    return shares, {group: len(optimizer.group_parameters(group)) for group in range(optimizer.n_groups)}


def measure(task: Task, baseline: BoostConfig, candidate: BoostConfig, **options: Any) -> SpeedRatio:
    options = {"rounds": 3, "steps_per_block": 4} | options
    return measure_speed_ratio(task, (baseline, "O0"), (candidate, "O0"), device=CPU, **options)


def test_a_baseline_that_is_kept_is_built_and_warmed_up_once(clock: FakeClock) -> None:
    task, made, kept = timed_task(clock, lambda n: 1.0 + n), list[nn.Module](), KeptBaseline()

    def model() -> nn.Module:
        made.append(task.new_model())
        return made[-1]

    counted = replace(task, model=model)
    first, again = (measure(counted, PLAIN, freezing(), kept=kept) for _ in range(2))
    assert again == first
    assert len(made) == 3
    measure(counted, PLAIN, PLAIN, kept=kept, seed=1)  # other weights and data
    assert len(made) == 5
    kept.drop()
    measure(counted, PLAIN, PLAIN, kept=kept, seed=1)
    assert len(made) == 7


def test_a_baseline_that_is_kept_is_made_anew_before_its_schedule_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_cycle(optimizer: torch.optim.Optimizer, steps: int) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)  # raises beyond its end

    monkeypatch.setattr(speed_ratio, "_COURSE", 100)
    monkeypatch.setattr(speed_ratio, "_KEPT_PASSES", 50)
    kept = KeptBaseline()
    task = replace(small_task(), scheduler=one_cycle)
    for _ in range(4):
        measure(task, PLAIN, PLAIN, kept=kept, steps_per_block=10, precision=math.inf)


def test_a_short_run_of_large_batches_is_timed_on_a_schedule_that_does_not_end() -> None:
    short = PLAIN.with_values({"schedule.length": 0.08, "schedule.shape": "linear", "batch.factor": 4.0})
    options: Any = {"device": CPU, "seed": 0, "at_least": 1, "before_window": None}
    for config in (PLAIN, short):
        assert TimedSide(small_task(), config, "O0", **options).boosted.updates == 10_000


def test_a_baseline_is_not_kept_after_an_error(clock: FakeClock) -> None:
    task, made, kept = timed_task(clock, lambda n: 1.0 + n), list[int](), KeptBaseline()
    counted = replace(task, model=lambda: (made.append(1), task.new_model())[1])

    def stopped() -> None:
        raise InterruptedError

    measure(counted, PLAIN, PLAIN, kept=kept)
    with pytest.raises(InterruptedError):
        measure(counted, PLAIN, PLAIN, kept=kept, before_window=stopped)
    made.clear()
    measure(counted, PLAIN, PLAIN, kept=kept)
    assert len(made) == 2


def test_sides_that_are_timed_apart_have_the_ratio_of_those_that_take_turns(clock: FakeClock) -> None:
    task = timed_task(clock, lambda n: 1.0 + n)
    together, apart = (measure(task, PLAIN, freezing(), apart=apart) for apart in (False, True))
    assert apart == together


@pytest.mark.parametrize(("step", "windows"), [(1.0, 1), (0.05, 3), (0.001, 16)])
def test_a_block_takes_long_enough_beside_what_reads_ahead(clock: FakeClock, step: float, windows: int) -> None:
    options: Any = {"device": CPU, "seed": 0, "at_least": 1, "before_window": None, "block_seconds": 0.15}
    side = TimedSide(timed_task(clock, lambda n: step), PLAIN, "O0", **options)
    side.warm_up()
    began = side.position
    side.block()
    assert side.position - began == windows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "loading", "rounds"), [("prefetch", True, 4), ("prefetch", False, 12), ("as_given", True, 12)]
)
def test_longer_blocks_are_fewer(clock: FakeClock, data: str, loading: bool, rounds: int) -> None:
    candidate = PLAIN.with_values({"runtime.data": data})
    measured = measure(timed_task(clock, lambda n: 1.0), PLAIN, candidate, rounds=12, loading=loading)
    assert measured.rounds == rounds


@pytest.mark.slow
def test_what_reads_ahead_rests_while_the_other_side_trains() -> None:
    n_read = torch.zeros(1, dtype=torch.int64).share_memory_()
    task = small_task()
    sample = tuple(part[0] for part in next(task.batches(0)))

    class Counted(Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.01)  # longer than a step, so that nothing is read before it is needed
            n_read.add_(1)
            return sample

    counted = replace(task, train=DataLoader(Counted(), batch_size=2))
    ahead = PLAIN.with_values({"runtime.data": "prefetch"})
    side = TimedSide(counted, ahead, "O0", device=CPU, seed=0, at_least=1, before_window=None, loading=True)
    side.warm_up()
    for _ in range(8):  # what was read before may be used up
        side.block()
    n_before = int(n_read)
    time.sleep(0.3)
    assert int(n_read) == n_before
    for _ in range(8):  # a busy machine may have let it read ahead before it rested
        side.block()
    assert int(n_read) > n_before


@pytest.mark.parametrize("freeze_type", [0, 1])
def test_a_freezing_schedule_costs_the_mean_over_its_groups(clock: FakeClock, freeze_type: int) -> None:
    task = timed_task(clock, lambda n: 1.0 + n)  # linear in what interpolation goes along
    config = freezing(freeze_type=freeze_type)
    shares, sizes = schedule_of(task, config)
    assert len(shares) > 5  # more than are measured
    measured = measure(task, PLAIN, config)
    expected = sum(share * (1 + sizes[group]) for group, share in shares.items())
    # Groups differ by equal strides but for the last parameters; interpolation sees the measured groups only.
    assert measured.candidate_ms == pytest.approx(expected * 1e3, rel=0.01)
    assert measured.baseline_ms == pytest.approx((1 + sizes[0]) * 1e3)
    assert measured.ratio == pytest.approx(measured.candidate_ms / measured.baseline_ms)
    assert measured.low == measured.high == measured.ratio
    assert measured.rounds == 3


def test_few_groups_are_weighted_exactly(clock: FakeClock) -> None:
    task = timed_task(clock, lambda n: float(n * n))  # not linear: only measured groups can be right
    config = freezing(param_groups=3)
    shares, sizes = schedule_of(task, config)
    assert len(shares) <= 5
    expected = sum(share * sizes[group] ** 2 for group, share in shares.items())
    assert measure(task, PLAIN, config).candidate_ms == pytest.approx(expected * 1e3, rel=1e-9)


def test_at_most_five_groups_are_measured_the_ends_among_them(clock: FakeClock) -> None:
    seen: set[int] = set()

    def cost(n_trained: int) -> float:
        seen.add(n_trained)
        return 1.0

    task = timed_task(clock, cost)
    shares, sizes = schedule_of(task, freezing())
    measure(task, freezing(), freezing())
    assert len(seen) == 5
    assert {sizes[min(shares)], sizes[max(shares)]} <= seen


def test_accumulation_is_timed_by_whole_windows_per_micro_batch(clock: FakeClock) -> None:
    micro_batches = 0

    def cost(_: int) -> float:
        nonlocal micro_batches
        micro_batches += 1
        return 2.0

    accumulating = {"boost.mode": "manual", "boost.grad_accumulation": True}
    config = BoostConfig().with_values({**accumulating, "grad_accumulation.grad_accumulation_step": 4})
    measured = measure(timed_task(clock, cost), config, config, rounds=1, steps_per_block=6)
    assert measured.candidate_ms == pytest.approx(2000.0)
    assert micro_batches == 2 * 3 * 8  # two sides, warm-up of two blocks and one round; six steps are two windows


@pytest.mark.parametrize(
    ("after_a_step", "in_a_row", "expected"),
    [(3.0, 1.0, 5.0), (0.0, 9.0, 9.0)],
    ids=["the caches are a step's", "workers that cannot keep up"],
)
def test_a_batch_that_counts_is_loaded_after_a_step_as_in_a_run(
    clock: FakeClock, after_a_step: float, in_a_row: float, expected: float
) -> None:
    loads_since = 0

    def step(_: int) -> float:
        nonlocal loads_since
        loads_since = 0
        return 2.0

    task = timed_task(clock, step)

    def train(seed: int) -> Iterator[Any]:
        nonlocal loads_since
        assert callable(task.train)
        for batch in task.train(seed):
            clock.now += in_a_row if loads_since else after_a_step
            loads_since += 1
            yield batch

    measured = measure(replace(task, train=train), PLAIN, PLAIN, steps_per_block=1, loading=True)
    assert (measured.ratio, measured.baseline_ms) == (1.0, 1e3 * expected)
    assert measure(task, PLAIN, PLAIN).baseline_ms == 2e3, "unless it does not count"


@pytest.mark.parametrize(("factor", "ratio"), [(1.0, 2.0 / 5.0), (2.0, 2.0 / 5.0)])
def test_samples_that_are_kept_are_read_in_a_runs_first_epoch_alone(
    clock: FakeClock, factor: float, ratio: float
) -> None:
    """A step takes 2 seconds besides the reading of its three samples, in batches of twice the size, too."""

    class Slow(Dataset[Any]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            clock.now += 1.0
            return torch.full((4,), float(index)), index % 2

    loader = DataLoader(Slow(), batch_size=3, shuffle=True)
    task = replace(timed_task(clock, lambda _: 2.0), train=loader)
    kept = BoostConfig().with_values({"runtime.data": "resident", "batch.factor": factor})
    measured = measure(task, PLAIN, kept, steps_per_block=1, loading=True)
    assert (measured.baseline_ms, measured.ratio) == (5e3, ratio)
    assert (measured.reading_ms, measured.epoch) == (3e3, 4)
    as_given = measure(task, PLAIN, PLAIN, steps_per_block=1, loading=True)
    assert (as_given.ratio, as_given.reading_ms, as_given.epoch) == (1.0, 0.0, 0)


@pytest.mark.parametrize(("step", "slow", "counted"), [(0.003, 12, False), (0.003, 40, True), (0.2, 12, True)])
def test_slow_first_steps_do_not_count_where_they_are_short(
    clock: FakeClock, step: float, slow: int, counted: bool
) -> None:
    """The baseline's, unlike the other side's; long ones would take long to wait for."""

    class Timed(nn.Linear):
        def __init__(self, slow: int) -> None:
            super().__init__(4, 2)
            self.steps, self.slow = 0, slow

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            clock.now += 2 * step if self.steps <= self.slow else step
            return super().forward(x)

    models = [Timed(slow), Timed(0)]
    measured = measure(small_task(model=lambda: models.pop(0)), PLAIN, PLAIN, steps_per_block=1, precision=math.inf)
    assert (measured.ratio < 0.9) is counted


def test_sides_take_turns_to_be_first(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []
    seen: list[Boosted] = []
    step = Boosted.step

    def noted(self: Boosted, closure: Any = None) -> Any:
        if not any(self is boosted for boosted in seen):
            seen.append(self)
        order.append(next(i for i, boosted in enumerate(seen) if boosted is self))
        return step(self, closure)

    monkeypatch.setattr(Boosted, "step", noted)
    measure(timed_task(clock, lambda _: 1.0), PLAIN, PLAIN, rounds=4, steps_per_block=1)
    assert order == [0] * 3 + [1] * 3 + [0, 1, 1, 0] * 2  # warm-up, then A B, B A, A B, B A


def test_a_machine_that_slows_down_does_not_change_the_ratio(clock: FakeClock) -> None:
    calls = 0

    def cost(n_trained: int) -> float:
        nonlocal calls
        calls += 1
        return (1 + n_trained) * 1.01**calls  # after a hundred steps everything takes e times as long

    task = timed_task(clock, cost, n_layers=9)
    config = freezing(param_groups=3)
    shares, sizes = schedule_of(task, config)
    expected = sum(share * (1 + sizes[group]) for group, share in shares.items()) / (1 + sizes[0])
    measured = measure(task, PLAIN, config, rounds=8)
    assert measured.ratio == pytest.approx(expected, rel=0.03)
    assert measured.low <= measured.ratio <= measured.high


def test_a_noisy_machine_is_measured_longer_but_not_for_ever(clock: FakeClock) -> None:
    noise = np.random.default_rng(0)
    rounds = {}
    for spread in (0.0, 0.02, 0.5):
        task = timed_task(clock, lambda _, spread=spread: float(noise.lognormal(0.0, spread)), n_layers=1)
        rounds[spread] = measure(task, PLAIN, PLAIN, steps_per_block=1).rounds
    assert rounds[0.0] == 3
    assert 3 <= rounds[0.02] <= rounds[0.5] == 12


def test_stop_ends_after_two_rounds_at_the_earliest(clock: FakeClock) -> None:
    task = timed_task(clock, lambda _: 1.0)
    assert measure(task, PLAIN, PLAIN, rounds=50, stop=lambda: True).rounds == 2


@pytest.mark.parametrize("option", ["rounds", "steps_per_block"])
@pytest.mark.parametrize("value", [0, float("nan")])
def test_counts_below_one_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"`{option}` must be at least 1"):
        measure(small_task(), PLAIN, PLAIN, **{option: value})


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=25),
    factor=st.sampled_from([0.5, 2.0, 8.0]),
    seed=st.integers(0, 100),
)
def test_the_bootstrap_interval_holds_the_median_and_scales_with_the_values(
    values: list[float], factor: float, seed: int
) -> None:
    data = np.array(values)
    low, high = bootstrap_median_interval(data, seed)
    assert data.min() <= low <= np.median(data) <= high <= data.max()
    assert bootstrap_median_interval(data * factor, seed) == pytest.approx((low * factor, high * factor))
    narrow_low, narrow_high = bootstrap_median_interval(data, seed, level=0.5)
    assert low <= narrow_low <= narrow_high <= high


def test_the_bootstrap_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        low, high = bootstrap_median_interval(rng.lognormal(0.0, 0.2, size=12), seed=trial)
        hits += low <= 1.0 <= high
    assert 0.88 <= hits / 200 <= 1.0


def test_the_trials_of_a_line_search_are_part_of_a_step(clock: FakeClock, tmp_path: Path) -> None:
    task = timed_task(clock, lambda _: 1.0)  # only forward passes take time
    n_weights = sum(parameter.numel() for parameter in task.new_model().parameters())
    components = np.linalg.qr(np.random.default_rng(0).normal(size=(n_weights, 3)))[0].T
    path = save_pca_matrix(tmp_path / "components.npy", components)
    reducing = BoostConfig.from_dict(
        {
            "boost": {"mode": "manual", "dim_reduce": True},
            "dim_reduce": {"pca_mat_path": str(path), "n_components": 3, "line_search_trials": 4},
        }
    )
    assert 2.0 <= measure(task, PLAIN, reducing).ratio <= 5.0


@pytest.mark.parametrize(("frequency", "config"), [(2, PLAIN), (5, freezing(param_groups=3)), (100, PLAIN)])
def test_a_dear_step_counts_as_often_as_it_comes(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, frequency: int, config: BoostConfig
) -> None:
    refresh = Preconditioner.refresh

    def dear(self: Preconditioner, *arguments: Any, **options: Any) -> None:
        clock.now += 5.0
        refresh(self, *arguments, **options)

    monkeypatch.setattr(Preconditioner, "refresh", dear)
    config = config.with_values({"optimizer.name": "thor", "optimizer.frequency": frequency})
    task = timed_task(clock, lambda trained: 1.0, n_layers=9)
    measured = measure(task, PLAIN, config, steps_per_block=20)
    assert measured.ratio == pytest.approx(1.0 + 5.0 / frequency)
