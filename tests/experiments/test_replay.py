from __future__ import annotations

import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

from tests.kit.runs import read_back, run_task
from workbench.config import BoostConfig
from workbench.loss_scale import ScalePolicy, simulate
from workbench.runs import Run
from workbench.runs import replay as experiments_replay
from workbench.runs.replay import _count, estimate_thresholds, replay
from workbench.tasks import Task

HALF_MAX = 65504.0
POLICIES = [
    ScalePolicy(init=2.0**24, window=20),
    ScalePolicy(init=2.0**4, window=5),
    ScalePolicy(init=2.0**16, factor=4.0, window=7, maximum=2.0**18),
    ScalePolicy(init=2.0**12, kind="fixed"),
]


def recorded(threshold: np.ndarray, policy: ScalePolicy, *, headroom_log2: float = 0.0, histograms: Any = None) -> Run:
    """Return the run that this policy would have recorded if each window overflowed beyond its threshold."""
    trace = simulate(threshold, [policy]).trace(0)
    overflow = np.zeros(len(threshold), dtype=bool)
    overflow[trace.overflow_steps] = True
    # What overflows is `headroom` larger than the gradients that are recorded.
    amax = HALF_MAX / threshold / 2.0**headroom_log2
    steps = pd.DataFrame(
        {
            "step": np.arange(len(threshold)),
            "loss_scale": trace.per_step().astype(np.float32),  # as training rounds it
            "overflow": overflow,
            "grad_amax": np.where(overflow, np.nan, amax),
            "grad_exponents": [[] for _ in threshold] if histograms is None else histograms,
        }
    )
    return Run(Path("recorded"), {}, {}, {}, steps, pd.DataFrame(), True)


def wandering(n: int, seed: int = 0, noise: float = 0.0) -> np.ndarray:
    """Return thresholds around 2**15 that drift by octaves over the run."""
    rng = np.random.default_rng(seed)
    drift = np.cumsum(rng.normal(0, 0.05, n))
    return np.asarray(np.exp2(15 + drift + noise * rng.standard_normal(n)))


def test_a_fixed_scale_that_is_too_large_at_first_may_never_get_on() -> None:
    threshold = np.r_[np.full(20, 2.0**10), np.full(80, 2.0**14)]  # gradients shrink once the first updates are made
    run = recorded(threshold, ScalePolicy(init=2.0**8, kind="fixed"))
    table = replay(run, [ScalePolicy(init=2.0**12, kind="fixed"), ScalePolicy(init=2.0**12, window=50)]).table
    assert table["overflows"].tolist() == [20, 2]  # on the recorded trajectory
    assert table["overflows_high"][0] == 100  # on its own: no update, hence no smaller gradient
    assert table["overflows_low"][0] <= 20
    assert table["overflows_high"][1] < 20


@pytest.mark.parametrize("n_policies", [1, 2])
@pytest.mark.parametrize("column", ["loss_scale", "grad_amax"])
def test_a_damaged_run_with_numbers_without_bounds_is_replayed(n_policies: int, column: str) -> None:
    run = recorded(wandering(100), ScalePolicy(init=2.0**8))
    run.steps.loc[40:70, column] = math.inf
    table = replay(run, [ScalePolicy(init=2.0**8)] * n_policies).table
    assert (table["overflows_high"] >= table["overflows"]).all()


