"""What each value of a parameter brought: the numbers exactly, the drawing lightly."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from tests.figures.looking import trace_of
from workbench.core.records import TrialRecord
from workbench.figures import (
    MetricScale,
    contour_figure,
    contour_numbers,
    contour_pair,
    figure_text,
    slice_figure,
    slice_numbers,
    sliced_parameters,
    trial_curve_numbers,
    trial_curves_figure,
)

ACCURACY = MetricScale("accuracy")


def trial(
    number: int, value: float = 1.0, *, drop: float = 0.0, state: str = "complete", **parameters: Any
) -> TrialRecord:
    named = {name.replace("__", "."): one for name, one in parameters.items()}
    return TrialRecord(
        number, state, parameters=named, value=value, metric=0.9 - drop, metric_deficit=drop, allowed_drop=0.01,
        feasible=drop <= 0.01, curve=((10, 0.5), (20, 0.9 - drop)),
    )  # fmt: skip


def rates(n: int = 8) -> list[TrialRecord]:
    """Return trials whose score falls with the rate; every other one loses too much."""
    return [trial(i, 1.0 / (i + 1), drop=0.1 * (i % 2), optimizer__lr=0.001 * 2.0**i) for i in range(n)]


def test_a_slice_has_each_trial_that_drew_the_parameter_at_its_value() -> None:
    trials = [*rates(), trial(20, 0.1, batch__factor=2), trial(21, math.nan, optimizer__lr=9.0)]
    trials.append(trial(22, 0.5, state="pruned", optimizer__lr=9.0))
    numbers = slice_numbers(trials, "optimizer.lr")
    assert numbers.numbers == tuple(range(8))
    assert numbers.places == tuple(0.001 * 2.0**i for i in range(8))
    assert numbers.values == tuple(1.0 / (i + 1) for i in range(8))
    assert numbers.kinds == ("best", "beyond") * 4
    assert numbers.is_log  # 128 times apart


@pytest.mark.parametrize(
    ("values", "is_log"), [((1, 30), False), ((1, 31), True), ((0.0, 31.0), False), ((-1, 31), False)]
)
def test_an_axis_is_logarithmic_where_values_lie_far_apart_and_above_zero(
    values: tuple[float, ...], is_log: bool
) -> None:
    assert slice_numbers([trial(i, a=value) for i, value in enumerate(values)], "a").is_log is is_log


def test_switches_and_words_stand_on_an_axis_of_words() -> None:
    trials = [trial(0, 1.0, boost__less_bn=True), trial(1, 0.5, boost__less_bn=False)]
    assert slice_numbers(trials, "boost.less_bn").places == ("on", "off")
    figure = slice_figure(trials, "boost.less_bn")
    assert figure.layout.xaxis.type == "category"
    assert "the best: on, off" in figure_text(figure)


def test_a_slice_says_where_the_best_lie_and_names_the_trial_of_a_point() -> None:
    figure = slice_figure(rates(), "optimizer.lr")
    assert figure_text(figure).splitlines()[:2] == ["optimizer.lr", "the best lie between 0.001 and 0.064"]
    assert {trace.name for trace in figure.data} == {"beyond", "best"}
    assert [point[0] for trace in figure.data for point in trace.customdata] == [1, 3, 5, 7, 0, 2, 4, 6]


def test_a_penalty_stands_at_the_edge_of_the_scale() -> None:
    figure = slice_figure([*rates(), trial(9, 1e6, drop=0.5, optimizer__lr=0.2)], "optimizer.lr")
    assert max(max(trace.y) for trace in figure.data) <= 3.0


def test_one_value_is_no_slice() -> None:
    figure = slice_figure([trial(0, a=1.0), trial(1, a=1.0)], "a")
    assert not figure.data
    assert "No two finished trials differ" in figure_text(figure)


def test_the_parameters_that_differ_are_sliced_the_most_important_first() -> None:
    trials = [trial(i, a=i, b=i % 2, c=1, d=-i) for i in range(4)]
    assert sliced_parameters(trials) == ["a", "b", "d"]
    assert sliced_parameters(trials, {"d": 0.7, "c": 0.9}) == ["d", "a", "b"]
    assert sliced_parameters(trials, {"d": 0.7}, most=1) == ["d"]


def plane(n: int = 25) -> list[TrialRecord]:
    """Return trials on a grid whose score grows with x alone."""
    return [trial(i, 1.0 + i % 5, x=float(i % 5), y=float(i // 5)) for i in range(n)]


def test_a_contour_is_smooth_rises_where_the_scores_do_and_has_the_trials_themselves() -> None:
    numbers = contour_numbers(plane(), "x", "y")
    assert numbers is not None
    assert numbers.numbers == tuple(range(25))
    assert numbers.surface.shape == (numbers.grid_y.size, numbers.grid_x.size)
    assert 1.0 <= np.nanmin(numbers.surface) <= np.nanmax(numbers.surface) <= 5.0
    assert (np.diff(numbers.surface, axis=1) >= -1e-9).all()
    assert np.abs(np.diff(numbers.surface, axis=0)).max() < 1e-6
    assert (numbers.grid_x[0], numbers.grid_x[-1]) == (0.0, 4.0)


def test_far_from_every_trial_a_contour_is_blank() -> None:
    corner = [one for one in plane() if not (one.parameters["x"] > 1 and one.parameters["y"] > 1)]
    numbers = contour_numbers(corner, "x", "y")
    assert numbers is not None
    assert np.isnan(numbers.surface[-1, -1])
    assert np.isfinite(numbers.surface[0, 0])


def test_a_contour_needs_trials_that_differ_in_both() -> None:
    assert contour_numbers(plane(7), "x", "y") is None
    assert contour_numbers([trial(i, a=float(i), b=1.0) for i in range(20)], "a", "b") is None
    assert contour_numbers([trial(i, a=float(i), b="word") for i in range(20)], "a", "b") is None
    assert not contour_figure(plane(7), "x", "y").data
    assert contour_pair(plane(7)) is None


def test_the_most_important_pair_is_drawn_with_the_number_of_each_trial() -> None:
    trials = [trial(i, 1.0 + i % 5, x=float(i % 5), y=float(i // 5), z=float((i * 3) % 7)) for i in range(25)]
    assert contour_pair(trials) == ("x", "y")
    assert contour_pair(trials, {"z": 0.5, "y": 0.2}) == ("z", "y")
    figure = contour_figure(trials, "x", "y", objective="Score")
    assert [trace.type for trace in figure.data] == ["contour", "scatter"]
    shades = [shade for _, shade in figure.data[0].colorscale]
    assert all(re.fullmatch("#[0-9A-F]{6}", shade) for shade in shades), "a colour bar is never translucent"
    assert [point[0] for point in figure.data[1].customdata] == list(range(25))
    assert figure.data[0].colorbar.title.text == "Score"


def test_every_trial_that_was_evaluated_twice_has_a_curve_of_its_kind() -> None:
    trials = [trial(0), trial(1, drop=0.1), trial(2), trial(3, state="pruned")]
    trials.append(TrialRecord(4, "complete", curve=((10, 0.5), (20, math.nan))))
    curves = trial_curve_numbers(trials, ACCURACY)
    kinds = ["baseline", "beyond", "within", "given up"]
    assert [(one.number, one.kind) for one in curves] == list(enumerate(kinds))
    assert curves[0].steps == (10, 20)
    assert curves[0].metrics == pytest.approx((50.0, 90.0))


def test_of_too_many_curves_o0_and_the_best_are_drawn() -> None:
    trials = [trial(0, 9.0), *(trial(i, 1000.0 - i) for i in range(1, 600))]
    assert [curve.number for curve in trial_curve_numbers(trials, ACCURACY)] == [0, *range(201, 600)]


def test_curves_of_one_kind_are_one_trace_with_gaps_and_name_their_trial() -> None:
    figure = trial_curves_figure([trial(0), trial(1), trial(2)], metric=ACCURACY)
    assert sorted(trace.name for trace in figure.data)[:2] == ["O0, the baseline", "within the allowed drop"]
    trace = trace_of(figure, "within the allowed drop")
    assert list(trace.x) == [10, 20, None, 10, 20, None]
    assert [point[0] for point in trace.customdata] == [1, 1, 1, 2, 2, 2]
    assert figure.layout.yaxis.title.text == "Accuracy (%)"
    assert not trial_curves_figure([trial(0)], metric=ACCURACY).data
