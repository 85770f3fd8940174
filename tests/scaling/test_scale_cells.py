"""Scales with memory, on device and host: recorded sequences, agreement with the rule, exact resume; fixed ones."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden_files import golden_paths, load_json
from tests.scaling.host_reads import forbid_host_reads
from workbench.loss_scale import (
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    FixedLossScaleManager,
    FixedLossScaleUpdateCell,
    ScalePolicy,
    ScaleState,
    next_scale,
)

TRACES = [load_json(path) for path in golden_paths("loss_scale_traces*.json")]


def run_cell(cell: DynamicLossScaleUpdateCell, scale: torch.Tensor, overflows: list[Any]) -> list[float]:
    scales = []
    for overflowed in overflows:
        flag = torch.tensor(bool(overflowed))
        assert cell(scale, flag) is flag
        scales.append(float(scale))
    return scales


def run_manager(manager: DynamicLossScaleManager, overflows: list[Any]) -> list[float]:
    scales = []
    for overflowed in overflows:
        manager.update_loss_scale(bool(overflowed))
        scales.append(manager.get_loss_scale())
    return scales


@pytest.mark.parametrize("traces", TRACES)
def test_golden_sequences_of_cell_and_manager(traces: dict[str, Any]) -> None:
    for case in traces["cases"]:
        arguments = case["init"], case["factor"], case["window"]
        cell = DynamicLossScaleUpdateCell(*arguments, growth_ceiling="none")
        scale = torch.tensor(case["init"], dtype=torch.float32)
        last, scales = [], []
        for overflowed in case["overflow"]:
            scales += run_cell(cell, scale, [overflowed])
            last.append(int(cell.last_overflow_iter))
        # The recorded cell multiplies by the rounded reciprocal: the last bits agree for powers of two only.
        expected = [float(value) for value in case["update_cell"]["scale"]]
        assert scales == pytest.approx(expected, rel=1e-7 * len(scales)), arguments
        assert last == case["update_cell"]["last_overflow_iter"], arguments
        assert int(cell.cur_iter) == case["update_cell"]["cur_iter_end"], arguments
        scales = run_manager(DynamicLossScaleManager(*arguments, growth_ceiling="none"), case["overflow"])
        assert scales == pytest.approx([float(value) for value in case["host_manager"]["scale"]], rel=1e-6), arguments


@pytest.mark.parametrize("traces", TRACES)
def test_golden_long_window(traces: dict[str, Any]) -> None:
    long = traces["long_window"]
    hits = set(long["overflow_steps"])
    overflows = [step in hits for step in range(long["n_steps"])]
    cell = DynamicLossScaleUpdateCell(long["init"], long["factor"], long["window"])
    manager = DynamicLossScaleManager(long["init"], long["factor"], long["window"])
    for scales, expected in [
        (run_cell(cell, torch.tensor(long["init"]), overflows), long["update_cell_changes"]),
        (run_manager(manager, overflows), long["host_manager_changes"]),
    ]:
        changes = [[step, scale] for step, scale in enumerate(scales) if step == 0 or scale != scales[step - 1]]
        np.testing.assert_allclose(changes, expected, rtol=1e-6)


@pytest.mark.parametrize("traces", TRACES)
def test_golden_manager_raises_when_overflows_do_not_end(traces: dict[str, Any]) -> None:
    bad = traces["bad_step"]
    manager = DynamicLossScaleManager(bad["init"], bad["factor"], bad["window"])
    for _ in range(bad["exception"]["step"]):
        manager.update_loss_scale(True)
    assert bad["exception"]["type"] == "RuntimeError"
    with pytest.raises(RuntimeError, match=r"1001 times in a row.*lower the learning rate"):
        manager.update_loss_scale(True)
    assert bad["n_calls_before_raise"] == bad["exception"]["step"] + 1
    assert traces["bad_step_reset"]["exception"] is None  # one good step begins the count anew
    manager = DynamicLossScaleManager(2**24, 2, 2000)
    run_manager(manager, [True] * 1000 + [False] + [True] * 1000)
    assert manager.get_loss_scale() == traces["bad_step_reset"]["final"]


@pytest.mark.parametrize("traces", TRACES)
@pytest.mark.parametrize("ceiling", ["none", "finite"])
def test_golden_growth_to_infinity_and_its_prevention(traces: dict[str, Any], ceiling: Any) -> None:
    golden = traces["growth_to_inf"]
    expected = [float(scale) for scale in golden["update_cell" if ceiling == "none" else "functional"]]
    factor = expected[1] / expected[0]
    cell = DynamicLossScaleUpdateCell(2.0**100, factor, 1, growth_ceiling=ceiling)
    scale = torch.tensor(expected[0] / factor)
    assert run_cell(cell, scale, [False] * len(expected)) == expected


@pytest.mark.parametrize(
    ("call", "outcome"), [entry for traces in TRACES for entry in traces["constructor"].items()], ids=str
)
def test_golden_constructor_checks(call: str, outcome: str) -> None:
    name, arguments = call.rstrip(")").split("(")
    manager = DynamicLossScaleManager if name == "DynamicLossScaleManager" else FixedLossScaleManager
    values = [float(text) if "." in text else int(text) for text in arguments.split(",")]
    if name.startswith("Dynamic") and 0.0 < values[1] <= 1.0:
        outcome = "ValueError"  # documented difference: such a factor would grow the scale on overflow
    if outcome == "ok":
        assert manager(*values).get_loss_scale() == values[0]
    else:
        with pytest.raises({"ValueError": ValueError, "TypeError": TypeError}[outcome], match=r"must be|must lie"):
            manager(*values)


@pytest.mark.parametrize("traces", TRACES)
def test_golden_defaults_of_the_managers(traces: dict[str, Any]) -> None:
    dynamic, fixed = traces["managers"]["dynamic_defaults"], traces["managers"]["fixed_defaults"]
    for manager, scale, golden in (
        (DynamicLossScaleManager(), dynamic["init"], dynamic),
        (FixedLossScaleManager(), fixed["loss_scale"], fixed),
    ):
        assert manager.get_loss_scale() == scale
        assert manager.get_drop_overflow_update() is golden["drop"]
        assert type(manager.get_update_cell()).__name__ == golden["update_cell"]
    cell = DynamicLossScaleManager().get_update_cell()
    assert (cell.get_loss_scale(), cell.scale_factor, cell.scale_window) == (dynamic["init"], dynamic["factor"], 2000)
    without = FixedLossScaleManager(drop_overflow_update=False).get_update_cell()
    assert str(without) == fixed["update_cell_when_drop_false"]


@settings(max_examples=40)
@given(
    st.integers(0, 12),
    st.sampled_from([2.0, 4.0]),
    st.integers(1, 5),
    st.none() | st.integers(0, 8),
    st.lists(st.booleans(), max_size=40),
)
def test_cell_manager_and_rule_agree(
    exponent: int, factor: float, window: int, above: int | None, overflows: list[bool]
) -> None:
    init, minimum = 2.0**exponent, 2.0 ** (exponent - 3)
    maximum = None if above is None else 2.0 ** (exponent + above)
    policy = ScalePolicy(init=init, factor=factor, window=window, minimum=minimum, maximum=maximum)
    cell = DynamicLossScaleUpdateCell(init, factor, window, minimum=minimum, maximum=maximum)
    manager = DynamicLossScaleManager(init, factor, window, minimum=minimum, maximum=maximum)
    state, expected = ScaleState(init), []
    for overflowed in overflows:
        state = next_scale(state, overflowed, policy)
        expected.append(state.scale)
    assert run_cell(cell, torch.tensor([init]), overflows) == expected
    assert run_manager(manager, overflows) == expected


@settings(max_examples=40)
@given(st.integers(1, 5), st.lists(st.booleans(), min_size=1, max_size=30), st.data())
def test_resuming_at_any_step_changes_nothing(window: int, overflows: list[bool], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(overflows)))
    whole = DynamicLossScaleUpdateCell(64.0, 2, window)
    expected = run_cell(whole, torch.tensor(64.0), overflows)
    first = DynamicLossScaleUpdateCell(64.0, 2, window)
    scale = torch.tensor(64.0)
    run_cell(first, scale, overflows[:cut])
    second = DynamicLossScaleUpdateCell(64.0, 2, window)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert run_cell(second, scale, overflows[cut:]) == expected[cut:]
    manager = DynamicLossScaleManager(64.0, 2, window)
    run_manager(manager, overflows[:cut])
    resumed = DynamicLossScaleManager(64.0, 2, window)
    resumed.load_state_dict(manager.state_dict())
    assert run_manager(resumed, overflows[cut:]) == expected[cut:]


@settings(max_examples=30)
@given(
    scale=st.floats(1.0, 2.0**127, width=32),
    factor=st.floats(1.5, 2000.0, width=32),
    maximum=st.sampled_from([None, 2.0**127, 3.0e38]),
    ceiling=st.sampled_from(["finite", "none"]),
    window=st.integers(1, 3),
    flags=st.lists(st.sampled_from([0.0, 0.0, 1.0, math.nan]), min_size=1, max_size=12),
)
def test_the_rule_on_the_host_is_the_rule_on_the_device_bit_by_bit(
    scale: float, factor: float, maximum: float | None, ceiling: Any, window: int, flags: list[float]
) -> None:
    cells = [
        DynamicLossScaleUpdateCell(scale, factor, window, minimum=0.7, maximum=maximum, growth_ceiling=ceiling)
        for _ in range(2)
    ]
    here, there = torch.tensor(scale), torch.tensor(scale)
    for flag in map(torch.tensor, flags):
        cells[0](here, flag)
        with forbid_host_reads():
            cells[1](there, flag)
        assert torch.equal(here, there)
        assert str(cells[0].state_dict()) == str(cells[1].state_dict())


def test_counters_survive_a_cast_and_follow_the_device_of_the_scale() -> None:
    # The meta device holds no values at all: anything that read one would raise.
    cell = DynamicLossScaleUpdateCell(64.0, 2, 3).half()
    assert cell.cur_iter.dtype == torch.int64
    cell(torch.empty((), device="meta"), torch.empty((), dtype=torch.bool, device="meta"))
    assert cell.cur_iter.device.type == "meta"


@pytest.mark.parametrize("shape", [(), (1,)], ids=["scalar", "vector"])
def test_scale_is_updated_in_place_and_keeps_its_shape(shape: tuple[int, ...]) -> None:
    scale = torch.full(shape, 8.0)
    address = scale.data_ptr()
    DynamicLossScaleUpdateCell(8.0, 2, 1)(scale, torch.tensor(math.nan))
    assert scale.shape == shape
    assert scale.data_ptr() == address
    assert float(scale) == 4.0  # NaN counts as an overflow


@pytest.mark.parametrize(
    ("scale", "flag", "error"),
    [
        (torch.ones((1, 1)), torch.tensor(True), ValueError),
        (torch.ones((), dtype=torch.float64), torch.tensor(True), TypeError),
        (1.0, torch.tensor(True), TypeError),
        (torch.ones(()), True, TypeError),
        (torch.ones(()), torch.tensor([True, False]), ValueError),
    ],
)
def test_update_cell_refuses_what_it_cannot_update(scale: Any, flag: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"`(loss_scale|overflow)` must"):
        DynamicLossScaleUpdateCell(8.0, 2, 1)(scale, flag)


def test_manager_takes_any_single_flag_and_no_other() -> None:
    flag: Any
    for flag in (True, np.bool_(True), 1, torch.tensor(True), torch.tensor([1.0])):
        manager = DynamicLossScaleManager(8.0, 2, 1)
        manager.update_loss_scale(flag)
        assert manager.get_loss_scale() == 4.0
    for flag in ("yes", None, torch.tensor([True, False]), 2):
        with pytest.raises(TypeError, match="`overflow` must be a bool"):
            manager.update_loss_scale(flag)


def test_update_cell_of_a_manager_starts_from_its_present_scale_and_rule() -> None:
    manager = DynamicLossScaleManager(64.0, 4, 7, minimum=0.5, maximum=256.0, growth_ceiling="none")
    manager.update_loss_scale(True)
    cell = manager.get_update_cell()
    assert (cell.get_loss_scale(), cell.scale_factor, cell.scale_window) == (16.0, 4.0, 7)
    assert (cell.minimum, cell.maximum, cell.growth_ceiling) == (0.5, 256.0, "none")


# The fixed scale: it never moves, and says what happens on an overflow.


@pytest.mark.parametrize("traces", TRACES)
def test_golden_fixed_update_cell(traces: dict[str, Any]) -> None:
    golden = traces["fixed_update_cell"]
    cell = FixedLossScaleUpdateCell(golden["loss_scale_value"])
    scale = torch.tensor(golden["passed_scale"])
    results = [[bool(cell(scale, torch.tensor(flag))), float(scale)] for flag in golden["overflow"]]
    assert results == golden["result_and_scale"]
    assert cell.get_loss_scale() == golden["get_loss_scale"]


def test_a_fixed_scale_does_not_move_and_is_checked() -> None:
    manager = FixedLossScaleManager(256)
    manager.update_loss_scale(True)
    assert manager.get_loss_scale() == 256.0
    with pytest.raises(ValueError, match="`loss_scale` must"):
        FixedLossScaleManager(0.5)
    with pytest.raises(TypeError, match="`drop_overflow_update` must be a bool"):
        FixedLossScaleManager(128.0, "yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`loss_scale_value` must"):
        FixedLossScaleUpdateCell(math.nan)
    with pytest.raises(ValueError, match="`loss_scale` must have shape"):
        FixedLossScaleUpdateCell(8.0)(torch.ones(2), torch.tensor(True))
