from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ipywidgets as widgets
import pytest

from tests.panels.looking import everything, html_in
from workbench.config import ConfigError
from workbench.panels.panel import Panel
from workbench.panels.study_space import SearchSpace
from workbench.study import StudyError
from workbench.study.ask.space_table import read_space

SPACE: dict[str, Any] = {
    "level": ["O1", "O2"],
    "boost.less_bn": [False, True],
    "grad_freeze.freeze_p": {"low": 0.3, "high": 0.9},
    "grad_freeze.param_groups": {"low": 4, "high": 10, "step": 2},
    "grad_freeze.total_steps": [180],
    "loss_scale.init": {"low": 16.0, "high": 65536.0, "log": True},
    "optimizer.betas": [[0.9, 0.999], [0.8, 0.99]],
    "amp.level": True,
}


@pytest.fixture
def space() -> Iterator[SearchSpace]:
    with Panel("Tune") as panel:
        made = SearchSpace(panel)
        made.set(SPACE)
        yield made


def test_a_space_reads_back_as_it_was_and_bounds_are_typed_as_people_write_them(space: SearchSpace) -> None:
    assert space.value == SPACE
    row = space.rows["loss_scale.init"]
    row.low.value, row.high.value = "2^8", "2**20"
    assert row.value == {"low": 256.0, "high": 1048576.0, "log": True}
    row.log.value = False
    assert row.value == {"low": 256.0, "high": 1048576.0}
    row = space.rows["grad_freeze.param_groups"]
    row.high.value = "12"
    assert row.value == {"low": 4, "high": 12, "step": 2}  # what has no control is kept
    row.low.value, row.high.value = "2, 4, 8", ""
    assert row.value == [2, 4, 8]  # without an upper bound it is a list
    row = space.rows["grad_freeze.freeze_p"]
    row.low.value, row.high.value = "0.5, 1", ""
    assert repr(row.value) == "[0.5, 1.0]", "both of one kind"


def test_the_parameters_of_an_optimizer_can_be_searched_and_show_their_units(space: SearchSpace) -> None:
    for name in ("name", "lr", "damping", "frequency", "trace_threshold"):
        space.add(f"optimizer.{name}")
    boxes = space.rows["optimizer.name"].boxes
    assert {"thor", "adam_offload", "SGD"} <= set(boxes)
    for choice, box in boxes.items():
        box.value = choice in ("thor", "SGD")
    row = space.rows["optimizer.frequency"]
    row.high.value = "50"
    assert space.value["optimizer.name"] == ["SGD", "thor"]
    assert space.value["optimizer.frequency"] == {"low": 2, "high": 50, "log": True}
    assert ">steps<" in html_in(space.rows["optimizer.frequency"].widget)
    assert ">steps<" not in html_in(space.rows["optimizer.damping"].widget)
    read_space(space.value)


def test_choices_are_boxes(space: SearchSpace) -> None:
    left = {"level": ["O1"], "boost.less_bn": [True], "amp.level": ["O0", "O2", "auto"]}
    for path, unticked in (("level", "O2"), ("boost.less_bn", False), ("amp.level", "O3")):
        space.rows[path].boxes[unticked].value = False
        assert space.value[path] == left[path]


@pytest.mark.parametrize(
    ("path", "low", "high", "sentence"),
    [
        ("grad_freeze.freeze_p", "0.9", "0.3", "`low` must not exceed `high`, got low 0.9 and high 0.3"),
        ("grad_freeze.freeze_p", "some", "0.3", "`low` must be a finite number, got 'some'"),
        ("grad_freeze.param_groups", "2.5", "4", "`low` must be a whole number, got 2.5"),
        ("grad_freeze.param_groups", "", "", "has an empty list"),
    ],
)
def test_what_is_wrong_reaches_the_rules_of_the_study(
    space: SearchSpace, path: str, low: str, high: str, sentence: str
) -> None:
    space.rows[path].low.value, space.rows[path].high.value = low, high
    with pytest.raises(StudyError) as caught:
        read_space(space.value)
    assert sentence in str(caught.value).replace('"some"', "'some'")


def test_a_parameter_is_added_over_its_declared_range_and_removed(space: SearchSpace) -> None:
    space.path.value = "dim_reduce.rho"
    space.add_button.click()
    assert space.value["dim_reduce.rho"] is True
    row = space.rows["dim_reduce.rho"]
    assert (row.low.value, row.high.value) == ("0.1", "0.9")
    assert space.path.value == ""
    row._remove.click()
    assert space.value == SPACE
    assert row.widget.comm is None  # closed with all its parts


def test_unknown_paths_are_refused_beside_the_field(space: SearchSpace) -> None:
    space.path.value = "grad_freeze.freeze"
    space.add_button.click()
    assert 'unknown parameter "grad_freeze.freeze"; did you mean "grad_freeze.freeze_p"?' in html_in(space.widget)
    assert space.value == SPACE
    space.path.value = "level"
    space.add_button.click()
    assert "is searched already" in html_in(space.widget)
    with pytest.raises(ConfigError, match="unknown parameter"):
        space.set({"nothing.like_it": [1]})
    assert space.value == SPACE


def test_everything_is_disabled_at_once(space: SearchSpace) -> None:
    space.lock(True)
    entries = [w for w in everything(space.widget) if hasattr(w, "disabled") and not isinstance(w, widgets.HTML)]
    assert len(entries) > 20
    assert all(entry.disabled for entry in entries)
    space.lock(False)
    assert not any(entry.disabled for entry in entries)


def test_what_can_be_searched_is_chosen_from_a_list(space: SearchSpace) -> None:
    assert "grad_freeze: Freeze strategy" in [label for label, _ in space.choice.options]
    space.choice.value = "grad_freeze.freeze_type"
    assert space.value["grad_freeze.freeze_type"] is True, "over all of its values"
    offered = [box.description for box in space.rows["grad_freeze.freeze_type"].boxes.values()]
    assert (offered, space.choice.value) == (["front to back, in turn", "drawn at random"], "")