def test_where_nothing_overflowed_predictions_equal_the_exact_simulation() -> None:
    threshold = wandering(400)
    run = recorded(threshold, ScalePolicy(init=1.0, kind="fixed"))
    assert not run.steps["overflow"].any()
    np.testing.assert_allclose(estimate_thresholds(run).scale, threshold, rtol=1e-12)
    expected = simulate(threshold, POLICIES)
    table = replay(run, POLICIES).table
    assert table["overflows"].tolist() == expected.overflows.tolist()
    assert table["final_scale"].tolist() == expected.final_scale.tolist()
    np.testing.assert_allclose(table["mean_log2_scale"], expected.mean_log2_scale)
    np.testing.assert_allclose(table["wasted_share"], expected.overflows / 400)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    init=st.sampled_from([4, 10, 16, 24]),
    factor=st.sampled_from([2.0, 3.0, 10.0, 1.1]),
    window=st.integers(1, 60),
)
def test_a_replay_of_the_recorded_policy_gives_its_own_overflows(
    seed: int, init: int, factor: float, window: int
) -> None:
    policy = ScalePolicy(init=2.0**init, factor=factor, window=window)
    run = recorded(wandering(150, seed, noise=1.0), policy)
    result = replay(run, [policy])
    row = result.table.iloc[0]
    assert row["overflows"] == result.recorded_overflows == int(run.steps["overflow"].sum())
    assert row["overflows_low"] <= row["overflows"] <= row["overflows_high"]
    assert result.windows == 150


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), window=st.integers(5, 40), factor=st.sampled_from([2.0, 3.0, 1.1]))
def test_observed_windows_bound_every_threshold(seed: int, window: int, factor: float) -> None:
    policy = ScalePolicy(init=2.0**20, factor=factor, window=window)
    run = recorded(wandering(120, seed, noise=1.5), policy, headroom_log2=0.5)
    scale = run.steps["loss_scale"].to_numpy()
    overflow = run.steps["overflow"].to_numpy()
    thresholds = estimate_thresholds(run).scale
    assert (thresholds[overflow] < scale[overflow]).all()
    assert (thresholds[~overflow] >= scale[~overflow]).all()


@pytest.mark.parametrize("headroom", [-3.0, 2.5, 6.0])
def test_headroom_of_gradients_that_are_not_recorded_is_calibrated(headroom: float) -> None:
    threshold = wandering(2000, noise=0.3)
    run = recorded(threshold, ScalePolicy(init=2.0**24, window=10), headroom_log2=headroom)
    found = estimate_thresholds(run)
    assert found.calibrated
    assert abs(found.headroom_log2 - headroom) < 0.15
    finite = ~run.steps["overflow"].to_numpy()
    assert np.median(np.abs(np.log2(found.scale[finite] / threshold[finite]))) < 0.15
    other = [ScalePolicy(init=2.0**10, window=25), ScalePolicy(init=2.0**20, window=100)]
    expected = simulate(threshold, other).overflows
    table = replay(run, other).table
    assert (table["overflows_low"] <= expected).all()
    assert (expected <= table["overflows_high"]).all()
    # Taken at face value, the recorded gradients miss by a factor of 2**headroom.
    naive = simulate(threshold * 2.0**headroom, [ScalePolicy(init=2.0**15, kind="fixed")]).overflows[0]
    right = simulate(threshold, [ScalePolicy(init=2.0**15, kind="fixed")]).overflows[0]
    told = replay(run, [ScalePolicy(init=2.0**15, kind="fixed")]).table["overflows"][0]
    assert abs(told - right) < 0.2 * abs(naive - right)


def test_an_uncalibrated_run_says_so_and_keeps_to_what_it_saw() -> None:
    threshold = np.full(50, 2.0**15)
    run = recorded(threshold, ScalePolicy(init=2.0**10, window=1000))
    run.steps["grad_amax"] = HALF_MAX / 2.0**8  # as if 2**10 had been too much, and yet nothing overflowed
    found = estimate_thresholds(run)
    assert not found.calibrated
    assert found.error_log2 == 1.0
    assert found.scale == pytest.approx(2.0**10, rel=1e-4)
    table = replay(run, [ScalePolicy(init=2.0**10, kind="fixed"), ScalePolicy(init=2.0**14, kind="fixed")]).table
    assert table["overflows"].tolist() == [0, 50]


def test_only_gradients_computed_in_float16_count_when_they_are_known() -> None:
    threshold = wandering(60)
    run = recorded(threshold, ScalePolicy(init=1.0, kind="fixed"))
    run.steps["amp.float16_grad_amax"] = run.steps["grad_amax"]
    run.steps["grad_amax"] *= 1000.0  # an embedding's, in float32
    np.testing.assert_allclose(estimate_thresholds(run).scale, threshold, rtol=1e-12)


def test_micro_batches_that_end_no_window_are_left_out() -> None:
    threshold = wandering(40)
    run = recorded(threshold, ScalePolicy(init=2.0**18, window=4))
    steps = run.steps.loc[run.steps.index.repeat(2)].reset_index(drop=True)
    steps["step"] = np.arange(80)
    first = steps["step"] % 2 == 0
    steps.loc[first, "grad_amax"] = np.nan
    steps.loc[first, "overflow"] = False
    doubled = Run(Path("doubled"), {}, {}, {}, steps, pd.DataFrame(), True)
    found = estimate_thresholds(doubled)
    assert found.steps.tolist() == list(range(1, 80, 2))
    assert found.scale.tolist() == estimate_thresholds(run).scale.tolist()


