"""Only what is in effect is drawn, and every suggestion is a valid configuration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workbench.config import BoostConfig, describe_parameters
from workbench.tuning.errors import StudyError
from workbench.tuning.search_space import plan_key, read_space, suggest


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


def drawn_with(values: dict[str, Any], space: dict[str, Any] = SPACE) -> set[str]:
    trial = Scripted(values)
    suggest(trial, read_space(space), BoostConfig())
    assert len(trial.drawn) == len(set(trial.drawn))
    return set(trial.drawn)


def test_nothing_but_the_level_is_drawn_at_o0() -> None:
    assert drawn_with({"level": "O0"}) == {"level"}


def test_freezing_parameters_are_drawn_only_when_freezing_is_on() -> None:
    switches = {"level", "boost.less_bn", "boost.grad_freeze", "boost.grad_accumulation"}
    off = {"level": "O1", "boost.less_bn": False, "boost.grad_freeze": False, "boost.grad_accumulation": False}
    assert drawn_with(off) == switches
    assert drawn_with(off | {"boost.grad_freeze": True}) == switches | {
        "grad_freeze.freeze_p",
        "grad_freeze.freeze_type",
    }
    assert drawn_with(off | {"boost.less_bn": True}) == switches | {"less_bn.fn_flag"}


def test_a_switch_that_matters_only_with_its_parameter_is_still_drawn() -> None:
    on = {"level": "O1", "boost.grad_accumulation": True}
    assert "grad_accumulation.grad_accumulation_step" in drawn_with(on)


def test_switches_count_although_the_mode_is_auto_by_default() -> None:
    trial = Scripted({"level": "O1", "boost.less_bn": False, "boost.grad_freeze": False})
    suggestion = suggest(
        trial, read_space({"boost.less_bn": [True, False], "boost.grad_freeze": [True, False]}), BoostConfig()
    )
    plan = suggestion.config.resolve(suggestion.level)
    assert not plan.less_bn
    assert not plan.grad_freeze


def test_the_level_decides_when_no_switch_is_searched() -> None:
    space = {"level": ["O1"], "grad_freeze.freeze_p": True}
    suggestion = suggest(Scripted(), read_space(space), BoostConfig())
    assert suggestion.config.resolve(suggestion.level).grad_freeze
    assert 0.1 <= suggestion.parameters["grad_freeze.freeze_p"] <= 0.95  # the range config declares


def test_o0_is_everything_off_even_when_the_baseline_says_otherwise() -> None:
    base = BoostConfig.from_dict({"boost": {"mode": "manual", "grad_freeze": True}})
    suggestion = suggest(Scripted({"level": "O0"}), read_space({"level": ["O0", "O1"]}), base)
    assert plan_key(suggestion.config, "O0") == plan_key(BoostConfig(), "O0")


DECLARED = sorted(
    path
    for path, info in describe_parameters().items()
    if (info.kind in {"bool", "choice"} or info.low is not None)
    and path not in {"boost.dim_reduce", "boost.mode", "loss_scale.minimum", "optimizer.nesterov"}
)


@settings(max_examples=20)
@given(st.sets(st.sampled_from(DECLARED), max_size=16), st.integers(0, 10**6))
@example(set(DECLARED), 0)
@example(set(DECLARED), 1)
def test_every_suggestion_over_declared_ranges_is_valid_and_draws_only_what_matters(paths: set[str], seed: int) -> None:
    space = read_space({"level": True, **dict.fromkeys(paths, True)})
    suggestion = suggest(Scripted(seed=seed), space, BoostConfig())
    plan = suggestion.config.resolve(suggestion.level)
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
        ({"boost.less_bn": {"low": 0, "high": 1}}, "is no number"),
        ({"grad_freeze.total_steps": True}, "no declared search range"),
        ({"level": ["O1", "O1"]}, "twice"),
    ],
)
def test_a_wrong_space_is_one_sentence(space: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StudyError) as caught:
        read_space(space)
    assert sentence in str(caught.value)


def test_quoted_paths_and_tables_mean_the_same() -> None:
    quoted = read_space({"grad_freeze.freeze_p": {"low": 0.2, "high": 0.4}, "boost.less_bn": [True]})
    nested = read_space({"grad_freeze": {"freeze_p": {"low": 0.2, "high": 0.4}}, "boost": {"less_bn": [True]}})
    assert quoted == nested


def test_listed_lists_travel_as_positions() -> None:
    space = read_space({"optimizer.name": ["Adam"], "optimizer.betas": [[0.9, 0.99], [0.8, 0.9]]})
    trial = Scripted({"optimizer.betas": 1})
    assert suggest(trial, space, BoostConfig()).parameters["optimizer.betas"] == [0.8, 0.9]
