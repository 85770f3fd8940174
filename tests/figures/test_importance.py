"""Parameter importance."""

from __future__ import annotations

import math

import pytest

from tests.figures.looking import axis_titles, title
from workbench.figures import importance_figure, importance_numbers
from workbench.figures.drawing import figure_text
from workbench.figures.theme import BLUE, GREY


def test_importances_are_sorted_shares() -> None:
    numbers = importance_numbers({"a": 1.0, "b": 3.0, "c": math.nan, "d": 0.0})
    assert (numbers.names, numbers.shares) == (("b", "a", "d"), (0.75, 0.25, 0.0))


def test_many_importances_are_merged_in_the_last_bar() -> None:
    importance = {f"p{i:02}": 20.0 - i for i in range(20)}
    numbers = importance_numbers(importance)
    assert numbers.names == (*[f"p{i:02}" for i in range(13)], "7 others")
    assert numbers.shares[-1] == pytest.approx(28 / 210)
    assert numbers.n_merged == 7
    assert importance_figure(importance).data[0].marker.color == (BLUE,) * 13 + (GREY,)
    assert importance_figure({"all others": 2.0, "a": 1.0}).data[0].marker.color == (BLUE, BLUE)


def test_importance_has_an_empty_state_and_a_tie_state() -> None:
    for nothing in ({}, {"a": 0.0}, {"a": 0.0, "b": 0.0}):
        assert not importance_figure(nothing).data
        assert not nothing or "no parameter stands out" in figure_text(importance_figure(nothing))
    for first in ({"a": 0.5, "b": 0.5}, {"a": 2.0}):
        assert title(importance_figure(first)) == "a mattered most"
    assert axis_titles(importance_figure({"a": 2.0})) == ["Importance (%)"]


@pytest.mark.parametrize(("most", "ticks"), [(0.95, (0, 20, 40, 60, 80, 100)), (0.6, None)])
def test_the_axis_has_no_share_above_all(most: float, ticks: tuple[int, ...] | None) -> None:
    assert importance_figure({"a": most, "b": 1 - most}).layout.xaxis.tickvals == ticks