def test_underflow_follows_the_scale_of_each_policy() -> None:
    # All elements lie in [2**-30, 2**-29): lost below float16's 2**-24 unless the scale is at least 2**6.
    histogram = {"group": "g", "lowest": -30, "counts": [10], "zeros": 3, "nonfinite": 0}
    histograms: list[Any] = [[histogram] if step % 5 == 0 else [] for step in range(40)]
    run = recorded(np.full(40, 2.0**20), ScalePolicy(init=2.0**10, window=1000), histograms=histograms)
    policies = [ScalePolicy(init=2.0**e, kind="fixed") for e in (2, 6, 12)] + [ScalePolicy(init=2.0**3, window=10)]
    share = replay(run, policies).table["underflow_share"].tolist()
    assert share[:3] == [1.0, 0.0, 0.0]
    # 2**3, 2**4, 2**5, then 2**6 in the last ten steps: two of eight histograms are saved.
    assert share[3] == pytest.approx(6 / 8)
    assert math.isnan(replay(recorded(np.full(9, 4.0), policies[0]), policies[:1]).table["underflow_share"][0])


def test_recorded_histograms_make_the_table_that_counting_one_by_one_makes() -> None:
    rng = np.random.default_rng(4)
    histograms: list[Any] = [
        [
            {"group": str(group), "lowest": int(rng.integers(-50, 9)), "counts": rng.integers(0, 2**40, size).tolist()}
            for group, size in enumerate(rng.integers(0, 30, rng.integers(0, 4)))
        ]
        for _ in range(60)
    ]
    run = recorded(np.full(60, 4.0), ScalePolicy(init=1.0, kind="fixed"), histograms=histograms)
    at, table = experiments_replay.recorded_exponents(run, estimate_thresholds(run))
    assert at.tolist() == [step for step, cell in enumerate(histograms) if cell]
    for row, cell in zip(table.counts.tolist(), filter(None, histograms), strict=True):
        expected: Counter[int] = Counter()
        for one in cell:
            expected += Counter(dict(enumerate(one["counts"], start=one["lowest"])))
        assert Counter(dict(enumerate(row, start=table.lowest))) == expected
    some, fewer = experiments_replay.recorded_exponents(run, estimate_thresholds(run), most=5)
    assert some.tolist() == at[np.linspace(0, len(at) - 1, 5).astype(int)].tolist()
    assert fewer.counts.sum() == table.counts[np.isin(at, some)].sum()


def test_underflow_is_the_mean_over_steps_whatever_is_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    histograms: list[Any] = [
        [
            {"group": group, "lowest": -40, "counts": rng.integers(0, 9, 30).tolist(), "zeros": 1, "nonfinite": 0}
            for group in "ab"
        ]
        if step % 3
        else []
        for step in range(200)
    ]
    histograms[50] = [{"group": "a", "lowest": 0, "counts": [], "zeros": 7, "nonfinite": 0}]  # no share to speak of
    threshold = wandering(200, noise=1.0)
    run = recorded(threshold, ScalePolicy(init=1.0, kind="fixed"), histograms=histograms)
    policies = [*POLICIES, ScalePolicy(init=2.0**3, window=1), ScalePolicy(init=2.0**9, factor=1.5, window=2)]
    expected = []
    for index in range(len(policies)):
        scales = simulate(threshold, policies).trace(index).per_step()
        shares = []
        for scale, found in zip(scales, histograms, strict=True):
            counts = sum((np.array(histogram["counts"]) for histogram in found if histogram["counts"]), np.zeros(30))
            if counts.any():
                # The share of each octave that lies below 2**-24 / scale, evenly spread over it.
                below = np.clip(-24 - math.log2(scale) - np.arange(-40, -10), 0, 1)
                shares.append(float((counts * below).sum() / counts.sum()))
        expected.append(np.mean(shares))
    assert 0.02 < expected[-1] < 0.9
    for cells in (1, 40, 10**6):
        monkeypatch.setattr(experiments_replay, "_TABLE_CELLS", cells)
        np.testing.assert_allclose(replay(run, policies).table["underflow_share"], expected, rtol=1e-12)


