"""Index sequences, set-up, and golden freeze training."""

from __future__ import annotations

# ruff: noqa: NPY002  - the recorded sequences come from numpy's global legacy generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.golden_files import golden_paths, load_json, load_npz
from tests.golden_networks import (
    assert_trajectory,
    build_loss,
    build_network,
    build_optimizer,
    divide_by_loss_scale,
    golden_batch,
    load_initial_weights,
    optimizer_arguments,
    plain_list,
)
from workbench.methods.grad_freeze.method import FreezeOpt, GradientFreeze, freeze_index_sequence
from workbench.mindspore.freeze_cell import freeze_cell
from workbench.nn import WithLossCell


@pytest.mark.parametrize("path", golden_paths("freeze_index_sequences*.json"), ids=lambda path: path.stem)
def test_golden_index_sequences_are_drawn_from_the_global_generator(path: Path) -> None:
    for case in load_json(path)["cases"]:
        np.random.seed(case["np_seed"])
        arguments = (case["groups"], case["freeze_type"], case["freeze_p"], case["total_steps"])
        if "exception" in case:
            # Difference: where the reference raises ZeroDivisionError (type 0 with p = 1) we raise ValueError.
            assert case["exception"] in {"ZeroDivisionError", "ValueError"}
            with pytest.raises(ValueError, match=r"`grad_freeze\.freeze_(p|type)` must be"):
                freeze_index_sequence(*arguments)
            continue
        sequence = freeze_index_sequence(*arguments)
        assert sequence == case["sequence"], arguments
        assert len(sequence) == case["length"], arguments


SHARES = st.floats(0, 1).filter(lambda p: p < 0.99)


@given(st.integers(2, 12), SHARES, st.integers(0, 400), st.integers(0, 9))
def test_interval_sequences_keep_the_share_of_full_steps(groups: int, p: float, steps: int, seed: int) -> None:
    sequence = freeze_index_sequence(groups, 1, p, steps, rng=seed)
    assert len(sequence) == max(1, int(steps * 1.01))
    assert sequence[0] == 0
    assert all(0 <= index < groups for index in sequence)
    n_full = sequence.count(0)
    assert abs(n_full - p * len(sequence)) <= 1  # the rule corrects itself every step


