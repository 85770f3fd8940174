"""Configurations side by side."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.figures.looking import axis_titles, title
from workbench.figures.labels import MetricScale
from workbench.figures.paired_comparison import PairedSide, paired_comparison_drawing, paired_comparison_numbers

ACCURACY = MetricScale("accuracy")
LOSS = MetricScale("loss", higher_is_better=False)
BASE = PairedSide("O0", (0.9, 0.8, math.nan))
FAST = PairedSide("mine", (0.88, 0.81, 0.7), 1.25, 1.2, 1.3, 0.05)


def test_changes_are_paired_by_seed_and_shown_in_the_metrics_unit() -> None:
    numbers = paired_comparison_numbers([BASE, FAST], ACCURACY)
    np.testing.assert_allclose(numbers.changes[0], [-2.0, 1.0])
    np.testing.assert_allclose(numbers.speeds, [[1.25, 1.2, 1.3]])
    np.testing.assert_allclose(numbers.bounds, [-5.0])
    assert (numbers.base, numbers.labels) == ("O0", ("mine",))


def test_a_bound_lies_on_the_bad_side_of_the_metric() -> None:
    assert paired_comparison_numbers([BASE, FAST], LOSS).bounds[0] == 0.05


def test_a_run_that_goes_on_pairs_the_seeds_it_has() -> None:
    numbers = paired_comparison_numbers([PairedSide("O0", (1.0, 2.0)), PairedSide("mine", (3.0,))], LOSS)
    assert numbers.changes[0].tolist() == [2.0]
    figure = paired_comparison_drawing([PairedSide("O0", (1.0, 2.0)), PairedSide("mine", (3.0,))], metric=LOSS).figure()
    assert title(figure) == "Which configuration is faster, and what does it cost?"


def test_the_answer_is_the_title() -> None:
    figure = paired_comparison_drawing([BASE, FAST], metric=ACCURACY).figure()
    assert title(figure) == "Against O0, mine is 1.25 x as fast per run; accuracy down by 0.5 points"
    assert axis_titles(figure) == ["Speed per run relative to O0 (x)", "Change of accuracy against O0 (points)"]
    speeds, means, *_ = (trace.error_x for trace in figure.data)
    assert list(speeds.array) == pytest.approx([0.05])
    assert [*means.arrayminus, *means.array] == pytest.approx([4.5, 0.0])  # from the mean of -0.5 to -5


def test_an_interval_that_nothing_bounds_does_not_hide_the_others() -> None:
    once = PairedSide("once", (0.9,), 4.0, 0.0, math.inf)
    figure = paired_comparison_drawing([BASE, FAST, once], metric=ACCURACY).figure()
    assert list(figure.layout.xaxis.range) == pytest.approx([0.0, 8.0])
    assert [about for _, about in figure.data[0].customdata] == [" (1.20 to 1.30)", ""]


def test_of_several_sides_each_has_a_line() -> None:
    other = PairedSide("other", (0.9, 0.8, 0.7), 0.8, 0.7, 0.9)
    figure = paired_comparison_drawing([BASE, FAST, other], metric=ACCURACY).figure()
    assert list(figure.layout.yaxis.ticktext) == ["mine", "other"]
    assert list(figure.data[2].y) == [0, 0, 1, 1]


def test_without_anything_to_see_a_sentence_says_so() -> None:
    for sides in ([], [BASE], [BASE, PairedSide("mine", ())]):
        figure = paired_comparison_drawing(sides, metric=ACCURACY).figure()
        assert not figure.data
        assert figure.layout.annotations[0].text


def test_hover_texts_have_the_metrics_unit() -> None:
    figure = paired_comparison_drawing([BASE, FAST, PairedSide("other", (0.89,))], metric=ACCURACY).figure()
    mean, seeds = figure.data[1:]
    assert mean.customdata == (["mine", "-0.5 points", "; at worst by -5 points (95 %)"], ["other", "-1 point", ""])
    assert [text for (text,) in seeds.customdata] == ["-2 points", "1 point", "-1 point"]
    assert mean.hovertemplate.startswith("%{customdata[0]} changes accuracy by %{customdata[1]} on average")
    assert seeds.hovertemplate.startswith("A seed changed accuracy by %{customdata[0]}.")
