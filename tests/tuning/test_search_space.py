"""Only what is in effect is drawn, and every suggestion is a valid configuration."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workbench.config import HYPER_PARAMETERS, SWITCHES, BoostConfig, ConfigError, NetworkFacts, describe_parameters
from workbench.study.ask.plans import StudyPlans, explicit_config, needs_warm_up
from workbench.study.ask.search_space import Dimension, SearchedSpace, suggest
from workbench.study.ask.space_table import read_space
from workbench.study.errors import StudyError

ONE_RANK = StudyPlans()
SWITCH_PATHS = [f"boost.{name}" for name in SWITCHES]


class Scripted:
    """Draws what it is told, else at random, and remembers the names."""

    def __init__(self, values: dict[str, Any] | None = None, seed: int = 0) -> None:
        self.values = values or {}
        self.drawn: list[str] = []
        self.rng = random.Random(seed)

    def suggest_categorical(self, name: str, choices: Sequence[Any], /) -> Any:
        self.drawn.append(name)
        return self.values.get(name, self.rng.choice(list(choices)))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        self.drawn.append(name)
        return float(self.values.get(name, self.rng.uniform(low, high)))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        self.drawn.append(name)
        return int(self.values.get(name, self.rng.randint(low, high)))


SPACE = {
    "level": ["O0", "O1", "O2"],
    "boost.less_bn": [False, True],
    "boost.grad_freeze": [False, True],
    "boost.grad_accumulation": [False, True],
    "less_bn.fn_flag": [False, True],
    "grad_freeze.freeze_p": {"low": 0.3, "high": 0.9},
    "grad_freeze.freeze_type": [0, 1],
    "grad_accumulation.grad_accumulation_step": {"low": 2, "high": 4},
}


def drawn_with(values: dict[str, Any], space: dict[str, Any] = SPACE, plans: StudyPlans = ONE_RANK) -> set[str]:
    trial = Scripted(values)
    suggest(trial, read_space(space), BoostConfig(), plans)
    assert len(trial.drawn) == len(set(trial.drawn))
    return set(trial.drawn)


def test_freezing_parameters_are_drawn_only_when_freezing_is_on() -> None:
    switches = {"level", "boost.less_bn", "boost.grad_freeze", "boost.grad_accumulation"}
    off = {"level": "O1", "boost.less_bn": False, "boost.grad_freeze": False, "boost.grad_accumulation": False}
    assert drawn_with(off) == switches
    freezing = {"grad_freeze.freeze_p", "grad_freeze.freeze_type"}
    assert drawn_with(off | {"boost.grad_freeze": True}) == switches | freezing
    assert drawn_with(off | {"boost.less_bn": True}) == switches | {"less_bn.fn_flag"}


def test_switches_count_although_the_mode_is_auto_by_default() -> None:
    off = dict.fromkeys(("boost.less_bn", "boost.grad_freeze"), False)
    suggestion = suggest(
        Scripted({"level": "O1", **off}), read_space({path: [True, False] for path in off}), BoostConfig(), ONE_RANK
    )
    assert not suggestion.config.resolve(suggestion.level).in_effect()


def test_o0_is_everything_off_even_when_the_baseline_says_otherwise() -> None:
    assert drawn_with({"level": "O0"}) == {"level"}
    base = BoostConfig.from_dict({"boost": {"mode": "manual", "grad_freeze": True}})
    suggestion = suggest(Scripted({"level": "O0"}), read_space({"level": ["O0", "O1"]}), base, ONE_RANK)
    assert suggestion.config.resolve("O0") == BoostConfig().resolve("O0")


def test_the_level_decides_when_no_switch_is_searched() -> None:
    space = {"level": ["O1"], "grad_freeze.freeze_p": True}
    suggestion = suggest(Scripted(), read_space(space), BoostConfig(), ONE_RANK)
    assert suggestion.config.resolve(suggestion.level).grad_freeze
    assert 0.1 <= suggestion.parameters["grad_freeze.freeze_p"] <= 0.95  # the range config declares


DECLARED = sorted(
    path
    for path, info in describe_parameters().items()
    if (info.kind in {"bool", "choice"} or info.low is not None)
    and path not in {"boost.mode", "loss_scale.minimum", "optimizer.nesterov"}
)


@settings(max_examples=20)
@given(st.sets(st.sampled_from(DECLARED), max_size=16), st.integers(0, 10**6))
@example(set(DECLARED), 0)
@example(set(DECLARED), 1)
def test_every_suggestion_over_declared_ranges_is_valid_and_draws_only_what_matters(paths: set[str], seed: int) -> None:
    space = read_space({"level": True, **dict.fromkeys(paths, True)})
    suggestion = suggest(Scripted(seed=seed), space, BoostConfig(), ONE_RANK)
    plan = ONE_RANK.resolve(suggestion.config, suggestion.level)
    assert BoostConfig.from_dict(suggestion.config.to_dict()) == suggestion.config
    for path in suggestion.parameters:
        if path != "level" and not path.startswith("boost."):
            assert plan.matters(path), path


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (
            {"grad_freeze.freeze_q": [1]},
            'unknown parameter "grad_freeze.freeze_q"; did you mean "grad_freeze.freeze_p"?',
        ),
        ({"grad_freeze.freeze_p": []}, "empty list"),
        ({"grad_freeze.freeze_p": 0.5}, "must be a list of values"),
        ({"grad_freeze.freeze_p": {"lo": 0.1}}, 'has no option "lo"; did you mean "low"?'),
        ({"grad_freeze.freeze_p": {"low": 0.9, "high": 0.1}}, "`low` must not exceed `high`"),
        ({"grad_freeze.freeze_p": {"low": 0.0, "high": 0.1, "log": True}}, "must begin above 0"),
        ({"grad_freeze.freeze_p": {"low": float("nan"), "high": 0.1}}, "must be a finite number"),
        ({"grad_freeze.param_groups": {"low": 2.5, "high": 4}}, "`low` must be a whole number"),
        ({"boost.less_bn": {"low": 0, "high": 1}}, "is not a number"),
        ({"grad_freeze.total_steps": True}, "no declared search range"),
        ({"level": ["O1", "O1"]}, "twice"),
        ({"optimizer.lr[Muo]": True}, 'there is no optimizer "Muo"'),
        ({"optimizer.aux_lr[SGD]": True}, "SGD has no such parameter; only Muon has it"),
        ({"optimizer.rate[SGD]": True}, 'unknown parameter "optimizer.rate[SGD]"'),
        ({"optimizer.lr[Muon": True}, 'unknown parameter "optimizer.lr[Muon"'),
        ({"optimizer.name[Muon]": ["SGD"]}, "leave [Muon] out"),
        ({"grad_freeze.freeze_p[Muon]": True}, "unknown parameter"),
    ],
)
def test_a_wrong_space_is_one_sentence(space: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StudyError) as caught:
        read_space(space)
    assert sentence in str(caught.value)


BY_NAME = {
    "optimizer.name": ["SGD", "Muon", "AdamW"],
    "optimizer.lr": {"low": 0.5, "high": 0.6},
    "optimizer.lr[Muon]": {"low": 0.01, "high": 0.02},
    "optimizer.aux_lr": True,
    "optimizer.weight_decay[AdamW]": [0.25],
}


@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        ("SGD", {"optimizer.lr"}),
        ("Muon", {"optimizer.lr[Muon]", "optimizer.aux_lr"}),
        ("AdamW", {"optimizer.lr", "optimizer.weight_decay[AdamW]"}),
    ],
)
def test_a_range_that_belongs_to_an_optimizer_is_drawn_with_that_one_only(name: str, drawn: set[str]) -> None:
    trial = Scripted({"optimizer.name": name})
    suggestion = suggest(trial, read_space(BY_NAME), BoostConfig(), ONE_RANK)
    assert set(trial.drawn) == set(suggestion.parameters) == {"optimizer.name"} | drawn
    section = suggestion.config.optimizer
    assert section is not None
    assert section.lr is not None
    assert section.lr == suggestion.parameters.get("optimizer.lr[Muon]", suggestion.parameters.get("optimizer.lr"))
    assert (0.01 <= section.lr <= 0.02) is (name == "Muon")
    assert section.weight_decay == (0.25 if name == "AdamW" else None)


def test_a_range_of_an_optimizer_follows_the_one_of_the_baseline_where_none_is_searched() -> None:
    space = read_space({"optimizer.lr[Muon]": True, "optimizer.lr[SGD]": True})
    for name, drawn in (("Muon", ["optimizer.lr[Muon]"]), ("SGD", ["optimizer.lr[SGD]"]), ("Adam", []), (None, [])):
        trial = Scripted()
        suggest(trial, space, BoostConfig.from_dict({"optimizer": {"name": name}}), ONE_RANK)
        assert trial.drawn == drawn


def test_the_declared_range_of_an_optimizer_stands_beside_the_parameter() -> None:
    space = {one.path: one for one in read_space({"optimizer.lr": True, "optimizer.lr[Muon]": True})}
    declared = describe_parameters()["optimizer.lr"]
    assert (space["optimizer.lr"].low, space["optimizer.lr"].high) == (declared.low, declared.high) == (1e-4, 1.0)
    muon = space["optimizer.lr[Muon]"]
    assert (muon.low, muon.high, muon.log) == (*declared.by_name["Muon"], True)
    # One without a range of its own takes the general one.
    (other,) = read_space({"optimizer.momentum[SGD]": True})
    assert (other.low, other.high) == (0.5, 0.99)


def test_what_a_plan_does_not_state_it_has_as_the_baseline_unless_it_may_not_be_in_effect() -> None:
    asked = {
        "optimizer.name": ["AdamW", "task"],
        "optimizer.lr_factor": True,
        "schedule.length": {"low": 0.1, "high": 0.9},
        "batch.factor": [1.0, 2.0],
        "regularization.weight_average": ["none", "ema"],
        "regularization.decay": {"low": 0.8, "high": 0.995},
        "regularization.label_smoothing": {"low": 0.0, "high": 0.2},
        "boost.less_bn": [False, True],
    }
    base = BoostConfig.from_dict({"regularization": {"weight_average": "ema"}, "batch": {"factor": 4.0}})
    space = SearchedSpace((*read_space(asked), *read_space({"level": ["O0", "O1"]})), base, ONE_RANK).with_usual()
    usual = {one.path: one.usual for one in space.dimensions}
    assert {path: value for path, value in usual.items() if value is not None} == {
        "optimizer.name": "task",
        "regularization.weight_average": "ema",
        "regularization.label_smoothing": 0.0,
        "boost.less_bn": False,
    }


def test_every_optimizer_has_a_learning_rate_of_its_own() -> None:
    assert set(describe_parameters()["optimizer.lr"].by_name) == set(HYPER_PARAMETERS)
    for path, about in describe_parameters().items():
        for name, (low, high) in about.by_name.items():
            assert path.removeprefix("optimizer.") in HYPER_PARAMETERS[name]
            assert low < high
            for value in (low, high):
                BoostConfig().with_values({"optimizer.name": name, path: value})


def test_quoted_paths_and_tables_mean_the_same() -> None:
    quoted = read_space({"grad_freeze.freeze_p": {"low": 0.2, "high": 0.4}, "boost.less_bn": [True]})
    nested = read_space({"grad_freeze": {"freeze_p": {"low": 0.2, "high": 0.4}}, "boost": {"less_bn": [True]}})
    assert quoted == nested


NETWORKS = {
    "unknown": None,
    "without BatchNorm": NetworkFacts(0, 0, 3, 3, 0, 3),
    "by one rule only": NetworkFacts(4, 2, 4, 2, 0, 4),
}
WHOLE_SPACE = read_space(
    {
        **{
            path: True
            for path, about in describe_parameters().items()
            if about.kind in {"bool", "choice"} or about.low is not None
        },
        "grad_freeze.total_steps": {"low": 0, "high": 100},
        "grad_freeze.param_groups": {"low": 1, "high": 4},
        "grad_accumulation.grad_accumulation_step": [1, 2],
        "loss_scale.minimum": {"low": 1, "high": 1000.0},
        "optimizer.betas": [[0.9, 0.99], [0.8, 0.9]],
        "dim_reduce.weight_load_dir": ["a", "b", ""],
        "dim_reduce.pca_mat_path": ["a.npy", ""],
        "common.device_number": [1, 2, 8],
        "loss_scale.collapse_after": [1, 2],
    }
)


def changed(config: BoostConfig, path: str, values: Sequence[Any]) -> list[BoostConfig]:
    """Return the configuration with each of the values that is not refused."""
    found = []
    for value in values:
        with contextlib.suppress(ConfigError):
            found.append(config.with_values({path: value}))
    return found


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 20), marks=pytest.mark.long)], ids=["few", "more"])
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_a_parameter_is_drawn_exactly_where_its_values_give_different_plans(
    ranks: int, network: NetworkFacts | None, seeds: range
) -> None:
    plans = StudyPlans(ranks, network)
    seen = {True: 0, False: 0}
    for seed in seeds:
        draw = random.Random(100 * ranks + seed)
        level, config = draw.choice(["O1", "O2"]), BoostConfig().with_values({"boost.mode": "manual"})
        for one in draw.sample(WHOLE_SPACE, len(WHOLE_SPACE) // 3):
            config = draw.choice([config, *changed(config, one.path, [draw.choice(one.extremes)])])
        for one in WHOLE_SPACE:
            base = config.with_values({"boost.mode": "manual"}) if one.path in SWITCH_PATHS else config
            tried = changed(base, one.path, one.extremes)
            if len(tried) == len(one.extremes):
                expected = len({plans.resolve(each, level).key() for each in tried}) > 1
                trial = Scripted(seed=seed)
                suggest(trial, (Dimension("level", "choice", (level,)), one), config, plans)
                assert (one.path in trial.drawn) is expected, (one.path, level, config)
                seen[expected] += 1
    assert min(seen.values()) > 5 * len(seeds)  # both answers were asked for


def test_what_decides_about_others_is_drawn_before_them_and_choices_before_ranges() -> None:
    paths = [
        *("grad_freeze.freeze_p", "optimizer.name", "amp.dtype", "boost.adasum", "less_bn.gc_flag"),
        *("boost.grad_freeze", "grad_freeze.param_groups", "boost.less_bn", "optimizer.lr", "amp.level", "level"),
        "boost.dim_reduce",
    ]
    space = read_space(dict.fromkeys(paths, True))
    assert [one.path for one in space] == paths
    switches = {"boost.dim_reduce": False, "boost.less_bn": True, "boost.grad_freeze": True, "level": "O1"}
    trial = Scripted({**switches, "amp.level": "O2"})
    suggest(trial, space, BoostConfig(), StudyPlans(ranks=16))
    assert trial.drawn == [
        *("level", "boost.dim_reduce", "optimizer.name", "amp.level", "amp.dtype", "boost.less_bn"),
        *("less_bn.gc_flag", "boost.grad_freeze", "grad_freeze.param_groups", "grad_freeze.freeze_p", "optimizer.lr"),
    ]


SEVERAL_RANKS = {
    "level": ["O1", "O2"],
    "boost.grad_freeze": [False, True],
    "boost.adasum": [False, True],
    "common.device_number": [1, 2, 4],
}


def test_adasum_and_its_ranks_per_server_are_drawn_where_there_are_ranks_for_it() -> None:
    asked = {"level": "O2", "boost.grad_freeze": False, "boost.adasum": True}
    four = drawn_with(asked, SEVERAL_RANKS, StudyPlans(ranks=4))
    assert four == {"level", "boost.grad_freeze", "boost.adasum", "common.device_number"}
    assert drawn_with(asked, SEVERAL_RANKS) == {"level", "boost.grad_freeze"}
    frozen = drawn_with(asked | {"boost.grad_freeze": True}, SEVERAL_RANKS, StudyPlans(ranks=4))
    assert "boost.adasum" not in frozen  # freezing excludes it, so it is drawn after freezing, and here not at all


DIM_REDUCE = {
    "boost.less_bn": [False, True],
    "boost.dim_reduce": [False, True],
    "less_bn.fn_flag": [False, True],
    "dim_reduce.n_components": {"low": 2, "high": 4},
    "dim_reduce.rho": True,
    "dim_reduce.line_search_trials": [2, 8],
}


def test_dim_reduce_needs_no_source_in_a_study_and_shuts_the_other_switches_out() -> None:
    of_its_own = {path for path in DIM_REDUCE if path.startswith("dim_reduce.")}
    assert drawn_with({"boost.dim_reduce": True}, DIM_REDUCE) == {"boost.dim_reduce", *of_its_own}
    off = drawn_with({"boost.dim_reduce": False, "boost.less_bn": True}, DIM_REDUCE)
    assert off == {"boost.dim_reduce", "boost.less_bn", "less_bn.fn_flag"}


def test_a_plan_whose_subspace_the_study_records_has_one_key_whatever_the_folder() -> None:
    config = BoostConfig.from_dict({"boost": {"mode": "manual", "dim_reduce": True}})
    plan = ONE_RANK.resolve(config, "O1")
    assert needs_warm_up(plan)
    trained = explicit_config(plan, Path("runs/warm_up_seed_0/snapshots"))
    assert trained.dim_reduce.weight_load_dir == str(Path("runs/warm_up_seed_0/snapshots").absolute())
    assert ONE_RANK.resolve(config, "O2") == plan
    given = config.with_values({"dim_reduce.pca_mat_path": "here.npy"})
    assert not needs_warm_up(ONE_RANK.resolve(given, "O1"))
    assert ONE_RANK.resolve(given, "O1").config == given


def test_listed_lists_travel_as_positions() -> None:
    space = read_space({"optimizer.name": ["Adam"], "optimizer.betas": [[0.9, 0.99], [0.8, 0.9]]})
    trial = Scripted({"optimizer.betas": 1})
    assert suggest(trial, space, BoostConfig(), ONE_RANK).parameters["optimizer.betas"] == [0.8, 0.9]
