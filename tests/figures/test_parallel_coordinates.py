"""Parallel coordinates."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.figures.looking import title
from workbench.core.records import TrialRecord
from workbench.figures import parallel_coordinates_figure, parallel_coordinates_numbers


def _trial(number: int, value: float, feasible: bool = True, **parameters: Any) -> TrialRecord:
    searched = {name.replace("__", "."): value for name, value in parameters.items()}
    return TrialRecord(number, "complete", value=value, feasible=feasible, parameters=searched)


TRIALS = [
    _trial(0, 1.0, feasible=False),
    _trial(1, 0.5, a__p=0.0, a__on=True, b__scale=1.0, same=3),
    _trial(2, 0.75, a__p=0.25, a__on=False, b__scale=1024.0, same=3),
    _trial(3, 9e9, feasible=False, a__p=1.0, a__on=True, same=3),
    TrialRecord(4, "pruned", value=0.1, parameters={"a.p": 0.5}),
    _trial(5, math.nan, a__p=0.5),
]


def test_heights_of_a_small_study_are_exact() -> None:
    numbers = parallel_coordinates_numbers(TRIALS, objective="Time")
    assert [axis.name for axis in numbers.axes] == ["a.p", "a.on", "b.scale", "Time"]
    assert [axis.is_log for axis in numbers.axes] == [False, False, True, False]
    assert numbers.axes[0].ticks == ((0.0, "0"), (0.25, "0.25"), (1.0, "1"))
    assert numbers.axes[1].ticks == ((0.0, "off"), (1.0, "on"))
    assert [(line.number, line.kind, line.heights) for line in numbers.lines] == [
        (0, "baseline", (None, None, None, 1.0)),
        (1, "best", (0.0, 1.0, 0.0, 0.0)),
        (2, "best", (0.25, 0.0, 1.0, 0.5)),
        (3, "beyond", (1.0, 1.0, None, 1.0)),  # a penalty stands at the end of the axis
    ]
    assert numbers.left_out == ("same",)


def test_importance_orders_the_axes_and_decides_who_stays() -> None:
    numbers = parallel_coordinates_numbers(TRIALS, importance={"b.scale": 0.8, "a.on": 0.1}, limit=2)
    assert [axis.name for axis in numbers.axes] == ["b.scale", "a.on", "Objective"]
    assert set(numbers.left_out) == {"a.p", "same"}


def test_a_point_knows_its_trial_and_speaks_in_a_sentence() -> None:
    figure = parallel_coordinates_figure([*TRIALS, _trial(6, 0.6, a__p="<b>%{x}")], objective="Time (O0 steps)")
    best = figure.data[-1]
    assert best.name == "the best within the allowed drop"
    assert {point[0] for point in best.customdata} == {1, 2, 6}
    assert best.customdata[0][1] == "Trial 1 (O0) has a.p = 0 and scored 0.5."
    assert all("<b>" not in point[1] and "%{" not in point[1] for point in best.customdata)
    assert len({trace.marker.symbol for trace in figure.data}) == len(figure.data)
    assert "not used" in figure.layout.yaxis.ticktext
    assert figure.layout.xaxis.ticktext[-1] == "Time (O0 steps)"


@pytest.mark.parametrize(("n", "lower"), [(3, 0), (4, 2)])
def test_every_second_name_stands_lower_where_many_stand_beside_each_other(n: int, lower: int) -> None:
    paths = [f"part__knob{i}" for i in range(n)]
    trials = [_trial(number, 1.0 / number, **dict.fromkeys(paths, number)) for number in range(1, 4)]
    names = parallel_coordinates_figure(trials, objective="Time").layout.xaxis.ticktext
    assert [name.count("<br>") for name in names] == [1 + lower * (i % 2) for i in range(n)] + [lower * (n % 2)]


@pytest.mark.parametrize(
    ("own", "answer"),
    [(0.5, "The best 5 trials agree on p: 0.5"), (None, "Which values do the good trials have in common?")],
)
def test_the_title_names_what_the_best_agree_on(own: float | None, answer: str) -> None:
    best = [_trial(n, 0.1 * n, p=n / 5 if own is None else own) for n in range(1, 6)]
    rest = [_trial(n, 1.0 * n, p=n / 10) for n in range(6, 11)]
    assert title(parallel_coordinates_figure([*best, *rest])) == answer


def test_trials_that_do_not_differ_give_a_sentence() -> None:
    assert "No two finished trials differ" in parallel_coordinates_figure([]).layout.annotations[0].text
    assert not parallel_coordinates_figure([_trial(1, 0.5, p=1), _trial(2, 0.6, p=1)]).data