@given(st.integers(2, 12), SHARES, st.integers(0, 400))
def test_continuous_sequences_are_whole_periods(groups: int, p: float, steps: int) -> None:
    sequence = freeze_index_sequence(groups, 0, p, steps)
    length = int(steps * 1.01)
    assert len(sequence) >= length
    assert all(0 <= index < groups for index in sequence)
    if sequence:
        n_full = next(i for i, index in enumerate(sequence) if index)
        period = n_full + groups - 1
        assert len(sequence) % period == 0
        assert len(sequence) - period < length
        assert sequence == sequence[:period] * (len(sequence) // period)
        # floor: never more full steps than p asks for, and one more would be too many
        tolerance = 1e-9 * period
        assert n_full <= p * period + tolerance
        assert n_full + 1 > p * (period + 1) - tolerance


def test_a_seed_repeats_the_draws_and_leaves_the_global_generator_alone() -> None:
    before = np.random.get_state()[1].copy()
    assert freeze_index_sequence(6, 1, 0.3, 200, rng=5) == freeze_index_sequence(6, 1, 0.3, 200, rng=5)
    assert freeze_index_sequence(6, 1, 0.3, 200, rng=5) != freeze_index_sequence(6, 1, 0.3, 200, rng=6)
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    own = np.random.RandomState(3)
    np.random.seed(3)
    assert freeze_index_sequence(6, 1, 0.3, 50, rng=own) == freeze_index_sequence(6, 1, 0.3, 50)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((0, 1, 0.5, 10), ValueError, "param_groups` must be at least 1"),
        ((2.0, 1, 0.5, 10), TypeError, "param_groups` must be an integer"),
        ((2, 2, 0.5, 10), ValueError, "freeze_type` must be 0 or 1"),
        ((2, 1, float("nan"), 10), ValueError, "freeze_p` must lie in"),
        ((2, 1, "0.5", 10), TypeError, "freeze_p` must be a number"),
        ((2, 1, 0.5, 0), ValueError, "total_steps` must be at least 1"),
    ],
)
def test_wrong_settings_are_refused_at_construction(arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        GradientFreeze(*arguments)
    with pytest.raises(ValueError, match=r"`grad_freeze.freeze_p` must lie in \[0, 1\], got 1\.2"):
        freeze_index_sequence(3, 1, 1.2, 10)


@pytest.mark.filterwarnings("ignore:gradient freezing has no effect")  # more groups than layers may be recorded, too
@pytest.mark.parametrize("path", golden_paths("freeze_train_*.npz"), ids=lambda path: path.stem)
def test_golden_freeze_training_through_cells_with_state_per_group(path: Path) -> None:
    meta, arrays = load_npz(path)
    net, loss = build_network(meta["net"]), build_loss(meta["loss"])
    load_initial_weights(net, arrays)
    optimizer = freeze_optimizer_of(meta, net)

    names = {parameter: name for name, parameter in net.named_parameters()}
    groups = [[names[p] for p in optimizer.group_parameters(i)] for i in range(optimizer.n_groups)]
    recorded_names = meta["group_param_names"]
    if meta["construction"] == "generate":
        assert groups == recorded_names
    else:  # given by hand: the reference keeps that order, ours is the optimizer's, on which its saved states rely
        assert [sorted(group) for group in groups] == [sorted(group) for group in recorded_names]
    assert optimizer.strategy == meta["strategy"]
    if any(meta["group_dynamic_lr"]):
        for ours, recorded in zip(optimizer.group_learning_rates, meta["group_dynamic_lr"], strict=True):
            np.testing.assert_allclose(ours, recorded, rtol=1e-6)
    options = [optimizer_arguments(meta), *(meta["optimizer_param_groups"] or [])]
    if any(option.get("weight_decay") for option in options):
        flags = zip(recorded_names, meta["group_weight_decay_flags"], strict=True)
        for index, (group, recorded) in enumerate(flags):
            assert decay_flags(optimizer, names, index) == dict(zip(group, recorded, strict=True))

    for index in range(optimizer.n_groups):
        divide_by_loss_scale(optimizer.optimizer_of(index), meta)
    cells = freeze_cell(False, WithLossCell(net, loss), optimizer, meta["sens"], None, False)
    assert len(cells) == len(groups)
    for step in range(len(arrays["x"])):
        index = optimizer.begin_step()
        assert index == meta["used_index_per_step"][step]
        value = cells[index](*golden_batch(arrays, step))
        optimizer.advance()
        np.testing.assert_allclose(value.item(), arrays["losses"][step], rtol=1e-4)
        assert_trajectory(net, arrays, step + 1)


def freeze_optimizer_of(meta: dict[str, Any], net: nn.Module) -> FreezeOpt:
    """Build the optimizer the way the file was recorded."""
    parameters = dict(net.named_parameters())
    params: list[Any] = list(parameters.values())
    if meta["optimizer_param_groups"]:
        # The file names no members; the flags show who belongs to which options. Where all flags are equal, the
        # recorded division is into weights and the rest. Groups given by hand may be disjoint, so all of them count.
        given = optimizer_arguments(meta).get("weight_decay", 0.0)
        sides = [options.get("weight_decay", given) > 0 for options in meta["optimizer_param_groups"]]
        flags = {
            name: flag
            for group, recorded in zip(meta["group_param_names"], meta["group_weight_decay_flags"], strict=True)
            for name, flag in zip(group, recorded, strict=True)
        }
        if len(set(flags.values())) == 1:
            flags, sides = {name: parameters[name].ndim > 1 for name in flags}, [True, False]
        params = [
            {"params": [parameters[name] for name in flags if flags[name] is side], **options}
            for side, options in zip(sides, meta["optimizer_param_groups"], strict=True)
        ]
    elif meta["construction"] != "generate":
        params = plain_list(net)
    optimizer = build_optimizer(meta, params)
    rates = meta["learning_rate"] if isinstance(meta["learning_rate"], list) else None
    if meta["construction"] == "generate":
        np.random.seed(meta["np_seed"])
        freeze = GradientFreeze(
            meta["groups"], meta["freeze_type"], meta["freeze_p"], meta["total_steps"], state="per_group"
        )
        network, frozen = freeze.freeze_generate(net, optimizer, learning_rates=rates)
        assert network is net
        return frozen
    groups = None
    if meta["construction"] != "plain":
        groups = [[parameters[name] for name in group] for group in meta["group_param_names"]]
    return FreezeOpt(optimizer, groups, meta["strategy"], state="per_group", learning_rates=rates)


def decay_flags(optimizer: FreezeOpt, names: dict[nn.Parameter, str], index: int) -> dict[str, bool]:
    groups = optimizer.optimizer_of(index).param_groups
    return {names[parameter]: group["weight_decay"] > 0 for group in groups for parameter in group["params"]}


def test_groups_are_formed_from_what_the_optimizer_holds_and_its_other_parameters_always_train() -> None:
    net = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(8)])
    net[0].weight.requires_grad_(False)
    centre = nn.Parameter(torch.zeros(2))  # a parameter of the loss
    optimizer = torch.optim.SGD([*net[1:].parameters(), centre], lr=0.1)
    _, frozen = GradientFreeze(2, 0, 0.5, 10).freeze_generate(net, optimizer)
    assert [len(frozen.group_parameters(i)) for i in range(2)] == [8, 5]
    assert all(any(p is centre for p in frozen.group_parameters(i)) for i in range(2))


def test_fewer_layers_than_groups_warns_once_that_freezing_has_no_effect() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="gradient freezing has no effect: the network has fewer layers") as caught:
        GradientFreeze(10, 1, 0.5, 10).freeze_generate(net, optimizer)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_an_optimizer_of_another_network_is_refused() -> None:
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="holds no trainable parameter of this network"):
        GradientFreeze(1, 1, 0.5, 10).freeze_generate(nn.Linear(2, 2), other)
    with pytest.raises(TypeError, match=r"`optimizer` must be a torch\.optim\.Optimizer"):
        GradientFreeze(1, 1, 0.5, 10).freeze_generate(nn.Linear(2, 2), "sgd")  # type: ignore[arg-type]


def test_the_reference_s_names_give_the_groups_and_the_sequence_that_set_up_uses() -> None:
    net = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(8)])
    freezing = GradientFreeze(3, 1, 0.5, 50, rng=7)
    groups = freezing.split_parameters_groups(net, 3)
    sequence = freezing.generate_freeze_index_sequence(3, 1, 0.5, 50)
    _, optimizer = freezing.freeze_generate(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert list(map(list, groups)) == [list(optimizer.group_parameters(index)) for index in range(3)]
    assert [len(group) for group in groups] == [8, 5, 2]
    assert sequence == optimizer.strategy == freeze_index_sequence(3, 1, 0.5, 50, rng=7)
