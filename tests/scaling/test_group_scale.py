"""Scales per group: recorded sequences, marks, the attribution of overflows, groups and what is wrong with them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.golden_files import golden_paths, load_json
from tests.scaling.host_reads import forbid_host_reads
from workbench.loss_scale import DynamicLossScaleUpdateCell
from workbench.methods.loss_scale_group.groups import group_name, resolve_groups
from workbench.methods.loss_scale_group.method import (
    GroupLossScaleManager,
    GroupMember,
    arising_overflow,
    scale_gradient,
)

GOLDEN = [load_json(path)["results"] for path in golden_paths("group_loss_scale*.json")]
STATUS = [case for golden in GOLDEN for name, case in golden.items() if name.startswith("status_")]
TINY = 2.0**-126


def groups_of(n: int) -> list[list[nn.Parameter]]:
    return [[nn.Parameter(torch.ones(1))] for _ in range(n)]


@pytest.mark.parametrize("case", STATUS, ids=lambda case: f"{case['n']}-{case['init']}")
def test_golden_status(case: dict[str, Any]) -> None:
    n, init, expected = case["n"], case["init"], case["result"]
    manager = GroupLossScaleManager(1.0, [])
    if isinstance(init, list) and len(init) != n:
        # Documented difference: there a list one longer overwrites the end, and a longer one is an IndexError.
        with pytest.raises(ValueError, match=rf"one scale per group \({n}\), got {len(init)}"):
            manager.set_loss_scale_status(n, init)
        return
    manager.set_loss_scale_status(n, init)
    assert manager.loss_scale_number == expected["loss_scale_number"]
    assert manager.dynamic_loss_scale.tolist() == expected["dynamic_loss_scale"]
    assert manager.dynamic_loss_scale.dtype == torch.float32
    assert not manager.dynamic_loss_scale.requires_grad


@pytest.mark.parametrize("golden", GOLDEN)
@pytest.mark.parametrize("how", ["one_by_one", "rule"])
def test_golden_update_sequence(golden: dict[str, Any], how: str) -> None:
    sequence = golden["update_sequence"]
    ratios = {1: sequence["reduce_ratio"], 0: sequence["growth_ratio"]}
    n = len(sequence["rows"][0][3]) - 2
    manager = GroupLossScaleManager(sequence["init"], groups_of(n), minimum=TINY)
    for layer, overflow, value, scales in sequence["rows"]:
        if how == "one_by_one":
            assert manager.update_loss_scale_status(layer, ratios[overflow]).item() == pytest.approx(value, rel=1e-6)
        else:  # the other groups hold still
            flags = torch.arange(n) == layer
            manager.update(flags & bool(overflow), ~flags)
        torch.testing.assert_close(manager.dynamic_loss_scale, torch.tensor(scales), rtol=1e-6, atol=0)


@pytest.mark.parametrize("golden", GOLDEN)
def test_golden_answers_and_sequence_without_floor_and_its_prevention(golden: dict[str, Any]) -> None:
    manager = GroupLossScaleManager(golden["get_loss_scale"], [])
    assert manager.get_loss_scale() == golden["get_loss_scale"]
    assert (manager.get_update_cell() is manager) is golden["get_update_cell_is_self"]
    expected = golden["no_floor"]
    init = expected[0] * 2**0.5
    free = GroupLossScaleManager(init, groups_of(1), minimum=TINY)
    bounded = GroupLossScaleManager(init, groups_of(1))
    for value in expected:
        ratio = torch.tensor(2.0).rsqrt()
        assert free.update_loss_scale_status(0, ratio).item() == pytest.approx(value, rel=1e-6)
        assert bounded.update_loss_scale_status(0, ratio).item() == pytest.approx(max(value, 1.0), rel=1e-6)


def test_marks_give_every_group_its_own_scale_and_leave_input_and_loss_at_one() -> None:
    layers = [nn.Linear(1, 1, bias=False) for _ in range(3)]
    for layer in layers:
        nn.init.ones_(layer.weight)
    manager = GroupLossScaleManager([8.0, 2.0, 32.0], [list(layer.parameters()) for layer in layers])
    start = x = torch.ones(1, 1, requires_grad=True)
    for k, layer in enumerate(layers):
        x = layer(manager(x, k, k + 1))
    manager(x, 3, 4).backward()
    assert [layer.weight.grad.item() for layer in layers if layer.weight.grad is not None] == [8.0, 2.0, 32.0]
    assert start.grad is not None
    assert start.grad.item() == 1.0


def test_marks_are_invisible_forward_and_widen_half_precision_under_autocast_only() -> None:
    manager = GroupLossScaleManager(4.0, groups_of(1))
    x = torch.tensor([1.5, -2.0], dtype=torch.float16, requires_grad=True)
    plain = manager(x, 0, 1)
    with torch.autocast("cpu", torch.float16):
        widened = manager(x, 0, 1)
    assert (plain.dtype, widened.dtype) == (torch.float16, torch.float32)
    assert plain.tolist() == widened.tolist() == x.tolist()
    y = x.detach()
    assert manager(y, 0, 1) is y  # nothing to scale, no cost


def test_a_gradient_too_small_for_float16_survives_its_output_mark() -> None:
    manager = GroupLossScaleManager(2.0**30, groups_of(1))
    x = torch.ones(1, dtype=torch.float16, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        y = manager(x, 1, 2)
    (y * 2.0**-30).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 1.0


def test_an_activation_in_place_may_follow_a_mark_but_no_second_derivative() -> None:
    manager = GroupLossScaleManager(4.0, groups_of(1))
    weight = torch.tensor([1.0, -1.0], requires_grad=True)
    torch.relu_(manager(weight * 2, 1, 2)).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.tolist() == [8.0, 0.0]
    x = torch.ones(1, requires_grad=True)
    (slope,) = torch.autograd.grad(manager(x, 1, 2).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="a loss that contains gradients, such as a gradient penalty"):
        slope.sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("gradient", "received", "left"),
    [([1.0, float("inf")], 1.0, 1.0), ([float("nan"), 0.0], 1.0, 1.0), ([3e38, 0.0], 0.0, 0.0)],
    ids=["inf", "nan", "finite"],
)
def test_a_mark_tests_the_gradient_that_comes_by_before_multiplying_it(
    gradient: list[float], received: float, left: float
) -> None:
    scales, flags = torch.tensor([1.0, 16.0]), torch.zeros(2)
    x = torch.ones(2, requires_grad=True)
    scale_gradient(x, scales, 1, 0, flags[0:1], flags[1:2]).backward(torch.tensor(gradient))  # type: ignore[no-untyped-call]
    assert flags.tolist() == [received, left]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["clean", "own", "leaves"]), min_size=1, max_size=6))
def test_overflow_belongs_to_the_last_region_that_made_one_and_not_to_those_before(kinds: list[str]) -> None:
    # A chain: once a region is broken, everything before it receives inf. "leaves" breaks only what it hands on.
    received, left, nonfinite, expected = [], [], [], []
    broken = False
    for kind in reversed(kinds):
        received.append(float(broken))
        own = kind == "own"
        expected.append(kind != "clean" and not broken)
        left.append(float(broken or kind != "clean"))
        nonfinite.append(float(broken or own))
        broken = broken or kind != "clean"
    assert arising_overflow(torch.tensor(received), torch.tensor(left), torch.tensor(nonfinite)).tolist() == expected
    assert sum(expected) == int(any(kind != "clean" for kind in kinds))


@settings(max_examples=40)
@given(
    st.integers(1, 4),
    st.sampled_from([2.0, 4.0]),
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30),
)
def test_with_factor_and_window_every_group_follows_the_rule_of_the_single_scale(
    window: int, factor: float, overflows: list[tuple[bool, bool]]
) -> None:
    bounds: dict[str, Any] = {"minimum": 0.25, "maximum": 2.0**12}
    manager = GroupLossScaleManager(
        [64.0, 8.0], groups_of(2), reduce_ratio=1 / factor, growth_ratio=factor, growth_window=window, **bounds
    )
    cells = [DynamicLossScaleUpdateCell(init, factor, window, **bounds) for init in (64.0, 8.0)]
    singles = [torch.tensor(64.0), torch.tensor(8.0)]
    for flags in overflows:
        manager.update(torch.tensor(flags), torch.zeros(2, dtype=torch.bool))
        for cell, scale, flag in zip(cells, singles, flags, strict=True):
            cell(scale, torch.tensor(flag))
        assert manager.group_scales.tolist() == [scale.item() for scale in singles]


def test_a_group_that_only_received_an_overflow_holds_still() -> None:
    manager = GroupLossScaleManager(8.0, groups_of(3), reduce_ratio=0.5, growth_ratio=2.0, growth_window=2)
    manager.finite_steps.fill_(1)
    overflowed, held = torch.tensor([True, False, False]), torch.tensor([True, True, False])
    scales, steps = manager.next_scales(overflowed, held)
    assert (manager.group_scales.tolist(), manager.finite_steps.tolist()) == ([8.0] * 3, [1] * 3)
    assert (scales.tolist(), steps.tolist()) == ([4.0, 8.0, 16.0], [0, 1, 0])


def test_a_scale_set_below_its_floor_by_hand_stays_there_until_it_grows() -> None:
    manager = GroupLossScaleManager(8.0, groups_of(1), growth_ratio=2.0, minimum=4.0)
    manager.group_scales.fill_(1.0)
    calm = torch.tensor([False])
    assert manager.next_scales(torch.tensor([True]), calm)[0].tolist() == [1.0]
    assert manager.next_scales(calm, calm)[0].tolist() == [2.0]


def test_update_never_reads_the_device() -> None:
    manager = GroupLossScaleManager(64.0, groups_of(2))
    x = torch.ones(1, requires_grad=True)
    y = manager(manager(x, 1, 2), 2, 3)
    with forbid_host_reads():
        y.backward()
        manager.update(torch.tensor([True, False]), torch.tensor([False, False]))
    assert manager.overflow_status.tolist() == [True, False]
    assert manager.overflow_count.item() == 1


def test_calibration_moves_floor_and_ceiling_along_and_allows_scales_below_one() -> None:
    manager = GroupLossScaleManager(64.0, groups_of(2), minimum=16.0, maximum=256.0)
    manager.calibrate([2.0**-10, 2.0**40], reference=64.0)
    assert manager.group_scales.tolist() == [2.0**-10, 2.0**40]
    assert manager.floors.tolist() == [2.0**-12, 2.0**38]
    assert manager.ceilings.tolist() == [2.0**-8, 2.0**42]


def test_scales_stay_float32_when_the_network_is_cast_and_follow_its_device() -> None:
    manager = GroupLossScaleManager(4098.84, groups_of(1))
    net = nn.Sequential(nn.Linear(1, 1), manager).half()
    assert manager.dynamic_loss_scale.dtype == manager.floors.dtype == torch.float32
    assert manager.dynamic_loss_scale[1].item() == pytest.approx(4098.84)
    net.to("meta")
    assert manager.dynamic_loss_scale.device.type == "meta"


def test_a_loaded_state_continues_exactly_and_a_copy_is_independent() -> None:
    first = GroupLossScaleManager(64.0, groups_of(2), growth_window=3)
    flags = torch.tensor([True, False]), torch.tensor([False, False])
    first.update(*flags)
    second = GroupLossScaleManager(64.0, groups_of(2), growth_window=3)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    third = copy.deepcopy(first)
    for manager in (first, second, third):
        for _ in range(3):
            manager.update(flags[1], flags[1])
    assert second.group_scales.tolist() == third.group_scales.tolist() == first.group_scales.tolist()
    third.update(*flags)
    assert third.group_scales[0] < first.group_scales[0]


def test_groups_may_be_assigned_after_construction() -> None:
    manager = GroupLossScaleManager(4096, [])
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    x = torch.ones(1, 2, requires_grad=True)
    assert manager(x, 0, 1) is x  # no groups yet
    manager.loss_scale_groups = [list(net[0].parameters()), list(net[1].parameters())]
    assert manager.dynamic_loss_scale.tolist() == [1.0, 4096.0, 4096.0, 1.0]


def test_groups_are_found_by_parameter_module_name_and_pair_in_any_order() -> None:
    first, second, third = nn.Linear(2, 2), nn.Linear(2, 1), nn.Linear(1, 1)
    net = nn.Sequential(first, second, third)
    groups: list[list[GroupMember]] = [[("2.bias", third.bias), "0.weight"], [second], [third.weight, first.bias]]
    found = resolve_groups(groups, net)
    expected = [["2.bias", "0.weight"], ["1.weight", "1.bias"], ["2.weight", "0.bias"]]
    assert [list(group) for group in found] == expected
    assert group_name(2, found[1]) == "group 2 (1)"


def test_names_are_found_under_the_prefix_of_a_wrapper_unless_they_are_ambiguous() -> None:
    body = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    wrapper = nn.ModuleDict({"net": nn.ModuleDict({"head": nn.Linear(2, 1), "body": body})})
    found = resolve_groups([["head", "body.0"], ["body.1.weight"]], wrapper)
    assert list(found[0]) == ["net.head.weight", "net.head.bias", "net.body.0.weight", "net.body.0.bias"]
    assert list(found[1]) == ["net.body.1.weight"]
    with pytest.raises(ValueError, match=r"names 'weight', which may be 0\.weight or 1\.weight; write the whole name"):
        resolve_groups([["weight"]], nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)))


WRONG: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda net: [[]], ValueError, "group 1 of `loss_scale_groups` names no parameter"),
    (lambda net: [["0.wieght"]], ValueError, "names '0.wieght', but the model has neither"),
    (lambda net: [["1"]], ValueError, "group 1 of `loss_scale_groups` names no parameter"),  # a module without any
    (lambda net: [[net[0].weight], [net[0].weight]], ValueError, "named twice .* in group 1 and in group 2"),
    (lambda net: [["0"], ["0.weight"]], ValueError, "0.weight is named twice .* in group 1 and in group 2"),
    (lambda net: [["0.weight", net[0].weight]], ValueError, "0.weight is named twice .* in group 1 and in group 1"),
    (lambda net: [[torch.ones(3)]], ValueError, r"shape \(3,\) that is no parameter of the model"),
    (lambda net: [[7]], TypeError, "must hold parameters, modules or their names, got int 7"),
    (lambda net: ["0.weight"], TypeError, "group 1 of `loss_scale_groups` must be a list"),
    (lambda net: "0.weight", TypeError, "`loss_scale_groups` must be a list of groups, got str"),
]


@pytest.mark.parametrize(("groups", "error", "message"), WRONG, ids=[entry[2][:40] for entry in WRONG])
def test_wrong_groups_are_one_sentence(groups: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with pytest.raises(error, match=message):
        resolve_groups(groups(net), net)


@pytest.mark.parametrize(
    ("init", "options", "error", "message"),
    [
        ("big", {}, TypeError, "`init_loss_scale` must be a number, got str 'big'"),
        (float("nan"), {}, ValueError, "`init_loss_scale` must lie in"),
        (0.0, {}, ValueError, "`init_loss_scale` must lie in"),
        ([2.0], {}, ValueError, r"one scale per group \(2\), got 1"),
        ([2.0, -1.0], {}, ValueError, "`init_loss_scale` must lie in"),
        (2.0, {"reduce_ratio": 1.0}, ValueError, r"`reduce_ratio` must lie in \(0, 1\), got 1.0"),
        (2.0, {"growth_ratio": float("nan")}, ValueError, "`growth_ratio` must be finite and at least 1"),
        (2.0, {"growth_window": 0}, ValueError, "`growth_window` must be at least 1"),
        (2.0, {"minimum": 4.0}, ValueError, r"`minimum` must lie in \(0, initial scale 2\]"),
        (2.0, {"maximum": 1.0}, ValueError, r"`maximum` must lie in \[initial scale 2"),
        (2.0, {"unscale_with": "both"}, ValueError, '`unscale_with` must be "used" or "updated"'),
    ],
)
def test_wrong_arguments_are_one_sentence(
    init: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        GroupLossScaleManager(init, groups_of(2), **options)


def test_a_group_that_does_not_exist_is_refused() -> None:
    x, manager = torch.ones(1, requires_grad=True), GroupLossScaleManager(2.0, groups_of(2))
    with pytest.raises(ValueError, match="`layer2` must lie in"):
        manager(x, 0, 4)
    with pytest.raises(ValueError, match="`layer1` must lie in"):
        manager(x, -1, 1)
    with pytest.raises(TypeError, match=r"`layer2` must be the number of a group, got 1\.0"):
        manager(x, 0, 1.0)
    with pytest.raises(ValueError, match=r"`layer` must be a group in \[0, 1\], got 2"):
        manager.update_loss_scale_status(2, 0.5)
