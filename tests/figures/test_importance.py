"""Parameter importance."""

from __future__ import annotations

import math

import pytest

from workbench.figures import importance_figure, importance_numbers


def test_importances_are_sorted_shares() -> None:
    numbers = importance_numbers({"a": 1.0, "b": 3.0, "c": math.nan, "d": 0.0})
    assert numbers.names == ("b", "a", "d")
    assert numbers.shares == (0.75, 0.25, 0.0)


def test_many_importances_are_merged_in_the_last_bar() -> None:
    numbers = importance_numbers({f"p{i}": 1.0 for i in range(10)}, limit=4)
    assert numbers.names == ("p0", "p1", "p2", "7 others")
    assert numbers.shares[-1] == pytest.approx(0.7)


def test_importance_has_an_empty_state_and_a_tie_state() -> None:
    assert len(importance_figure({}).data) == 0
    assert importance_figure({"a": 0.0}).layout.title.text == "No parameter made a difference"
    assert importance_figure({"a": 2.0}).layout.title.text == "a mattered most"
    assert importance_figure({"a": 2.0}).layout.xaxis.title.text == "Importance (%)"
