"""Reading, writing, changing and comparing configurations."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.config_strategies import config_dicts, configs, legal_values, odd_values, repeatable
from workbench.config import (
    BoostConfig,
    CompatibilityConfig,
    ConfigError,
    GradFreezeConfig,
    OptimizerConfig,
    describe_parameters,
)
from workbench.methods.registry import METHODS


def test_empty_text_and_none_are_the_empty_configuration() -> None:
    assert BoostConfig.from_dict("") == BoostConfig.from_dict(None) == BoostConfig.from_dict({}) == BoostConfig()


@settings(repeatable, max_examples=25)
@given(configs)
def test_a_round_trip_through_a_file_or_a_dictionary_changes_nothing(tmp_path: Path, config: BoostConfig) -> None:
    values = config.to_dict()
    again = BoostConfig.from_dict(values)
    assert again == config
    assert again.to_dict() == values
    file = config.save(tmp_path / "boost_config.json")
    assert BoostConfig.from_json(file) == config
    assert "null" not in json.loads(file.read_text(encoding="ascii"), parse_constant=pytest.fail)
    assert [child.name for child in tmp_path.iterdir()] == ["boost_config.json"], "a temporary file was left behind"


@repeatable
@given(config_dicts())
def test_values_given_are_the_values_kept(values: dict[str, Any]) -> None:
    config = BoostConfig.from_dict(values)
    for section in values.keys() - {"provenance", "compatibility"}:
        owner = getattr(config, section)
        for key, value in values[section].items():
            kept = None if owner is None else getattr(owner, key)
            assert kept == (tuple(value) if key == "betas" and value else value)


@repeatable
@given(configs, st.data())
def test_with_values_equals_building_from_changed_dictionary(config: BoostConfig, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(legal_values)))
    value = data.draw(legal_values[path])
    changed = config.with_values({path: value})
    section, key = path.split(".")
    expected = config.to_dict()
    expected.setdefault(section, {})[key] = value
    assert changed == BoostConfig.from_dict(expected)
    assert set(config.diff(changed)) <= {path}
    back = changed.with_values({path: config.leaves()[path]})
    assert back == config


@repeatable
@given(configs, st.sampled_from(sorted(legal_values)), odd_values)
def test_odd_values_are_kept_or_refused_in_one_sentence(config: BoostConfig, path: str, value: Any) -> None:
    try:
        changed = config.with_values({path: value})
    except ConfigError as error:
        message = str(error)
        assert "\n" not in message
        assert len(message) < 400
        assert path.split(".")[0] in message
    else:
        assert BoostConfig.from_dict(changed.to_dict()) == changed


@repeatable
@given(configs, configs)
def test_diff_transplants_one_configuration_into_the_other(one: BoostConfig, other: BoostConfig) -> None:
    assert one.diff(one) == {}
    assert (one.diff(BoostConfig()) == {}) == (one == BoostConfig())
    changes = {path: there for path, (_, there) in one.diff(other).items()}
    assert one.with_values(changes) == other
    assert {path: (b, a) for path, (a, b) in one.diff(other).items()} == other.diff(one)


def test_file_is_ordered_as_the_reference_lists_its_sections(tmp_path: Path) -> None:
    config = BoostConfig.from_dict({"provenance": {"schema": 1}, "grad_freeze": {"freeze_p": 0.5}})
    text = config.save(tmp_path / "c.json").read_text(encoding="utf-8")
    assert list(json.loads(text)) == [
        *("boost", "common", "less_bn", "grad_freeze", "grad_accumulation", "dim_reduce"),
        *("loss_scale", "amp", "snapshots", "compatibility", "provenance"),
        *(method.section for method in METHODS if method.section_class),
    ]
    assert text.startswith('{\n  "boost": {\n    "mode": "auto"')
    assert text.endswith("}\n")


def test_boost_dict_holds_what_mindspore_reads_and_no_null() -> None:
    config = BoostConfig.from_dict({"boost": {"mode": "manual", "less_bn": True}, "amp": {"level": "O2"}})
    assert config.to_boost_dict() == {
        "boost": {"mode": "manual", "less_bn": True},
        "common": {"device_number": 8},
        "less_bn": {"fn_flag": True, "gc_flag": True},
        "grad_freeze": {"param_groups": 10, "freeze_type": 1, "freeze_p": 0.7, "total_steps": 65536},
        "grad_accumulation": {"grad_accumulation_step": 1},
        "dim_reduce": {"rho": 0.55, "gamma": 0.9, "alpha": 0.001, "sigma": 0.4, "n_components": 32, "timeout": 1800},
    }


def test_dictionary_shares_nothing_with_the_configuration() -> None:
    config = BoostConfig.from_dict({"common": {"gradient_split_groups": [1]}, "provenance": {"a": {"b": 1}}})
    values = config.to_dict()
    values["common"]["gradient_split_groups"].append(2)
    values["provenance"]["a"]["b"] = 2
    assert config.to_dict()["common"]["gradient_split_groups"] == [1]
    assert config.provenance == {"a": {"b": 1}}


@pytest.mark.parametrize(("part", "name"), [(BoostConfig().grad_freeze, "freeze_p"), (BoostConfig(), "amp")])
def test_configuration_is_frozen(part: Any, name: str) -> None:
    with pytest.raises(ValueError, match="frozen"):
        setattr(part, name, getattr(part, name))


def test_copy_with_update_has_the_new_values() -> None:
    assert GradFreezeConfig().model_copy(update={"freeze_p": 0.25}) == GradFreezeConfig(freeze_p=0.25)


def test_whole_number_is_accepted_where_a_number_is_meant() -> None:
    assert repr(BoostConfig.from_dict({"grad_freeze": {"freeze_p": 0}}).grad_freeze.freeze_p) == "0.0"


def test_blank_path_is_no_path() -> None:
    assert BoostConfig.from_dict({"dim_reduce": {"pca_mat_path": "", "weight_load_dir": " "}}) == BoostConfig()


def test_section_that_sets_nothing_is_the_task_s_own_optimizer() -> None:
    assert BoostConfig.from_dict({"optimizer": {}}).optimizer is None
    config = BoostConfig().with_values({"optimizer.lr": 0.1})
    assert config.optimizer == OptimizerConfig(lr=0.1)
    for path in ("optimizer.lr", "optimizer"):
        assert config.with_values({path: None}).optimizer is None


def test_hyper_parameters_are_those_the_named_optimizer_takes() -> None:
    everything: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0}
    for name, kept in {
        "SGD": {"lr", "momentum", "weight_decay"},
        "Adam": {"lr", "betas", "eps", "weight_decay"},
        "RMSprop": {"lr", "momentum", "eps", "weight_decay"},
    }.items():
        assert set(OptimizerConfig(name=name, **everything).hyper_parameters()) == kept


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_torch_takes_every_hyper_parameter_listed_for_its_optimizer(name: str) -> None:
    torch = pytest.importorskip("torch")
    values = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True, "betas": [0.8, 0.9], "eps": 1e-7}
    section = BoostConfig.from_dict({"optimizer": {"name": name, **values}}).optimizer
    optimizer = getattr(torch.optim, name)([torch.zeros(1, requires_grad=True)], **section.hyper_parameters())
    for key, value in section.hyper_parameters().items():
        assert optimizer.param_groups[0][key] == value
    for key in set(values) - set(section.hyper_parameters()):
        assert key not in optimizer.param_groups[0] or not optimizer.param_groups[0][key]


def test_preset_restores_the_reference_everywhere() -> None:
    config = BoostConfig.from_dict({"compatibility": "mindspore-2.7"})
    for name, field in CompatibilityConfig.model_fields.items():
        first, second, *_ = get_args(field.annotation)
        assert getattr(config.compatibility, name) == second
        assert getattr(BoostConfig().compatibility, name) == first
    assert BoostConfig().with_values({"compatibility": "mindspore-2.7"}) == config
    softened = BoostConfig().with_values({"compatibility.fn_bias": "keep", "compatibility": "mindspore-2.7"})
    assert set(config.diff(softened)) == {"compatibility.fn_bias"}


def test_provenance_is_kept_and_its_nulls_are_left_out() -> None:
    provenance = {"task": "mine", "gpu": None, "versions": {"torch": "2.13", "npu": None}}
    kept = {"task": "mine", "versions": {"torch": "2.13"}}
    assert BoostConfig.from_dict({"provenance": provenance}).provenance == kept


def test_amp_auto_follows_the_device() -> None:
    config = BoostConfig.from_dict({"amp": {"level": "auto"}})
    for device, level, scale, keeps in (
        ("cuda", "O2", "dynamic", True),
        ("npu", "O3", "none", False),
        ("cpu", "O0", "none", True),
        ("mps", "O0", "none", True),
    ):
        assert config.effective_amp_level(device) == level
        assert config.effective_loss_scale_kind(device) == scale
        assert config.effective_keep_batchnorm_fp32(device) is keeps


@pytest.mark.parametrize(
    ("amp", "kind", "expected"),
    [
        ({"level": "O2"}, None, "dynamic"),
        ({"level": "O2", "dtype": "bfloat16"}, None, "none"),
        ({"level": "O3"}, None, "none"),
        ({"level": "O0"}, None, "none"),
        ({"level": "O0"}, "dynamic", "dynamic"),
        ({"level": "O2"}, "none", "none"),
        ({"level": "O3"}, "fixed", "fixed"),
    ],
)
def test_loss_scale_is_dynamic_by_default_under_float16_autocast_only(
    amp: dict[str, str], kind: str | None, expected: str
) -> None:
    config = BoostConfig.from_dict({"amp": amp, "loss_scale": {"kind": kind}})
    assert config.effective_loss_scale_kind("cuda") == expected


def test_repr_names_the_differences_in_one_line() -> None:
    assert repr(BoostConfig()) == "BoostConfig()"
    config = BoostConfig.from_dict({"boost": {"mode": "manual", "less_bn": True}, "grad_freeze": {"freeze_p": 0.5}})
    written = 'BoostConfig(boost.mode="manual", boost.less_bn=true, grad_freeze.freeze_p=0.5)'
    assert repr(config) == str(config) == written


def test_html_is_a_script_free_table_that_escapes_what_it_shows() -> None:
    config = BoostConfig.from_dict(
        {"dim_reduce": {"pca_mat_path": "<script>alert(1)</script>"}, "optimizer": {"lr": 0.1}}
    )
    page = config._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "var(--jp-" in page
    assert "optimizer.lr" in page
    assert page.count("<tr") == page.count("</tr>")
    assert "optimizer.lr" not in BoostConfig()._repr_html_()


def test_configuration_survives_pickling() -> None:
    config = BoostConfig.from_dict({"optimizer": {"betas": [0.9, 0.99]}, "common": {"gradient_split_groups": [3]}})
    assert pickle.loads(pickle.dumps(config)) == config


def test_strategies_cover_every_parameter() -> None:
    assert set(legal_values) == set(describe_parameters())


def test_files_that_name_the_retired_reciprocal_still_load() -> None:
    assert BoostConfig.from_dict({"compatibility": {"loss_scale_reciprocal": "exact"}}) == BoostConfig()
    message = r"`compatibility\.loss_scale_reciprocal` is no longer there .* on the machine"
    with pytest.warns(UserWarning, match=message) as caught:
        read = BoostConfig.from_dict({"compatibility": {"loss_scale_reciprocal": "flushed", "fn_bias": "drop"}})
    assert caught[0].filename == __file__, "though pydantic lies between"
    assert read == BoostConfig.from_dict({"compatibility": {"fn_bias": "drop"}})
