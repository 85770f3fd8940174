"""Descriptions of parameters agree with the models, and the schema with both."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.config_strategies import config_dicts, configs, legal_values, odd_values, repeatable
from workbench.config import BoostConfig, ConfigError, ParameterInfo, describe_parameters

INFOS = list(describe_parameters().values())
SCHEMA = BoostConfig.json_schema()


@functools.cache
def validator() -> Any:
    from jsonschema import Draft202012Validator  # six seconds, in each process that collects tests

    Draft202012Validator.check_schema(SCHEMA)
    return Draft202012Validator(SCHEMA)


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.path)
def test_parameter_is_described_completely(info: ParameterInfo) -> None:
    assert BoostConfig().with_values({info.path: info.default}) == BoostConfig(), "the default is not the default"
    assert info.title
    assert info.description.endswith(".")
    assert (info.low is None) == (info.high is None)
    assert bool(info.choices) == (info.kind in {"choice", "bool"})
    if info.low is not None and info.high is not None:
        assert info.low < info.high
        assert not info.log or info.low > 0
        expected = int if info.kind == "int" else float
        assert type(info.low) is type(info.high) is expected
    try:
        BoostConfig().with_values({info.path: None})
    except ConfigError:
        assert not info.optional
    else:
        assert info.optional


@settings(repeatable, max_examples=15)  # each draws a value of every parameter
@given(st.data())
def test_every_value_of_a_search_range_is_legal(data: st.DataObject) -> None:
    values: dict[str, Any] = {}
    for info in INFOS:
        if info.kind in {"choice", "bool"}:
            values[info.path] = data.draw(st.sampled_from(info.choices))
        elif info.low is not None and info.kind == "int":
            values[info.path] = data.draw(st.integers(int(info.low), int(info.high or 0)))
        elif info.low is not None:
            values[info.path] = data.draw(st.floats(info.low, info.high))
    config = BoostConfig().with_values(values)
    assert {path: config.leaves()[path] for path in values} == values


def test_freeze_p_says_that_it_is_the_share_of_full_steps() -> None:
    info = describe_parameters()["grad_freeze.freeze_p"]
    assert "Share of FULL steps" in info.description
    assert (info.kind, info.default, info.rule) == ("float", 0.7, "be a finite number in [0, 1)")


def test_kinds_choices_and_units_are_those_of_the_fields() -> None:
    infos = describe_parameters()
    assert infos["boost.mode"].choices == ("auto", "manual", "enable_all", "disable_all")
    assert infos["grad_freeze.freeze_type"].choices == (0, 1)
    assert (infos["loss_scale.window"].kind, infos["loss_scale.window"].unit) == ("int", "steps")
    assert infos["loss_scale.init"].log
    assert infos["common.gradient_split_groups"].kind == infos["optimizer.betas"].kind == "list"
    assert infos["dim_reduce.pca_mat_path"].kind == "str"
    assert infos["less_bn.fn_flag"].kind == "bool"


def test_schema_is_itself_valid_and_plain_json() -> None:
    assert validator()
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@repeatable
@given(config_dicts())
def test_schema_accepts_what_is_accepted(values: dict[str, Any]) -> None:
    BoostConfig.from_dict(values)
    validator().validate(values)


@repeatable
@given(configs)
def test_schema_accepts_what_is_written(config: BoostConfig) -> None:
    validator().validate(config.to_dict())


@repeatable
@given(st.sampled_from(sorted(legal_values)), odd_values)
def test_schema_accepts_every_single_value_that_is_accepted(path: str, value: Any) -> None:
    section, key = path.split(".")
    values = {section: {key: value}}
    try:
        BoostConfig.from_dict(values)
    except ConfigError:
        return
    validator().validate(values)


@pytest.mark.parametrize(
    "values",
    [
        {"boost": {"grad_freez": True}},
        {"bost": {}},
        {"grad_freeze": {"freeze_p": 1}},
        {"grad_freeze": {"freeze_p": "high"}},
        {"grad_freeze": {"param_groups": 0}},
        {"boost": {"mode": "fancy"}},
        {"common": {"gradient_split_groups": 5}},
        {"optimizer": {"betas": [0.5]}},
        {"compatibility": "mindspore-2.6"},
        {"amp": None},
    ],
    ids=str,
)
def test_schema_refuses_what_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BoostConfig.from_dict(values)
    assert not validator().is_valid(values)


@pytest.mark.parametrize(
    "values", [{"optimizer": {"name": "task"}}, {"compatibility": {"loss_scale_reciprocal": "exact"}}]
)
def test_other_spellings_that_can_be_read_are_valid_by_the_schema(values: dict[str, Any]) -> None:
    BoostConfig.from_dict(values)
    assert [error.message for error in validator().iter_errors(values)] == []