@pytest.mark.parametrize(
    "steps",
    [pd.DataFrame(), pd.DataFrame({"step": [0], "grad_amax": [math.nan], "overflow": [True], "loss_scale": [8.0]})],
    ids=["no steps", "nothing but overflows"],
)
def test_a_run_without_gradients_is_refused_in_a_sentence(steps: pd.DataFrame) -> None:
    run = Run(Path("empty"), {}, {}, {}, steps, pd.DataFrame(), True)
    with pytest.raises(ValueError, match="recorded no gradient sizes"):
        replay(run, POLICIES)


def test_no_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="`policies` is empty"):
        replay(recorded(wandering(5), POLICIES[0]), [])


@pytest.mark.long
def test_a_million_steps_under_a_hundred_policies_take_seconds() -> None:
    n = 1_000_000
    histogram = {"group": "g", "lowest": -30, "counts": [1, 5, 10, 4], "zeros": 0, "nonfinite": 0}
    histograms: list[Any] = [[histogram] if step % 500 == 0 else [] for step in range(n)]
    drift = np.cumsum(np.random.default_rng(0).normal(0, 0.003, n))
    threshold = np.exp2(15 + drift + np.random.default_rng(1).normal(0, 1.0, n))
    run = recorded(threshold, ScalePolicy(init=2.0**24, window=500), histograms=histograms)
    policies = [ScalePolicy(init=2.0**e, window=w) for e in range(5, 25) for w in (1000, 2000, 3000, 4000, 5000)]
    began = time.process_time()
    table = replay(run, policies).table
    assert len(table) == 100
    assert table["underflow_share"].notna().all()
    assert time.process_time() - began < 30


def half_task() -> Task:
    """Return a regression whose gradients leave float16 at ordinary scales: a wide layer on large targets."""

    def points(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(40):
            x = torch.randn(16, 8, generator=generator)
            yield x, 30 * x.sum(dim=1, keepdim=True) * torch.rand(16, 1, generator=generator)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 1))

    return Task(
        name="half",
        model=model,
        loss=nn.MSELoss(),
        optimizer=lambda named: SGD(named, lr=2e-4, momentum=0.9, fused=True),
        train=points,
        evaluate=points,
        metric="loss",
        data_hash="half 1",
    )


@pytest.mark.slow
@pytest.mark.parametrize("recorded_init", [24, pytest.param(6, marks=pytest.mark.long)])
def test_reruns_overflow_as_often_as_replay_says(tmp_path: Path, recorded_init: int) -> None:
    def train(init: float, window: int) -> Run:
        config = {
            "amp": {"level": "O2", "dtype": "float16"},
            "loss_scale": {"kind": "dynamic", "init": init, "window": window},
        }
        result = run_task(
            half_task(), BoostConfig.from_dict(config), steps=200, device=torch.device("cpu"), out=tmp_path
        )
        return read_back(result)

    run = train(2.0**recorded_init, 15)
    assert run.steps["amp.float16_grad_amax"].notna().sum() > 150
    policies = [
        ScalePolicy(2.0**init, window=window) for init, window in ((4, 40), (12, 8), (18, 40), (24, 8), (24, 40))
    ]
    table = replay(run, policies).table
    actual = np.array([len(train(policy.init, policy.window).overflow_steps) for policy in policies])
    assert actual.max() > 5
    assert (table["overflows_low"] <= actual).all(), (table, actual)
    assert (actual <= table["overflows_high"]).all(), (table, actual)
    assert (np.abs(table["overflows"] - actual) <= np.maximum(2, 0.2 * actual)).all(), (table, actual)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.0, 2.0**30) | st.just(math.inf), max_size=60),
    st.sampled_from([1.5, 2.0, 4.0]),
    st.integers(1, 70),
    st.sampled_from(["dynamic", "fixed"]),
)
def test_one_policy_counted_in_plain_numbers_overflows_as_often_as_it_is_simulated_to(
    limits: list[float], factor: float, window: int, kind: Any
) -> None:
    policy = ScalePolicy(init=2.0**12, factor=factor, window=window, kind=kind)
    expected = simulate(limits, [policy]).overflows
    assert [_count(policy, [1.0], limits)] == expected.tolist()
