"""Unscaling, overflow tests, skipped steps and the collapse of a scale."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.kit.twins import either_copy
from tests.scaling.host_reads import forbid_host_reads
from tests.scaling.stepped import give_gradients, parameters
from workbench.loss_scale import (
    NonFusedOptimizerWarning,
    ScaleCollapseError,
    collapsed_at,
    decides_on_device,
    has_overflow,
    step_if_finite,
    unscale_and_check_,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64]

Build = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

FUSED: dict[str, Build] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, fused=True),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, fused=True),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, maximize=True, fused=True),
    "dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.01, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.01, fused=True),
}
PLAIN: dict[str, Build] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
}


def contents(params: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return copies of the weights and of every entry of the optimizer's state, in a fixed order."""
    entries = [param.detach().clone() for param in params]
    for param in params:
        state = optimizer.state.get(param, {})
        entries += [torch.as_tensor(state[key]).clone() for key in sorted(state)]
    return entries


def bitwise_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
        for a, b in zip(one, other, strict=True)
    )


def flag_of(bad: float | None) -> Tensor:
    return torch.tensor(0.0 if bad is None else 1.0)


# --- unscale_and_check_ and has_overflow ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_are_unscaled_in_place(dtype: torch.dtype) -> None:
    grads = [torch.full((3, 2), 256.0, dtype=dtype), torch.full((), -512.0, dtype=dtype)]
    addresses = [grad.data_ptr() for grad in grads]
    found_inf = torch.zeros(())
    assert unscale_and_check_(grads, torch.tensor(1 / 128), found_inf) is found_inf
    assert [grad.data_ptr() for grad in grads] == addresses
    assert found_inf == 0.0
    assert torch.equal(grads[0], torch.full((3, 2), 2.0, dtype=dtype))
    assert grads[1] == -4.0
    assert not has_overflow(grads)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_bad_element_in_the_last_gradient_is_found(dtype: torch.dtype, value: float) -> None:
    grads = [torch.ones(1000), torch.ones((3, 333), dtype=dtype)]
    grads[1][2, 332] = value
    assert has_overflow(grads)
    found_inf = unscale_and_check_(grads, torch.tensor([0.5]), torch.zeros(1))
    assert found_inf.tolist() == [1.0]


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.floats(width=32), max_size=5), max_size=4),
    st.sampled_from([1.0, 2.0**-10, 1 / 3]),
    st.booleans(),
)
@example([], 1.0, True)
@example([[]], 1.0, False)
def test_the_flag_agrees_with_isfinite_and_never_goes_back(
    values: list[list[float]], inverse: float, was_set: bool
) -> None:
    grads = [torch.tensor(entry, dtype=torch.float32) for entry in values]
    expected = not all(bool(grad.isfinite().all()) for grad in grads)
    before = [grad.clone() for grad in grads]
    assert bool(has_overflow(grads)) == expected
    assert bitwise_equal(grads, before)
    found_inf = unscale_and_check_(grads, torch.tensor(inverse), torch.tensor(float(was_set)))
    assert float(found_inf) == float(expected or was_set)
    for grad, old in zip(grads, before, strict=True):
        torch.testing.assert_close(grad, old * torch.tensor(inverse), rtol=0, atol=0, equal_nan=True)


def test_a_scale_below_1_may_overflow_what_it_divides() -> None:
    grads = [torch.tensor([4e4], dtype=torch.float16)]
    found = unscale_and_check_(grads, torch.tensor(2.0), torch.zeros(()))
    assert found == 1.0
    assert unscale_and_check_([torch.tensor([3e4], dtype=torch.float16)], torch.tensor(2.0), torch.zeros(())) == 0.0


def test_missing_gradients_are_passed_over_and_any_layout_is_unscaled() -> None:
    grads = [None, torch.tensor([4.0]), None]
    assert unscale_and_check_(grads, torch.tensor(0.5), torch.zeros(())) == 0.0
    assert grads[1] == torch.tensor([2.0])
    assert not has_overflow(grads)
    assert not has_overflow([])
    transposed, strided = torch.full((4, 3), 2.0).t(), torch.full((6, 4), 2.0)[::2]
    unscale_and_check_([transposed, strided], torch.tensor(0.5), torch.zeros(()))
    assert torch.equal(transposed, torch.ones(3, 4))
    assert torch.equal(strided, torch.ones(3, 4))


