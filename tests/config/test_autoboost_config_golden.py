"""The recorded resolution table of MindSpore's AutoBoost.

Documented differences, by rule: an unknown level, section or key, a wrong type and a value out of range are errors
here (there they pass unseen); dim_reduce without a source for its subspace is an error when the plan is made (there in
the middle of training). There is no singleton and no table that a configuration could change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.golden_files import golden_paths, load_json
from workbench.config import LEVELS, SWITCHES, BoostConfig, ConfigError, requested_switches

# What a value must be, written down independently of the package; own sections are checked for their keys only.
_switch = "true, false or null", lambda value: value is None or isinstance(value, bool)
_flag = "true or false", lambda value: isinstance(value, bool)
_path = "text or null", lambda value: value is None or isinstance(value, str)


def _whole(least: int) -> tuple[str, Callable[[Any], bool]]:
    return f"whole, >= {least}", lambda value: type(value) is int and least <= value < 2**63


def _number(accept: Callable[[float], bool]) -> tuple[str, Callable[[Any], bool]]:
    return "number in range", lambda value: type(value) in {int, float} and math.isfinite(value) and accept(value)


KEYS: dict[str, dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "boost": {
        "mode": ("a mode", lambda value: value in ("auto", "manual", "enable_all", "disable_all")),
        **dict.fromkeys(SWITCHES, _switch),
    },
    "common": {
        "gradient_split_groups": (
            "list of positions or null",
            lambda value: value is None or (type(value) is list and all(type(i) is int and i >= 0 for i in value)),
        ),
        "device_number": _whole(1),
    },
    "less_bn": {"fn_flag": _flag, "gc_flag": _flag},
    "grad_freeze": {
        "param_groups": _whole(1),
        "freeze_type": ("0 or 1", lambda value: type(value) is int and value in (0, 1)),
        "freeze_p": _number(lambda value: 0 <= value < 1),
        "total_steps": _whole(0),
    },
    "grad_accumulation": {"grad_accumulation_step": _whole(1)},
    "dim_reduce": {
        "rho": _number(lambda value: 0 < value < 1),
        "gamma": _number(lambda value: 0 <= value < 1),
        "alpha": _number(lambda value: value >= 0),
        "sigma": _number(lambda value: 0 < value < 1),
        "n_components": _whole(1),
        "pca_mat_path": _path,
        "weight_load_dir": _path,
        "timeout": _whole(1),
    },
}
OWN_KEYS = {
    "loss_scale": {"kind", "init", "factor", "window", "minimum", "maximum", "drop_overflow_update", "collapse_after"}
    | {"groups"},
    "amp": {"level", "dtype", "keep_batchnorm_fp32"},
    "optimizer": {"name", "lr", "momentum", "weight_decay", "nesterov", "betas", "eps"},
    "snapshots": {"every_steps", "count", "start_step"},
}

ATTRIBUTES = {
    "_fn_flag": "less_bn.fn_flag",
    "_gc_flag": "less_bn.gc_flag",
    "_param_groups": "grad_freeze.param_groups",
    "_freeze_type": "grad_freeze.freeze_type",
    "_freeze_p": "grad_freeze.freeze_p",
    "_total_steps": "grad_freeze.total_steps",
    "gradient_groups": "common.gradient_split_groups",
    "device_number": "common.device_number",
    "grad_accumulation_step": "grad_accumulation.grad_accumulation_step",
    **{
        name: f"dim_reduce.{name}"
        for name in ("rho", "gamma", "alpha", "sigma", "n_components", "pca_mat_path", "weight_load_dir", "timeout")
    },
}

TABLES = [(path, load_json(path)) for path in golden_paths("autoboost_config*.json")]
CASES = [
    pytest.param(case, id=f"{path.stem}-{number}-{case.get('case', '')}-{case['level']}")
    for path, table in TABLES
    for number, case in enumerate(table["cases"])
]


def refusal(values: Any) -> str:
    """Return the rule by which a configuration is refused here, or an empty string."""
    if values in (None, ""):
        return ""
    if not isinstance(values, dict):
        return "not an object"
    for section, members in values.items():
        if section in {"compatibility", "provenance"}:
            continue
        if section not in KEYS and section not in OWN_KEYS:
            return f"unknown section {section}"
        if not isinstance(members, dict):
            return f"{section} is not an object"
        for key, value in members.items():
            if key not in KEYS.get(section, OWN_KEYS.get(section, ())):
                return f"unknown key {section}.{key}"
            if section in KEYS and not KEYS[section][key][1](value):
                return f"{section}.{key} must be {KEYS[section][key][0]}"
    return ""


def recorded_config(case: dict[str, Any]) -> Any:
    """Return the recorded configuration; JSON has no tuples, so one is told from a list by what was complained of."""
    values = case["config"]
    if "gradient_groups `(" in case["result"].get("message", ""):
        values = {**values, "common": {**values["common"]}}
        values["common"]["gradient_split_groups"] = tuple(values["common"]["gradient_split_groups"])
    return values


@pytest.mark.parametrize("case", CASES)
def test_golden_configuration_is_refused_by_rule_or_means_what_the_reference_resolves(case: dict[str, Any]) -> None:
    values = recorded_config(case)
    rule = refusal(values)
    if "exception" in case["result"]:
        assert rule, "the reference refuses it, and no rule here does"
    if rule:
        with pytest.raises(ConfigError):
            BoostConfig.from_dict(values)
        return
    config, level = BoostConfig.from_dict(values), case["level"]
    if level not in LEVELS:
        with pytest.raises(ConfigError, match=r"^`level` must be one of"):
            config.resolve(level)
        return
    # A switch that is null is off there; here it counts as one that is not named.
    resolved = case["result"]["boost_config"].items()
    expected = {name: name in LEVELS[level] if value is None else value for name, value in resolved}
    # The dictionary handed to MindSpore asks for the same.
    handed = config.to_boost_dict()
    for one in (config, BoostConfig.from_dict(handed)):
        assert requested_switches(one, level) == expected
    assert not any(value is None for members in handed.values() for value in members.values())
    leaves, defaults = config.leaves(), BoostConfig().leaves()
    for attribute, path in ATTRIBUTES.items():
        section = path.partition(".")[0]
        is_read = section == "common" or expected[section]
        wanted = (leaves if is_read else defaults)[path]
        assert (case["result"]["attrs"][attribute] or None) == (wanted or None), path
    source = leaves["dim_reduce.pca_mat_path"] or leaves["dim_reduce.weight_load_dir"]
    if expected["dim_reduce"] and not source:
        with pytest.raises(ConfigError, match="needs a source for its subspace"):
            config.resolve(level)
        return
    plan = config.resolve(level)
    assert plan.requested == expected
    assert not expected["dim_reduce"] or plan.in_effect() == ("dim_reduce",)


@pytest.mark.parametrize("table", [pytest.param(table, id=path.stem) for path, table in TABLES])
def test_golden_level_table_is_ours_and_nothing_changes_it(table: dict[str, Any]) -> None:
    before = {level: {name: name in LEVELS[level] for name in SWITCHES} for level in LEVELS}
    assert before == table["level_table"]
    BoostConfig.from_dict({"boost": {"mode": "manual", "less_bn": False, "adasum": True}}).resolve("O1", 16)
    assert {level: requested_switches(BoostConfig(), level) for level in LEVELS} == before
