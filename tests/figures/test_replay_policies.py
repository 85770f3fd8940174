"""Replayed loss-scale policies."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.figures.looking import title
from workbench.figures import policy_names, replay_policies_figure, replay_policies_numbers
from workbench.figures.drawing import figure_text

POLICIES = pd.DataFrame(
    {
        "kind": ["dynamic", "fixed", "dynamic"],
        "init": [2.0**16, 1024.0, 1000.0],
        "factor": [2.0, 2.0, 2.0],
        "window": [2000, 1, 50],
        "wasted_share": [0.05, 0.0, np.nan],
        "underflow_share": [0.001, 0.02, 0.1],
        "recorded": [True, False, False],
    }
)


def test_policies_are_named_by_what_they_are() -> None:
    assert policy_names(POLICIES) == [
        "init 2^16, factor 2, window 2000",
        "fixed at 2^10",
        "init 1\u202f000, factor 2, window 50",
    ]
    assert policy_names(pd.DataFrame({"policy": ["mine"]})) == ["mine"]
    assert policy_names(pd.DataFrame({"wasted_share": [0.1]}, index=["row"])) == ["row"]


def test_policies_without_numbers_are_left_out_and_counted() -> None:
    numbers = replay_policies_numbers(POLICIES, "fixed at 2^10")
    assert numbers.names == ("init 2^16, factor 2, window 2000", "fixed at 2^10")
    assert (numbers.recorded, numbers.chosen, numbers.n_left_out) == (0, 1, 1)


def test_the_recorded_and_the_chosen_policy_are_marked_and_named_in_the_legend_alone() -> None:
    figure = replay_policies_figure(POLICIES, "fixed at 2^10")
    recorded, chosen = figure.data
    assert [(t.name, t.text) for t in figure.data] == [("recorded policy", None), ("chosen policy", None)]
    assert recorded.marker.symbol != chosen.marker.symbol
    assert (recorded.x[0], chosen.y[0]) == pytest.approx((5.0, 2.0))
    assert title(figure) == "The chosen policy wastes 0 % of the steps, the recorded one 5 %"
    assert figure.layout.xaxis.title.text == "Wasted steps (%)"
    assert not replay_policies_figure(POLICIES.iloc[:0]).data
    same = replay_policies_figure(POLICIES, "init 2^16, factor 2, window 2000")
    assert same.data[-1].name == "chosen policy (the recorded one)"


def test_a_point_can_be_picked_and_gives_its_range() -> None:
    table = POLICIES.assign(overflows=[5.0, 0, 1], overflows_low=[3.0, 0, 1], overflows_high=[8.0, 1, 1])
    first, second = (one.customdata[0] for one in replay_policies_figure(table.iloc[::-1], "fixed at 2^10").data)
    assert (first[0], second[0]) == (2, 1)  # the row in the table given, whatever its label
    assert first[2] == " (5 overflows, likely 3 to 8)"
    assert replay_policies_figure(POLICIES).data[0].customdata[0][2] == ""


def test_the_recorded_policy_is_not_among_those_replayed() -> None:
    table = pd.DataFrame({"policy": ["run", "a", "b"], "wasted_share": [0.1, 0.0, 0.2], "underflow_share": [0.0] * 3,
                          "recorded": [True, False, False]})  # fmt: skip
    assert "2 policies replayed on one recording" in figure_text(replay_policies_figure(table, "a"))