def sparse(indices: list[int], values: list[float], dtype: torch.dtype) -> Tensor:
    return torch.sparse_coo_tensor(
        torch.tensor([indices]), torch.tensor(values, dtype=dtype), (5,), check_invariants=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_sparse_gradients_are_unscaled_and_tested(dtype: torch.dtype) -> None:
    grad, found_inf = sparse([0, 2], [8.0, 4.0], dtype).coalesce(), torch.zeros(())
    unscale_and_check_([grad], torch.tensor(0.25), found_inf)
    assert found_inf == 0.0
    assert grad.to_dense().tolist() == [2.0, 0.0, 1.0, 0.0, 0.0]
    bad = sparse([0, 2], [8.0, math.nan], dtype)
    assert has_overflow([bad])
    assert unscale_and_check_([bad], torch.tensor(0.25), found_inf) == 1.0


def test_duplicate_indices_whose_sum_overflows_float16_are_found() -> None:
    for inverse, found in ((0.25, 0.0), (1.0, 1.0)):  # 30000 after unscaling, or too much
        twice = sparse([1, 1], [60000.0, 60000.0], torch.float16)
        assert unscale_and_check_([twice], torch.tensor(inverse), torch.zeros(())) == found


def test_neither_test_reads_the_device() -> None:
    grads = [torch.ones(3), torch.ones(2, dtype=torch.bfloat16)]
    found_inf = torch.zeros(())
    with forbid_host_reads():
        unscale_and_check_(grads, torch.tensor(0.5), found_inf)
        has_overflow(grads)
    with pytest.raises(AssertionError, match="makes the host wait"), forbid_host_reads():
        torch.ones(()).item()


@pytest.mark.parametrize(
    ("inverse", "found_inf", "error"),
    [
        (0.5, torch.zeros(()), TypeError),
        (torch.ones(2), torch.zeros(()), ValueError),
        (torch.ones(()), torch.zeros(2), ValueError),
        (torch.ones(()), torch.zeros((), dtype=torch.bool), TypeError),
        (torch.ones(()), False, TypeError),
    ],
)
def test_flags_and_scales_must_be_single_elements(inverse: Any, found_inf: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"`(inverse_scale|found_inf)` must"):
        unscale_and_check_([torch.ones(3)], inverse, found_inf)
    with pytest.raises(TypeError, match="`found_inf` must"):
        step_if_finite(FUSED["adam"](parameters()), True)  # type: ignore[arg-type]


# --- step_if_finite ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skips", [(0, 1, 3), (2,)], ids=str)
@pytest.mark.parametrize("name", FUSED)
def test_skipped_steps_are_as_if_they_had_not_been(name: str, skips: tuple[int, ...]) -> None:
    # Skips at the very start matter most: torch's fused SGD would then go on from uninitialised momentum.
    params, twins = parameters(), parameters()
    optimizer, twin = FUSED[name](params), FUSED[name](twins)
    for step in range(6):
        bad = math.inf if step in skips else None
        give_gradients(params, step, bad)
        step_if_finite(optimizer, flag_of(bad))
        if bad is None:
            give_gradients(twins, step)
            twin.step()
    assert bitwise_equal(contents(params, optimizer), contents(twins, twin))


@pytest.mark.parametrize("name", ["momentum", "nesterov", "adam", "adagrad"])
def test_a_parameter_whose_first_gradient_comes_late_joins_as_if_it_were_alone(name: str) -> None:
    params, twins = parameters(), parameters()
    optimizer = FUSED[name](params)
    early, late = FUSED[name](twins[1:]), FUSED[name](twins[:1])
    for step in range(5):
        give_gradients(params, step)
        give_gradients(twins, step)
        if step < 2:
            params[0].grad = None
        else:
            late.step()
        early.step()
        step_if_finite(optimizer, flag_of(None))
    for param, twin in zip(params, twins, strict=True):
        assert torch.equal(param, twin)


@pytest.mark.parametrize("name", [name for name in FUSED if name != "dampening"])
def test_fused_optimizers_decide_without_the_host(name: str) -> None:
    params = parameters()
    optimizer = FUSED[name](params)
    assert decides_on_device(optimizer)
    for step, bad in enumerate([math.inf, None, math.nan]):
        give_gradients(params, step, bad)
        with forbid_host_reads():
            step_if_finite(optimizer, flag_of(bad))


def test_dampened_momentum_asks_the_host_until_its_first_step_only() -> None:
    params = parameters()
    optimizer = FUSED["dampening"](params)
    give_gradients(params, 0)
    assert not decides_on_device(optimizer)
    step_if_finite(optimizer, flag_of(None))
    assert decides_on_device(optimizer)
    with forbid_host_reads():
        step_if_finite(optimizer, flag_of(None))


@either_copy
@pytest.mark.parametrize("name", ["momentum", "adam", "adagrad"])
def test_optimizer_copies_cleanly_afterwards_and_the_copy_still_decides(name: str, copied: Any) -> None:
    params = parameters()
    optimizer = FUSED[name](params)
    give_gradients(params, 0)
    step_if_finite(optimizer, flag_of(None))
    assert not hasattr(optimizer, "found_inf")
    assert not hasattr(optimizer, "grad_scale")
    twin = copied(optimizer)
    assert decides_on_device(twin)
    twin_params = twin.param_groups[0]["params"]
    before = contents(twin_params, twin)
    give_gradients(twin_params, 1, math.inf)
    step_if_finite(twin, flag_of(math.inf))
    assert bitwise_equal(contents(twin_params, twin), before)


def test_the_attribute_is_taken_away_when_the_step_fails() -> None:
    def fail(*_: object) -> None:
        raise OSError("hook")

    params = parameters()
    optimizer = FUSED["adam"](params)
    give_gradients(params, 0)
    optimizer.register_step_pre_hook(fail)
    with pytest.raises(OSError, match="hook"):
        step_if_finite(optimizer, flag_of(None))
    assert not hasattr(optimizer, "found_inf")


@pytest.mark.parametrize("flag", [torch.tensor(3.0), torch.tensor([1.0]), torch.tensor(True), torch.tensor(math.nan)])
def test_any_flag_but_zero_skips_and_keeps_the_step_counters(flag: Tensor) -> None:
    params = parameters()
    optimizer = FUSED["adam"](params)
    give_gradients(params, 0)
    step_if_finite(optimizer, flag_of(None))
    before = contents(params, optimizer)
    step_if_finite(optimizer, flag)
    assert bitwise_equal(contents(params, optimizer), before)


@pytest.mark.parametrize("name", PLAIN)
def test_other_optimizers_skip_too_and_warn_once_per_object(name: str) -> None:
    for _ in range(2):  # another object of the same class warns again
        params = parameters()
        optimizer = PLAIN[name](params)
        assert not decides_on_device(optimizer)
        give_gradients(params, 0)
        with pytest.warns(NonFusedOptimizerWarning, match="fused=True") as caught:
            step_if_finite(optimizer, flag_of(None))
        assert caught[0].filename == __file__
        before = contents(params, optimizer)
        give_gradients(params, 1, math.inf)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step_if_finite(optimizer, flag_of(math.inf))
            assert bitwise_equal(contents(params, optimizer), before)
            give_gradients(params, 2)
            step_if_finite(optimizer, flag_of(None))
        assert not bitwise_equal(contents(params, optimizer), before)


def test_no_fused_kernel_is_advised_where_none_takes_the_gradients() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.warns(NonFusedOptimizerWarning, match="waits for the overflow flag$"):
        step_if_finite(torch.optim.SGD(table.parameters(), lr=0.1), flag_of(None))


def test_an_optimizer_with_one_group_that_is_not_fused_is_left_to_the_host() -> None:
    params = parameters()
    groups = [{"params": params[:2]}, {"params": params[2:], "fused": False}]
    optimizer = torch.optim.Adam(groups, fused=True)
    give_gradients(params, 0)
    with pytest.warns(NonFusedOptimizerWarning):
        step_if_finite(optimizer, flag_of(None))
    assert float(optimizer.state[params[2]]["step"]) == 1.0


def test_own_optimizers_are_called_through_their_method() -> None:
    class Own(torch.optim.SGD):
        seen: list[Tensor]

        def step_with_found_inf(self, found_inf: Tensor) -> None:
            self.seen.append(found_inf)

    optimizer = Own(parameters(), lr=0.1)
    optimizer.seen = []
    flag = flag_of(math.inf)
    assert decides_on_device(optimizer)
    step_if_finite(optimizer, flag)
    assert len(optimizer.seen) == 1
    assert optimizer.seen[0] is flag


@pytest.mark.parametrize("build", [FUSED["adam"], PLAIN["adam"]], ids=["fused", "plain"])
@pytest.mark.filterwarnings("ignore::workbench.loss_scale.NonFusedOptimizerWarning")
def test_a_scheduler_does_not_complain_when_the_first_step_is_skipped(build: Build) -> None:
    params = parameters()
    optimizer = build(params)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    give_gradients(params, 0, math.inf)
    step_if_finite(optimizer, flag_of(math.inf))
    scheduler.step()  # warnings are errors
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


# --- collapse ------------------------------------------------------------------------------------------------------


def test_collapse_counts_only_overflows_at_the_floor() -> None:
    overflow = [True, True, False, True, True, True]
    scale = [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert collapsed_at(overflow, scale, 1.0, collapse_after=3) == (5, 3)
    assert collapsed_at(overflow, scale, 1.0, collapse_after=4) == (None, 3)
    assert collapsed_at([True, True], [4.0, 2.0], 1.0, collapse_after=1) == (None, 0)
    assert collapsed_at([], [], 1.0, collapse_after=1, streak_before=0) == (None, 0)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from([1.0, 2.0]))), st.integers(1, 4), st.data())
def test_collapse_does_not_depend_on_how_the_trace_is_cut(
    steps: list[tuple[bool, float]], collapse_after: int, data: st.DataObject
) -> None:
    overflow, scale = [flag for flag, _ in steps], [value for _, value in steps]
    cut = data.draw(st.integers(0, len(steps)))
    whole, streak = collapsed_at(overflow, scale, 1.0, collapse_after)
    first, between = collapsed_at(overflow[:cut], scale[:cut], 1.0, collapse_after)
    if first is not None:
        assert first == whole
        return
    second, end = collapsed_at(overflow[cut:], scale[cut:], 1.0, collapse_after, between)
    assert (None if second is None else cut + second, end) == (whole, streak)


def test_collapse_error_says_what_to_change_and_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ScaleCollapseError(17, 25, 0.5)))
    assert isinstance(error, RuntimeError)
    assert (error.step, error.overflows, error.minimum) == (17, 25, 0.5)
    for advice in ["step 17", "25 times", "0.5", "learning rate", "bfloat16", "boost.loss_scale_group"]:
        assert advice in str(error)
