"""The rule in its two forms: laws, agreement, and the recorded sequences of the reference's functional scaler."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden_files import golden_paths, load_json
from tests.scaling.host_reads import forbid_host_reads
from tests.scaling.plain_rule import plain_next
from workbench.core.arguments import checked_number
from workbench.loss_scale import ScalePolicy, ScaleState, next_scale
from workbench.loss_scale.rule import (
    FLOAT32_MAX,
    checked_bounds,
    checked_growth_ceiling,
    checked_init,
    checked_window,
    next_scales,
)

TRACES = [load_json(path) for path in golden_paths("loss_scale_traces*.json")]


@dataclass(frozen=True)
class Rule:
    """A rule without checks: goldens begin where `ScalePolicy` would refuse."""

    factor: float
    window: int
    minimum: float = 1.0
    maximum: float | None = None


policies = st.builds(
    lambda exponent, factor, window, below, above: ScalePolicy(
        init=2.0**exponent,
        factor=factor,
        window=window,
        minimum=2.0 ** (exponent - below),
        maximum=None if above is None else 2.0 ** (exponent + above),
    ),
    exponent=st.integers(0, 20),
    factor=st.sampled_from([2.0, 1.5, 4.0]),
    window=st.integers(1, 6),
    below=st.integers(0, 6),
    above=st.none() | st.integers(0, 6),
)


def run(state: ScaleState, overflows: list[bool], rule: Any, **options: Any) -> list[float]:
    scales = []
    for overflowed in overflows:
        state = next_scale(state, overflowed, rule, **options)
        scales.append(state.scale)
    return scales


@pytest.mark.parametrize("traces", TRACES)
def test_golden_sequences_of_the_functional_scaler(traces: dict[str, Any]) -> None:
    for case in traces["cases"]:
        rule, overflows = Rule(case["factor"], case["window"]), [bool(flag) for flag in case["overflow"]]
        scales = run(ScaleState(case["init"]), overflows, rule)
        assert scales == pytest.approx(case["functional_scaler"]["scale"], rel=1e-6), case["init"]
    long = traces["long_window"]
    overflows = [step in long["overflow_steps"] for step in range(long["n_steps"])]
    scales = run(ScaleState(long["init"]), overflows, Rule(long["factor"], long["window"]))
    changes = [[step, scale] for step, scale in enumerate(scales) if step == 0 or scale != scales[step - 1]]
    np.testing.assert_allclose(changes, long["functional_scaler_changes"], rtol=1e-6)


groups = st.lists(
    st.tuples(
        st.floats(2.0**-20, FLOAT32_MAX, width=32) | st.sampled_from([1.0, 2.0**24, math.inf]),
        st.integers(1, 8),
        st.booleans(),
    ),
    max_size=6,
)
ceilings: Any = st.sampled_from(["finite", "none"])


@pytest.mark.parametrize("traces", TRACES)
def test_golden_growth_stops_before_infinity_unless_asked(traces: dict[str, Any]) -> None:
    for key, ceiling in (("functional", "finite"), ("update_cell", "none")):
        expected = [float(scale) for scale in traces["growth_to_inf"][key]]
        factor = expected[1] / expected[0]
        state, rule = ScaleState(expected[0] / factor), Rule(factor, 1)
        scales = run(state, [False] * len(expected), rule, growth_ceiling=ceiling)
        # Host numbers go on where float32 has ended.
        assert [scale if scale <= FLOAT32_MAX else math.inf for scale in scales] == expected


@settings(max_examples=40)
@given(
    groups=groups,
    factor=st.floats(1.0009765625, 2.0**120, width=32),
    window=st.integers(1, 6),
    minimum=st.floats(2.0**-30, 2.0**20, width=32),
    maximum=st.none() | st.floats(2.0**-10, FLOAT32_MAX, width=32),
    ceiling=ceilings,
)
def test_host_and_device_agree_bit_for_bit_on_a_vector_of_scales(
    groups: list[tuple[float, int, bool]],
    factor: float,
    window: int,
    minimum: float,
    maximum: float | None,
    ceiling: Any,
) -> None:
    kinds = (np.float32, np.int64, np.bool_)
    scales, steps, overflowed = (np.array([row[i] for row in groups], dtype=kind) for i, kind in enumerate(kinds))
    rule: dict[str, Any] = {"window": window, "growth_ceiling": ceiling}
    numbers: dict[str, Any] = {"minimum": minimum, "maximum": maximum}
    on_host_bounds = {name: None if n is None else np.float32(n) for name, n in numbers.items()}
    on_host, restarted = next_scales(scales, steps, overflowed, factor=np.float32(factor), **rule, **on_host_bounds)
    assert on_host.dtype == np.float32
    vectors = {name: None if n is None else torch.full((len(scales),), n) for name, n in numbers.items()}
    for bounds in (numbers, vectors):
        with forbid_host_reads():
            tensors = map(torch.tensor, (scales, steps, overflowed))
            on_device, anew = next_scales(*tensors, factor=factor, **rule, **bounds)
        assert on_device.numpy().tobytes() == on_host.tobytes()
        assert anew.tolist() == restarted.tolist()


@settings(max_examples=40)
@given(policies, groups, ceilings)
def test_every_scale_of_a_vector_follows_the_rule_of_a_single_one(
    policy: ScalePolicy, groups: list[tuple[float, int, bool]], ceiling: Any
) -> None:
    rule: dict[str, Any] = {name: getattr(policy, name) for name in ("factor", "window", "minimum", "maximum")}
    columns = [np.array(column) for column in zip(*groups, strict=True)] or [np.zeros(0)] * 2 + [np.zeros(0, bool)]
    moved, restarted = next_scales(*columns, **rule, growth_ceiling=ceiling)
    for (scale, counted, overflowed), after, anew in zip(groups, moved, restarted, strict=True):
        expected = plain_next(scale, counted - 1, overflowed, policy, ceiling)
        assert (after, 0 if anew else counted) == expected
        state = next_scale(ScaleState(scale, counted - 1), overflowed, policy, growth_ceiling=ceiling)
        assert (state.scale, state.finite_steps) == expected


@settings(max_examples=40)
@given(st.floats(1.0, 2.0**100, width=32), st.floats(0.5, 0.984375, width=32))
def test_a_ratio_of_its_own_for_the_fall_is_multiplied_in_float32(scale: float, ratio: float) -> None:
    now = torch.tensor([scale]), torch.tensor([1]), torch.tensor([True])
    moved, _ = next_scales(*now, factor=2.0, window=1, minimum=0.0, reduce_ratio=ratio)
    assert moved.item() == np.float32(scale) * np.float32(ratio)


@pytest.mark.parametrize(
    ("check", "value", "error"),
    [
        (checked_init, 0.5, ValueError),
        (checked_init, math.inf, ValueError),
        (checked_init, "8", TypeError),
        (partial(checked_number, above=1.0), 1, ValueError),
        (partial(checked_number, above=1.0), math.nan, ValueError),
        (partial(checked_number, above=1.0), True, TypeError),
        (checked_window, 0, ValueError),
        (checked_window, 1.5, TypeError),
        (checked_window, True, TypeError),
    ],
)
def test_bad_arguments_are_named_in_the_message(check: Any, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"`mine`.*got.*{value!r}"):
        check("mine", value)


@pytest.mark.parametrize(
    ("minimum", "maximum", "error"),
    [
        (0.0, None, ValueError),
        (9.0, None, ValueError),
        (1.0, 7.0, ValueError),
        (1.0, math.nan, ValueError),
        ("1", None, TypeError),
    ],
)
def test_bounds_must_enclose_the_initial_scale(minimum: Any, maximum: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"`m(in|ax)imum` must"):
        checked_bounds(8.0, minimum, maximum)
    with pytest.raises(ValueError, match='"finite" or "none"'):
        checked_growth_ceiling("infinite")
