from __future__ import annotations

from typing import Any

import pytest

from workbench.config import BoostConfig
from workbench.config.mindspore_notes import mindspore_notes

OFF = dict.fromkeys(("less_bn", "grad_freeze", "adasum", "grad_accumulation", "dim_reduce", "loss_scale_group"), False)


def notes(values: dict[str, Any], level: str = "O1") -> str:
    config = BoostConfig.from_dict(values)
    return " ".join(mindspore_notes(config, config.resolve(level)))


STEPS = {"grad_accumulation_step": 4}
FROZEN = {"boost": {"mode": "manual", **OFF, "grad_freeze": True}}
ACCUMULATED = {"boost": {"mode": "manual", "grad_accumulation": True}, "grad_accumulation": STEPS}


@pytest.mark.parametrize(
    ("values", "level", "told"),
    [
        ({}, "O2", 'Pass boost_level="O2"'),
        ({}, "O2", "in mode auto the level alone decides"),
        (FROZEN, "O0", 'Pass boost_level="O1"'),
        (FROZEN, "O0", "does not read it at all"),
        (ACCUMULATED, "O0", "at O1 the switches that are unset here would come on"),
        ({"amp": {"level": "O2"}}, "O1", "pass amp_level and loss_scale_manager"),
    ],
)
def test_what_makes_it_read_the_file_and_what_is_an_argument_there_is_told(
    values: dict[str, Any], level: str, told: str
) -> None:
    assert told in notes(values, level)


def test_nothing_switched_on_changes_nothing() -> None:
    assert notes({}, "O0").startswith("Nothing is switched on")


@pytest.mark.parametrize(
    ("switches", "told"),
    [
        ({"grad_freeze": True, "grad_accumulation": True}, True),
        ({"grad_freeze": True}, False),
        ({"grad_accumulation": True}, False),
    ],
)
def test_freezing_with_accumulation_cannot_be_trained_there(switches: dict[str, bool], told: bool) -> None:
    text = notes({"boost": {"mode": "manual", **OFF, **switches}, "grad_accumulation": STEPS})
    assert ("cannot train gradient freezing together with gradient accumulation" in text) is told


@pytest.mark.parametrize("switches", [{"less_bn": True}, {"grad_freeze": True}, {"less_bn": True, "grad_freeze": True}])
@pytest.mark.parametrize(
    ("optimizer", "times"), [("Adam", 1), ("AdamW", 1), ("adam_offload", 1), ("SGD", 0), (None, 1)]
)
def test_an_optimizer_that_cannot_be_rebuilt_there_is_told_once(
    switches: dict[str, bool], optimizer: str | None, times: int
) -> None:
    text = notes({"boost": {"mode": "manual", **OFF, **switches}, "optimizer": optimizer and {"name": optimizer}})
    assert text.count("cannot train LessBN or gradient freezing with Adam") == times


def test_sections_and_keys_it_does_not_know_are_named() -> None:
    text = notes({"dim_reduce": {"line_search_trials": 3}, "optimizer": {"name": "SGD", "lr": 0.1}})
    unknown = "`loss_scale`, `amp`, `optimizer`, `snapshots`, `compatibility`, `dim_reduce.line_search_trials`"
    assert f"ignores {unknown}" in text
    assert "The optimizer is an argument there" in text
    assert "so not `grad_accumulation`, `dim_reduce`." in text
    assert "pass amp_level" not in text, "float32 needs no such argument"
