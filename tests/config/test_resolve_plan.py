"""What is in effect, what is not, and why."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.config_strategies import configs, legal_values, levels, repeatable
from workbench.config import SWITCHES, BoostConfig, ConfigError, GradFreezeConfig, Plan, line_search_trials
from workbench.methods.grad_freeze.method import freeze_index_sequence

MANUAL: dict[str, Any] = {"mode": "manual"}
SOURCE = {"pca_mat_path": "/x/pca.npy"}
ACCUMULATING = {"boost": MANUAL | {"grad_accumulation": True}, "grad_accumulation": {"grad_accumulation_step": 4}}
REDUCED = {"boost": MANUAL | {"dim_reduce": True}, "dim_reduce": SOURCE}
GROUPED = {"boost": MANUAL | {"loss_scale_group": True}}
FLOAT16, DYNAMIC = {"amp": {"level": "O2"}}, {"loss_scale": {"kind": "dynamic"}}
COMPILED = {"runtime": {"compile": "default", "threads": 2}}
ADASUM = {"boost": MANUAL | {"adasum": True}}


def plan_of(level: str = "O0", world_size: int = 1, **sections: Any) -> Plan:
    return BoostConfig.from_dict(sections).resolve(level, world_size)


@pytest.mark.parametrize(
    ("level", "effect"), [("O0", ()), ("O1", ("less_bn", "grad_freeze")), ("O2", ("less_bn", "grad_freeze"))]
)
def test_levels_ask_for_the_reference_s_table(level: str, effect: tuple[str, ...]) -> None:
    assert plan_of(level).in_effect() == effect


def test_o1_and_o2_on_one_device_are_one_configuration() -> None:
    one, two = plan_of("O1"), plan_of("O2")
    assert one == two
    assert (one.key(), hash(one)) == (two.key(), hash(two))
    assert one.key() != plan_of("O0").key()
    assert [entry.name for entry in two.dropped] == ["adasum"]


@pytest.mark.parametrize("level", ["O3", "o1", "", "auto", None, 1, ["O1"], "O1 "])
def test_any_other_level_is_an_error(level: Any) -> None:
    with pytest.raises(ConfigError, match=r'^`level` must be one of "O0", "O1", "O2", got '):
        BoostConfig().resolve(level)


@pytest.mark.parametrize("world_size", [0, -1, 1.0, True, "2", None])
def test_number_of_ranks_must_be_a_positive_whole_number(world_size: Any) -> None:
    with pytest.raises(ConfigError, match=r"^`world_size` must be a whole number at least 1, got "):
        BoostConfig().resolve("O1", world_size)


def test_dim_reduce_runs_alone() -> None:
    plan = plan_of("O2", 16, boost={"mode": "enable_all"}, dim_reduce=SOURCE, amp={"level": "O2"})
    assert plan.in_effect() == ("dim_reduce",)
    assert {entry.name for entry in plan.dropped} == set(SWITCHES) - {"dim_reduce"}
    assert all("dim_reduce is on, which runs alone" in entry.reason for entry in plan.dropped)


@pytest.mark.parametrize("boost", [{"mode": "enable_all"}, {"mode": "manual", "dim_reduce": True}])
def test_dim_reduce_without_a_source_says_how_to_get_one(boost: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"pca_mat_path.*weight_load_dir.*snapshots\.count"):
        plan_of(boost=boost)
    assert plan_of(boost=boost, dim_reduce={"weight_load_dir": "snapshots"}).dim_reduce


def test_dim_reduce_replaces_the_optimizer() -> None:
    plan = plan_of(boost=MANUAL | {"dim_reduce": True}, dim_reduce=SOURCE, optimizer={"lr": 0.1})
    assert [entry.name for entry in plan.dropped] == ["optimizer"]
    assert not any(path.startswith("optimizer") for path in plan.parameters_in_effect())


@pytest.mark.parametrize(
    ("ranks", "device_number", "works"),
    [
        *((1, 8, False), (8, 8, False), (16, 8, True), (17, 8, False), (24, 8, False), (32, 8, True)),
        *((2, 1, True), (6, 2, False), (8, 2, True)),
    ],
)
def test_adasum_needs_a_power_of_two_of_full_servers(ranks: int, device_number: int, works: bool) -> None:
    plan = plan_of("O0", ranks, boost=MANUAL | {"adasum": True}, common={"device_number": device_number})
    assert plan.adasum is works
    assert bool(plan.dropped) is not works
    if not works:
        assert f"servers of {device_number} ranks" in plan.dropped[0].reason


@pytest.mark.parametrize(("ranks", "works"), [(8, False), (16, True), (17, True), (24, False), (32, True)])
def test_adasum_counts_servers_of_eight_under_compatibility(ranks: int, works: bool) -> None:
    sections = {"common": {"device_number": 2}, "compatibility": {"adasum_servers": "eight"}}
    assert plan_of("O0", ranks, boost=MANUAL | {"adasum": True}, **sections).adasum is works


def test_freezing_switches_adasum_off_but_neither_less_bn_nor_accumulation() -> None:
    plan = plan_of("O2", 16, **ACCUMULATING)
    assert plan.in_effect() == ("less_bn", "grad_freeze", "grad_accumulation")
    assert [(entry.name, "grad_freeze is asked for" in entry.reason) for entry in plan.dropped] == [("adasum", True)]


def test_accumulation_over_one_micro_batch_and_one_freezing_group_change_nothing() -> None:
    plan = plan_of(boost=MANUAL | {"grad_accumulation": True, "grad_freeze": True}, grad_freeze={"param_groups": 1})
    assert plan == plan_of()
    assert [entry.name for entry in plan.dropped] == ["grad_freeze", "grad_accumulation"]


def test_a_freezing_schedule_without_a_step_changes_nothing() -> None:
    plan = plan_of("O1", grad_freeze={"total_steps": 0})
    assert plan.in_effect() == ("less_bn",)
    assert [entry.reason for entry in plan.dropped] == [
        "grad_freeze is not in effect because `grad_freeze.total_steps` is 0: its schedule has no step"
    ]


@pytest.mark.parametrize(("groups", "kind", "p"), [(2, 0, 0.3), (2, 0, 0.7), (10, 0, 0.7), (10, 1, 0.7), (1, 1, 0.3)])
def test_the_share_of_frozen_steps_shown_is_that_of_the_schedule(groups: int, kind: int, p: float) -> None:
    freeze = GradFreezeConfig.model_validate({"param_groups": groups, "freeze_type": kind, "freeze_p": p})
    sequence = freeze_index_sequence(groups, kind, p, 20_000, 0)
    share = sum(index > 0 for index in sequence) / len(sequence)
    assert freeze.frozen_share() == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize(
    ("sections", "works"),
    [
        ({}, False),
        ({"amp": {"level": "O2"}}, True),
        ({"amp": {"level": "O2", "dtype": "bfloat16"}}, False),
        ({"amp": {"level": "O3"}}, False),
        ({"amp": {"level": "auto"}}, True),
        ({"loss_scale": {"kind": "dynamic"}}, True),
        ({"loss_scale": {"kind": "fixed"}, "amp": {"level": "O2"}}, False),
    ],
)
def test_scale_groups_need_a_dynamic_scale(sections: dict[str, Any], works: bool) -> None:
    plan = plan_of(boost=MANUAL | {"loss_scale_group": True}, **sections)
    assert plan.loss_scale_group is works
    assert ("loss_scale.groups" in plan.parameters_in_effect()) is works
    assert works or "set `loss_scale.kind` to dynamic" in plan.dropped[0].reason


def test_scale_groups_are_switched_on_by_their_switch_alone() -> None:
    plan = plan_of(loss_scale={"groups": 7}, amp={"level": "O2"})
    assert not plan.loss_scale_group
    assert "loss_scale.groups" not in plan.parameters_in_effect()


def test_parameters_of_what_is_off_do_not_matter() -> None:
    frozen = {"freeze_p": 0.2, "total_steps": 7, "param_groups": 3, "freeze_type": 0}
    assert plan_of("O0", grad_freeze=frozen) == plan_of("O0")
    for name, value in frozen.items():
        assert plan_of("O1", grad_freeze={name: value}) != plan_of("O1"), name


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        ({}, set()),
        ({"amp": {"level": "O2"}}, {"init", "factor", "window", "minimum", "collapse_after"}),
        ({"amp": {"level": "O2", "dtype": "bfloat16"}}, set()),
        ({"loss_scale": {"kind": "fixed"}}, {"init", "drop_overflow_update", "collapse_after"}),
        ({"loss_scale": {"kind": "fixed", "drop_overflow_update": False}}, {"init", "drop_overflow_update"}),
    ],
)
def test_loss_scale_parameters_matter_as_far_as_the_kind_uses_them(sections: dict[str, Any], names: set[str]) -> None:
    paths = plan_of(**sections).parameters_in_effect()
    assert {path.partition(".")[2] for path in paths if path.startswith("loss_scale.")} - {"kind"} == names


def test_default_and_explicit_choice_of_the_same_are_one_plan() -> None:
    assert plan_of(amp={"level": "O2"}) == plan_of(amp={"level": "O2"}, loss_scale={"kind": "dynamic"})
    assert plan_of(amp={"level": "O3"}) == plan_of(amp={"level": "O3", "keep_batchnorm_fp32": False})
    assert plan_of(amp={"level": "O3"}) != plan_of(amp={"level": "O3", "keep_batchnorm_fp32": True})
    assert plan_of("O1") == plan_of("O0", boost=MANUAL | {"less_bn": True, "grad_freeze": True})


def test_hyper_parameter_the_optimizer_lacks_is_dropped_with_a_sentence() -> None:
    plan = plan_of(optimizer={"name": "Adam", "momentum": 0.9})
    assert plan == plan_of(optimizer={"name": "Adam"})
    assert [entry.reason for entry in plan.dropped] == [
        "`optimizer.momentum` is not in effect because Adam has no such parameter; SGD, RMSprop, Muon and thor have it"
    ]
    assert plan_of(optimizer={"momentum": 0.9}).dropped == ()


@pytest.mark.parametrize(
    ("level", "sections", "text"),
    [
        ("O0", {}, "nothing switched on"),
        ("O1", {}, "LessBN + freezing (frozen steps: 30 %)"),
        ("O1", {"grad_freeze": {"freeze_p": 0.25}}, "LessBN + freezing (frozen steps: 75 %)"),
        ("O0", ACCUMULATING, "accumulation over 4"),
        ("O0", {"amp": {"level": "O2"}}, "amp O2 float16 + dynamic loss scale"),
        ("O2", {"boost": {"mode": "enable_all"}, "dim_reduce": SOURCE}, "DimReduce (32 components)"),
        ("O0", {"optimizer": {"name": "SGD", "lr": 0.5}}, "SGD (lr 0.5)"),
        ("O0", GROUPED | DYNAMIC | COMPILED, "2 threads + dynamic loss scale, 2 groups"),  # without the compiler
    ],
)
def test_summary_is_for_people(level: str, sections: dict[str, Any], text: str) -> None:
    assert plan_of(level, **sections).summary() == text


@repeatable
@given(configs, levels, st.sampled_from([1, 2, 8, 16, 24, 32]))
def test_resolve_raises_nothing_but_config_errors(config: BoostConfig, level: str, world_size: int) -> None:
    try:
        plan = config.resolve(level, world_size)
    except ConfigError:
        return
    refused = {entry.name for entry in plan.dropped} & set(SWITCHES)
    asked = {name for name in SWITCHES if plan.requested[name]}
    assert set(plan.in_effect()) & set(SWITCHES) == asked - refused
    assert refused <= asked
    assert all(entry.reason and "\n" not in entry.reason for entry in plan.dropped)
    assert all(value is not None for path, value in plan.parameters_in_effect().items() if path != "loss_scale.kind")
    assert plan.summary()
    assert pickle.loads(pickle.dumps(plan)) == plan


def _plan(config: BoostConfig, level: str) -> Plan | None:
    try:
        return config.resolve(level, 16)
    except ConfigError:
        return None


@repeatable
@given(configs, st.data(), levels, levels)
def test_keys_are_equal_exactly_when_the_parameters_in_effect_are(
    config: BoostConfig, data: st.DataObject, level: str, other_level: str
) -> None:
    path = data.draw(st.sampled_from(sorted(legal_values)))
    one, other = _plan(config, level), _plan(config.with_values({path: data.draw(legal_values[path])}), other_level)
    if one is None or other is None:
        return
    same = one.parameters_in_effect() == other.parameters_in_effect()
    assert (one.key() == other.key()) is same
    assert (one == other) is same


@repeatable
@given(configs, st.data(), levels)
def test_parameter_that_does_not_matter_changes_no_plan(config: BoostConfig, data: st.DataObject, level: str) -> None:
    plan = _plan(config, level)
    if plan is None:
        return
    idle = [path for path in sorted(legal_values) if not plan.matters(path)]
    if idle:
        path = data.draw(st.sampled_from(idle))
        changed = config.with_values({path: data.draw(legal_values[path])}).resolve(level, 16)
        assert changed == plan
        assert changed.requested == plan.requested


@repeatable
@given(configs, levels, levels)
def test_explicit_configuration_means_the_same_at_every_level(config: BoostConfig, level: str, other: str) -> None:
    plan = _plan(config, level)
    if plan is None:
        return
    explicit = plan.explicit_config()
    assert explicit.boost.mode == "manual"
    assert explicit.resolve(other, 16) == plan
    assert not [entry for entry in explicit.resolve(other, 16).dropped if entry.name in SWITCHES]


@pytest.mark.parametrize(
    ("path", "acting", "idle"),
    [
        ("less_bn.fn_flag", ("O1", 1, {}), ("O0", 1, {})),
        ("grad_freeze.total_steps", ("O1", 1, {}), ("O0", 1, {})),
        ("common.gradient_split_groups", ("O0", 2, {}), ("O0", 1, {})),
        ("common.device_number", ("O0", 16, ADASUM), ("O2", 16, {})),
        ("amp.dtype", ("O0", 1, {"amp": {"level": "O3"}}), ("O0", 1, {})),
        ("boost.less_bn", ("O0", 1, {"boost": MANUAL}), ("O0", 1, {})),
        ("optimizer.betas", ("O0", 1, {"optimizer": {"name": "Adam"}}), ("O0", 1, {"optimizer": {"name": "SGD"}})),
        ("optimizer.lr", ("O0", 1, {}), ("O0", 1, REDUCED)),
        ("snapshots.every_steps", ("O0", 1, {"snapshots": {"count": 3}}), ("O0", 1, {})),
        ("compatibility.freeze_state", ("O1", 1, {}), ("O0", 1, {})),
        ("compatibility.less_bn_match", ("O1", 1, {}), ("O0", 1, {})),
        ("compatibility.fn_scope", ("O1", 1, {}), ("O1", 1, {"less_bn": {"fn_flag": False}})),
        ("compatibility.fn_bias", ("O1", 1, {}), ("O1", 1, {"less_bn": {"fn_flag": False}})),
        ("compatibility.grad_centralization", ("O1", 1, {}), ("O1", 1, {"less_bn": {"gc_flag": False}})),
        ("compatibility.loss_scale_ceiling", ("O0", 1, {"amp": {"level": "O2"}}), ("O0", 1, {})),
        ("compatibility.adasum_servers", ("O0", 16, ADASUM), ("O2", 16, {})),
        ("compatibility.dim_reduce", ("O0", 1, REDUCED), ("O0", 1, {"dim_reduce": SOURCE})),
        ("compatibility.group_loss_scale", ("O0", 1, GROUPED | FLOAT16), ("O0", 1, FLOAT16)),
        ("compatibility.thor_factors", ("O0", 1, {}), ("O0", 1, {"optimizer": {"name": "SGD"}})),
    ],
)
def test_parameter_matters_exactly_where_it_acts(
    path: str, acting: tuple[str, int, dict[str, Any]], idle: tuple[str, int, dict[str, Any]]
) -> None:
    acts, rests = (plan_of(level, ranks, **sections) for level, ranks, sections in (acting, idle))
    assert (acts.matters(path), rests.matters(path)) == (True, False)
    assert path.startswith("boost.") or path not in rests.parameters_in_effect()


def test_the_number_of_line_search_trials_follows_the_arithmetic_unless_it_is_set() -> None:
    base = BoostConfig.from_dict(REDUCED)
    reference = base.with_values({"compatibility": "mindspore-2.7"})
    assert line_search_trials(base) == 8
    assert line_search_trials(reference) == 2
    assert line_search_trials(reference.with_values({"dim_reduce.line_search_trials": 5})) == 5
    # Eight said and eight meant are one plan; another number is another.
    assert base.resolve() == base.with_values({"dim_reduce.line_search_trials": 8}).resolve()
    assert base.resolve() != base.with_values({"dim_reduce.line_search_trials": 2}).resolve()
    assert "dim_reduce.line_search_trials" not in BoostConfig().resolve().parameters_in_effect()
