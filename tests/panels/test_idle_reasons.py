from __future__ import annotations

from typing import Any

import pytest

from workbench.config import (
    SWITCHES,
    BoostConfig,
    ConfigError,
    describe_parameters,
)
from workbench.panels.idle_reasons import (
    idle_reason,
    owner_note,
    switch_refusals,
    with_switch,
)

PARAMETERS = describe_parameters()
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
    refusals = switch_refusals(config, level, world_size)
    assert list(refusals) == list(SWITCHES)
    for name, reason in refusals.items():
        try:
            plan = with_switch(config, level, name, on=True).resolve(level, world_size)
        except ConfigError:
            assert name == "dim_reduce"
            assert "source of its subspace" in reason
        else:
            assert getattr(plan, name) is not bool(reason), (name, reason)


@EACH_CONFIG
def test_what_is_disabled_changes_nothing_and_says_why(values: dict[str, Any]) -> None:
    config = BoostConfig.from_dict(values)
    plan = config.resolve("O1")
    refusals = switch_refusals(config, "O1")
    for path, info in PARAMETERS.items():
        if path.removeprefix("boost.") in SWITCHES:
            continue
        reason = idle_reason(plan, path, refusals)
        if not reason:
            continue
        assert reason[0] != " "
        assert not reason.endswith("."), "it stands in the middle of a sentence"
        for value in [*info.choices, info.low, info.high]:
            if value is not None and not (info.kind == "float" and path == "loss_scale.init"):
                changed = config.with_values({path: value}).resolve("O1")
                assert changed == plan, f"{path} was said to be idle ({reason}), but it changes the plan"


@EACH_CONFIG
def test_what_has_a_say_is_never_disabled(values: dict[str, Any]) -> None:
    config = BoostConfig.from_dict(values)
    plan = config.resolve("O2", 16)
    refusals = switch_refusals(config, "O2", 16)
    for path in PARAMETERS:
        if plan.matters(path):
            assert idle_reason(plan, path, refusals) == "", path


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
    refusals = switch_refusals(config, "O0")
    assert path in refusals[switch]
    assert idle_reason(config.resolve("O0"), path, refusals) == ""


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("grad_freeze.freeze_p", "Gradient freezing is off"),
        ("loss_scale.window", "there is no loss scale (loss_scale.kind)"),
        ("loss_scale.groups", "Loss scale per group is off"),
        ("amp.keep_batchnorm_fp32", "mixed precision is off (amp.level O0)"),
        ("snapshots.every_steps", "no snapshots are kept (snapshots.count is 0)"),
    ],
)
def test_the_reason_names_what_is_off(path: str, reason: str) -> None:
    config = BoostConfig()
    assert idle_reason(config.resolve("O0"), path, switch_refusals(config, "O0")) == reason


@pytest.mark.parametrize(
    ("optimizer", "path", "reason"),
    [
        ("AdamW", "optimizer.damping", "AdamW has no such parameter; only thor has it"),
        ("thor", "optimizer.eps", "thor has no such parameter; Adam, AdamW, RMSprop, Adagrad and adam_offload have it"),
        ("Adam", "optimizer.momentum", "Adam has no such parameter; SGD, RMSprop and thor have it"),
        ("thor", "optimizer.damping", ""),
    ],
)
def test_what_the_named_optimizer_lacks_says_who_has_it(optimizer: str, path: str, reason: str) -> None:
    config = BoostConfig.from_dict({"optimizer": {"name": optimizer}})
    assert idle_reason(config.resolve("O0"), path, switch_refusals(config, "O0")) == reason
    assert owner_note(config.resolve("O0"), path) == ""


@pytest.mark.parametrize("values", [{}, {"optimizer": {"lr": 0.1}}], ids=["no section", "no name"])
def test_without_a_name_thors_own_parameters_say_whose_they_are(values: dict[str, Any]) -> None:
    plan = BoostConfig.from_dict(values).resolve("O0")
    said = {path for path in PARAMETERS if owner_note(plan, path)}
    own = ("damping", "damping_decay", "frequency", "factor_decay", "trace_threshold", "kl_clip")
    assert said == {f"optimizer.{name}" for name in own}
    assert owner_note(plan, "optimizer.damping") == (
        "only thor has it: choose it as optimizer, unless the task has it by itself"
    )


def test_turning_a_switch_keeps_what_the_level_asks_for() -> None:
    changed = with_switch(BoostConfig(), "O2", "grad_freeze", on=False)
    assert changed.boost.mode == "manual"
    assert [name for name in SWITCHES if getattr(changed.boost, name)] == ["less_bn", "adasum"]
