"""What acts on a network of which a few counts are known: the sentences, and what depends on what."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.config import BoostConfig, NetworkFacts

PLAIN = NetworkFacts(0, 0, 3, 3, 0, 3)
RESIDUAL = NetworkFacts(9, 4, 12, 6, 0, 12)


def config(param_groups: int = 3, **compatibility: Any) -> BoostConfig:
    return BoostConfig.from_dict({"grad_freeze": {"param_groups": param_groups}, "compatibility": compatibility})


def test_without_facts_every_method_is_taken_to_find_work() -> None:
    assert config(10).resolve("O1").in_effect() == ("less_bn", "grad_freeze")


def test_o1_is_equal_to_o0_where_nothing_can_act() -> None:
    plan = config(10).resolve("O1", network=PLAIN)
    assert plan == config(10).resolve("O0")
    assert plan.remarks() == [
        "less_bn is not in effect because this network has no BatchNorm",
        "grad_freeze is not in effect because this network can be cut into 3 groups at most, fewer than "
        "`grad_freeze.param_groups` = 10; lower it",
        "level O1 is equal to O0 here: none of the methods it asks for is in effect",
    ]


def test_parameters_of_a_method_that_cannot_act_are_in_no_plan() -> None:
    plan = config(2).resolve("O1", network=PLAIN)
    assert plan.in_effect() == ("grad_freeze",)
    assert not plan.matters("less_bn.gc_flag")
    assert "less_bn.fn_flag" not in plan.parameters_in_effect()
    assert "boost.less_bn" in plan.parameters_in_effect()


@pytest.mark.parametrize(("groups", "acts"), [(6, True), (7, False), (12, False)])
def test_layers_are_counted_as_less_bn_leaves_them(groups: int, acts: bool) -> None:
    assert config(groups).resolve("O1", network=RESIDUAL).grad_freeze is acts
    alone = config(groups).with_values({"boost.mode": "manual", "boost.less_bn": False})
    assert alone.resolve("O1", network=RESIDUAL).grad_freeze  # without LessBN all twelve are there


def test_the_rule_that_chooses_batch_norms_counts() -> None:
    plan = config(12, less_bn_match="reference").resolve("O1", network=RESIDUAL)
    assert plan.in_effect() == ("grad_freeze",)
    assert plan.dropped[0].reason == (
        "less_bn is not in effect because this network cannot spare any of its 9 BatchNorms"
    )


@pytest.mark.parametrize(
    ("rule", "flag"),
    [({"fn_scope": "every_module"}, "fn_flag"), ({"grad_centralization": "multiple_of_16"}, "gc_flag")],
    ids=["a head is replaced", "gradients are centralized"],
)
def test_by_the_reference_s_rules_less_bn_acts_without_any_batch_norm(rule: dict[str, str], flag: str) -> None:
    assert config(**rule).resolve("O1", network=PLAIN).less_bn
    assert not config(**rule).with_values({f"less_bn.{flag}": False}).resolve("O1", network=PLAIN).less_bn


def test_facts_survive_a_storage_of_plain_values() -> None:
    assert NetworkFacts.from_dict(RESIDUAL.to_dict()) == RESIDUAL


SWITCHES_BY_LEVEL = "switches that are not named take the default of level {}: "


@pytest.mark.parametrize(
    ("switches", "level", "told"),
    [
        ({"less_bn": True}, "O1", "grad_freeze on; adasum, grad_accumulation, dim_reduce, loss_scale_group off"),
        ({"grad_freeze": False, "less_bn": False}, "O0", "adasum, grad_accumulation, dim_reduce, loss_scale_group off"),
    ],
    ids=["one", "two"],
)
def test_switches_that_a_file_does_not_name_are_said(switches: dict[str, bool], level: str, told: str) -> None:
    plan = BoostConfig.from_dict({"boost": {"mode": "manual", **switches}}).resolve(level)
    assert plan.level_default_sentence() == SWITCHES_BY_LEVEL.format(level) + told
    assert plan.level_defaults() == {
        name: level == "O1" for name in ("grad_freeze",) if name not in switches
    } | dict.fromkeys(("adasum", "grad_accumulation", "dim_reduce", "loss_scale_group"), False)


def test_nothing_is_said_when_the_file_names_all_switches_or_none_counts() -> None:
    plan = BoostConfig().resolve("O1")
    assert plan.level_default_sentence() == ""
    assert plan.explicit_config().resolve("O2").level_default_sentence() == ""
