"""Tests of what a plan says of a parameter that is not in effect."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.config_strategies import configs, legal_values, levels, repeatable
from workbench.config import (
    SWITCHES,
    BoostConfig,
    ConfigError,
    Facts,
    NetworkFacts,
    describe_parameters,
    parents_of,
    why_no_method,
    with_switch,
)

PARAMETERS = describe_parameters()
NETWORKS = [None, NetworkFacts(0, 0, 3, 3, 0, 3), NetworkFacts(4, 2, 12, 6, 0, 12)]
CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "accumulating": {
        "boost": {"mode": "manual", "grad_accumulation": True},
        "grad_accumulation": {"grad_accumulation_step": 4},
    },
    "half precision": {"amp": {"level": "O2"}, "optimizer": {"name": "AdamW", "lr": 0.1}},
    "automatic precision": {"amp": {"level": "auto"}},
    "fixed scale": {"loss_scale": {"kind": "fixed"}},
    "fixed scale, overflows applied": {"loss_scale": {"kind": "fixed", "drop_overflow_update": False}},
    "dimension reduced": {
        "boost": {"mode": "manual", "dim_reduce": True},
        "dim_reduce": {"weight_load_dir": "snapshots"},
    },
    "all off": {"boost": {"mode": "disable_all"}},
    "snapshots": {"snapshots": {"count": 8}},
}
EACH_CONFIG = pytest.mark.parametrize("values", CONFIGS.values(), ids=CONFIGS)


@EACH_CONFIG
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
@pytest.mark.parametrize("world_size", [1, 16])
def test_a_switch_without_a_refusal_is_in_effect_once_it_is_on(
    values: dict[str, Any], level: str, world_size: int
) -> None:
    config = BoostConfig.from_dict(values)
    for name in SWITCHES:
        reason = why_no_method(name, config, Facts(level, world_size))
        try:
            plan = with_switch(config, level, name, on=True).resolve(level, world_size)
        except ConfigError:
            assert name == "dim_reduce"
            assert "source for its subspace" in reason
        else:
            assert getattr(plan, name) is not bool(reason), (name, reason)


@EACH_CONFIG
def test_what_is_disabled_says_why_in_the_middle_of_a_sentence_and_changes_nothing(values: dict[str, Any]) -> None:
    plan = BoostConfig.from_dict(values).resolve("O1")
    for path in PARAMETERS:
        reason = plan.idle_reason(path)
        assert reason == reason.strip().rstrip(".")
        assert reason in ("", plan.why_not(path)), "test_resolve_plan.py: what does not matter changes no plan"


@pytest.mark.parametrize(
    ("switch", "path"),
    [
        ("grad_accumulation", "grad_accumulation.grad_accumulation_step"),
        ("dim_reduce", "dim_reduce.pca_mat_path"),
        ("dim_reduce", "dim_reduce.weight_load_dir"),
        ("dim_reduce", "snapshots.count"),
        ("loss_scale_group", "loss_scale.kind"),
        ("loss_scale_group", "amp.dtype"),
    ],
)
def test_the_parameter_that_a_switch_waits_for_can_be_set_while_the_switch_is_off(switch: str, path: str) -> None:
    config = BoostConfig()
    assert path in why_no_method(switch, config, Facts("O0"))
    assert config.resolve("O0").idle_reason(path) == ""


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("grad_freeze.freeze_p", "Gradient freezing is off"),
        ("loss_scale.window", "there is no loss scale (loss_scale.kind)"),
        ("loss_scale.groups", "Loss scale per group is off"),
        ("amp.keep_batchnorm_fp32", "mixed precision is off (amp.level O0)"),
        ("snapshots.every_steps", "no snapshots are kept (snapshots.count is 0)"),
        ("compatibility.freeze_state", "Gradient freezing is off"),
        ("compatibility.fn_bias", "LessBN is off"),
        ("common.gradient_split_groups", "a single rank reduces nothing"),
    ],
)
def test_the_reason_names_what_is_off(path: str, reason: str) -> None:
    assert BoostConfig().resolve("O0").idle_reason(path) == reason


@pytest.mark.parametrize(
    ("optimizer", "path", "reason"),
    [
        ("AdamW", "optimizer.damping", "AdamW has no such parameter; only thor has it"),
        (
            "thor",
            "optimizer.eps",
            "thor has no such parameter; Adam, AdamW, RMSprop, Adagrad, Muon, ScheduleFreeAdamW and adam_offload "
            "have it",
        ),
        ("Adam", "optimizer.momentum", "Adam has no such parameter; SGD, RMSprop, Muon and thor have it"),
        ("thor", "optimizer.damping", ""),
    ],
)
def test_what_the_named_optimizer_lacks_says_who_has_it(optimizer: str, path: str, reason: str) -> None:
    config = BoostConfig.from_dict({"optimizer": {"name": optimizer}})
    assert config.resolve("O0").idle_reason(path) == reason


def test_under_dim_reduce_the_whole_section_optimizer_says_that_dim_reduce_steps() -> None:
    plan = BoostConfig.from_dict(CONFIGS["dimension reduced"]).resolve("O0")
    for path in PARAMETERS:
        if path.startswith("optimizer."):
            assert plan.idle_reason(path) == "DimReduce makes its own steps"


@repeatable
@given(configs, st.data(), levels, st.sampled_from([1, 8, 16]), st.sampled_from(NETWORKS))
def test_a_condition_reads_nothing_but_what_it_says(
    config: BoostConfig, data: st.DataObject, level: str, world_size: int, network: NetworkFacts | None
) -> None:
    facts = Facts(level, world_size, network)
    path = data.draw(st.sampled_from(sorted(PARAMETERS)))
    about, parents = PARAMETERS[path], parents_of(path)
    others = data.draw(st.lists(st.sampled_from(sorted(legal_values.keys() - parents)), max_size=8))
    changed = config.with_values({other: data.draw(legal_values[other]) for other in others})
    for condition in (about.when, about.needs):
        assert condition.why_not(changed, facts) == condition.why_not(config, facts)


def test_the_schema_says_when_a_parameter_is_in_effect() -> None:
    schema = BoostConfig.json_schema()["$defs"]
    assert schema["GradFreezeConfig"]["properties"]["freeze_p"]["when"] == "grad_freeze is in effect"
    assert schema["BoostSwitches"]["properties"]["adasum"]["when"] == "boost.mode is manual"
    assert schema["BoostSwitches"]["properties"]["adasum"]["needs"] == (
        "dim_reduce is not asked for and grad_freeze is not asked for and there are 2, 4, 8, ... full servers of ranks"
    )
    assert "when" not in schema["AmpConfig"]["properties"]["level"]


def test_turning_a_switch_keeps_what_the_level_asks_for() -> None:
    changed = with_switch(BoostConfig(), "O2", "grad_freeze", on=False)
    assert changed.boost.mode == "manual"
    assert [name for name in SWITCHES if getattr(changed.boost, name)] == ["less_bn", "adasum"]
