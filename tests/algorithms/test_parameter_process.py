"""Regrouping and fusion marks as recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.algorithms.test_grad_centralization import names, tensors
from tests.golden_files import golden_paths, load_json
from workbench.methods.parameter_process import ParameterProcess

GOLDEN = pytest.mark.parametrize("path", golden_paths("optimizer_process*.json"), ids=lambda path: path.stem)


def parameters_of(cases: dict[str, Any]) -> dict[str, nn.Parameter]:
    recorded = cases["gc_single_group"]["input"][0]["params"]
    return {name: nn.Parameter(torch.zeros(1)) for name in recorded}


@GOLDEN
def test_golden_groups_for_a_changed_network(path: Path) -> None:
    cases = load_json(path)["cases"]
    parameters = parameters_of(cases)
    recorded = {key: case for key, case in cases.items() if key.startswith("group_params_") and isinstance(case, dict)}
    assert recorded
    for key, case in recorded.items():
        origin: Any = case["origin"]
        if isinstance(origin, list):
            origin = tensors(origin, parameters)
        else:
            origin = iter(parameters.values()) if origin.startswith("iterator") else list(parameters.values())
        groups = ParameterProcess.generate_group_params([parameters[n] for n in case["parameters"]], origin)
        assert names(groups, parameters) == case["output"], key


@GOLDEN
def test_golden_errors_for_nothing_and_for_the_wrong_kind(path: Path) -> None:
    cases = load_json(path)["cases"]
    parameter = nn.Parameter(torch.zeros(1))
    recorded = {kind: cases[f"group_params_error_{kind}"] for kind in ("none", "empty", "bad")}
    assert recorded == {"none": "ValueError", "empty": "ValueError", "bad": "TypeError"}
    nothing: list[Any] = [None, []]
    for empty in nothing:
        with pytest.raises(ValueError, match="`origin_params` must hold at least one parameter"):
            ParameterProcess.generate_group_params([parameter], empty)
        with pytest.raises(ValueError, match="`parameters` must hold at least one parameter"):
            ParameterProcess().generate_group_params(empty, [parameter])
    with pytest.raises(TypeError, match="`origin_params` must hold parameters"):
        ParameterProcess.generate_group_params([parameter], [1, 2])
    with pytest.raises(TypeError, match="parameter groups only, got also Parameter"):
        ParameterProcess.generate_group_params([parameter], [{"params": [parameter]}, parameter])


@GOLDEN
def test_golden_fusion_indices(path: Path) -> None:
    for case in load_json(path)["cases"]["comm_fusion"]:
        parameters = [nn.Parameter(torch.zeros(1)) for _ in range(case["n_params"])]
        process = ParameterProcess()
        for expected in (case["comm_fusion"], case["second_call_same_processor"]):
            assert process.assign_parameter_group(parameters, case["split_point"]) is parameters
            assert [p.comm_fusion for p in parameters] == expected  # type: ignore[attr-defined]
    process = ParameterProcess()
    given_: dict[str, Any] = {"empty_list": [], "none": None, "string": "abc", "int": 3}
    recorded = load_json(path)["cases"]["assign_non_list"]  # comes back unchanged
    assert {key: repr(process.assign_parameter_group(value)) for key, value in given_.items()} == recorded
    assert process.fusion_index == 1


def test_a_replaced_layer_keeps_its_options_when_names_are_known() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    rates = {"0": 0.1, "1": 0.7}
    optimizer = torch.optim.SGD(
        [{"params": list(net.get_submodule(name).named_parameters(prefix=name)), "lr": rates[name]} for name in rates]
    )
    net[1] = nn.Linear(2, 2, bias=False)
    groups = ParameterProcess.generate_group_params(net.named_parameters(), optimizer.param_groups)
    found = {group["lr"]: group["param_names"] for group in groups}
    assert found == {0.1: ["0.weight", "0.bias"], 0.7: ["1.weight"]}
    assert groups[1]["params"][0] is net[1].weight
    rebuilt = torch.optim.SGD(groups)
    assert rebuilt.param_groups[1]["param_names"] == ["1.weight"]


def test_left_over_parameters_take_the_options_of_the_first_of_the_richest_groups() -> None:
    a, b, c, new = (nn.Parameter(torch.zeros(1)) for _ in range(4))
    origin = [{"params": [a]}, {"params": [b], "lr": 0.5}, {"params": [c], "lr": 0.7}]
    groups = ParameterProcess.generate_group_params([a, new], origin)
    assert groups[-1] == {"params": [new], "lr": 0.5}
    assert groups[1]["params"] == []  # accepted by torch where the reference fails
    torch.optim.SGD(groups, lr=0.1).step()


def test_parameters_stand_in_a_group_where_they_stood_and_left_over_ones_as_given() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    named = dict(net.named_parameters())
    origin = [{"params": [(name, named[name]) for name in ("1.bias", "0.weight", "1.weight")], "lr": 0.1}]
    named["1.bias"] = nn.Parameter(torch.ones(2))  # replaced: its name leads to its place
    groups = ParameterProcess.generate_group_params(reversed(named.items()), origin)
    first, left_over = groups
    assert first["param_names"] == ["1.bias", "0.weight", "1.weight"]
    assert left_over["param_names"] == ["2.bias", "2.weight", "0.bias"]
    assert first["params"][0] is named["1.bias"]


@given(st.lists(st.integers(0, 12), max_size=6), st.integers(1, 10))
def test_fusion_indices_grow_by_one_at_each_listed_position(splits: list[int], n: int) -> None:
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(n)]
    ParameterProcess().assign_parameter_group(parameters, splits)
    marks: list[int] = [p.comm_fusion for p in parameters]  # type: ignore[attr-defined]
    expected = set(splits) or {n // 2}
    assert {i for i in range(n) if marks[i] != [1, *marks][i]} == {i for i in expected if i < n}
    assert marks == sorted(marks)
