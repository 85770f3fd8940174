"""Replay against the naive loop over steps, for random thresholds and policies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.scaling.plain_rule import plain_next
from workbench.loss_scale import ScalePolicy, replay, simulate
from workbench.loss_scale.rule import FLOAT32_MAX


@st.composite
def policies(draw: st.DrawFn) -> ScalePolicy:
    init = draw(st.sampled_from([1.0, 3.0, 8.0, 2.0**20, 2.0**126]))
    maximum = draw(st.none() | st.sampled_from([1.0, 1.3, 4.0]))
    return ScalePolicy(
        init=init,
        factor=draw(st.sampled_from([2.0, 1.5, 4.0])),
        window=draw(st.integers(1, 9) | st.just(100)),
        minimum=init * draw(st.sampled_from([1.0, 0.3, 2.0**-8])),
        maximum=None if maximum is None else min(init * maximum, FLOAT32_MAX),
        kind=draw(st.sampled_from(["dynamic", "dynamic", "fixed"])),
    )


limits = st.lists(st.sampled_from([0.0, 0.5, 2.0, 3.0, 16.0, 2.0**18, 2.0**22, 2.0**127, math.inf]), max_size=120).map(
    lambda values: np.array(values, dtype=np.float64)
)


def naive(threshold: NDArray[np.float64], policy: ScalePolicy) -> tuple[NDArray[np.float64], list[int], float]:
    """Return the scale of every step, the overflow steps and the final scale, one step after the other."""
    scale, finite_steps, used, overflows = policy.init, 0, [], []
    for step, limit in enumerate(threshold.tolist()):
        used.append(scale)
        overflowed = scale > limit
        if overflowed:
            overflows.append(step)
        if policy.kind == "dynamic":
            scale, finite_steps = plain_next(scale, finite_steps, overflowed, policy)
    return np.array(used), overflows, scale


def check(threshold: NDArray[np.float64], chosen: list[ScalePolicy]) -> None:
    at = np.arange(len(threshold))[::-2].repeat(2)  # neither sorted nor without repetition
    result = simulate(threshold, chosen, at=at)
    for index, policy in enumerate(chosen):
        used, overflows, final = naive(threshold, policy)
        assert result.overflows[index] == len(overflows)
        assert result.final_scale[index] == final
        trace = result.trace(index)
        assert trace.overflow_steps.tolist() == overflows
        assert trace.per_step().tolist() == used.tolist()
        assert result.scale_at[index].tolist() == used[at].tolist()
        assert np.all(np.diff(trace.steps) > 0)
        assert np.all(np.diff(trace.scales) != 0)
        if len(threshold):
            assert result.wasted_share[index] == len(overflows) / len(threshold)
            assert result.mean_log2_scale[index] == pytest.approx(np.log2(used).mean(), rel=1e-12, abs=1e-12)


@settings(max_examples=40)
@given(limits, st.lists(policies(), min_size=1, max_size=4))
def test_replay_equals_the_naive_loop(threshold: NDArray[np.float64], chosen: list[ScalePolicy]) -> None:
    check(threshold, chosen)


def noisy(n: int) -> NDArray[np.float64]:
    """Return thresholds that wander, with a stretch on the floor and one without any limit."""
    rng = np.random.default_rng(5)
    threshold: NDArray[np.float64] = np.exp2(rng.normal(12.0, 1.5, n))
    threshold[n // 3 : n // 3 + 40] = 0.0
    threshold[n // 2 : n // 2 + n // 8] = math.inf
    return threshold


@pytest.mark.parametrize("factor", [2.0, 1.5, 1.1])
def test_scales_are_the_same_to_the_last_bit(factor: float) -> None:
    chosen = [ScalePolicy(init=2.0**16, factor=factor, window=window) for window in (1, 2, 3, 7, 8, 30, 40, 10**12)]
    chosen += [ScalePolicy(init=3.0, factor=factor, window=w, maximum=2.0**13, minimum=2.5) for w in (1, 3)]
    check(noisy(4001), chosen)


def test_steps_on_which_no_scale_can_move_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: Any, **rule: Any) -> Any:
        calls.append(arguments)
        return original(*arguments, **rule)

    original = replay.next_scales
    monkeypatch.setattr(replay, "next_scales", counted)
    result = simulate(np.full(100_000, math.inf), [ScalePolicy(init=1.0, window=window) for window in (1000, 1500)])
    assert len(calls) == 100 + 66 - 33  # growths of either, less those of both at once
    assert result.final_scale.tolist() == [2.0**100, 2.0**66]


def test_logarithms_of_tiny_scales_do_not_underflow() -> None:
    threshold = np.zeros(6000)
    policy = ScalePolicy(init=1.0, factor=4.0, window=1, minimum=2.0**-600)
    result = simulate(threshold, [policy])
    assert result.mean_log2_scale[0] == pytest.approx(np.log2(naive(threshold, policy)[0]).mean())


def test_no_policies_and_no_steps_give_empty_results() -> None:
    assert simulate([1.0, 2.0], []).overflows.shape == (0,)
    result = simulate([], [ScalePolicy(init=8.0)])
    assert result.overflows.tolist() == [0]
    assert result.wasted_share.tolist() == [0.0]
    assert result.mean_log2_scale.tolist() == [3.0]
    assert result.trace(0).per_step().tolist() == []


def test_equal_policies_compare_equal_whatever_the_number_type() -> None:
    assert ScalePolicy(init=8, factor=2, window=3) == ScalePolicy(init=np.float64(8.0), factor=2.0, window=np.int64(3))


def test_what_is_no_run_no_step_of_it_and_no_policy_is_refused() -> None:
    threshold: Any
    for threshold in ([math.nan], [-1.0], [[1.0]]):
        with pytest.raises(ValueError, match="`threshold_scale` must be a vector"):
            simulate(threshold, [ScalePolicy()])
    at: Any
    for at in ([4], [-1], [0.5], [[1]]):
        with pytest.raises(ValueError, match=r"`at` must be a vector of integer steps in \[0, 4\)"):
            simulate(np.ones(4), [ScalePolicy()], at=at)
    kind: Any = "none"
    with pytest.raises(ValueError, match=r'"dynamic" or "fixed".*kind="fixed" with init=1'):
        ScalePolicy(kind=kind)


def test_a_policy_may_begin_below_one() -> None:
    result = simulate([1.0] * 4, [ScalePolicy(init=0.5, minimum=0.25, window=1)])
    assert (result.overflows.tolist(), result.final_scale.tolist()) == ([1], [2.0])
