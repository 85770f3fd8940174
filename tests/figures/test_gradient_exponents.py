"""The exponent map: shares, limits and losses against float16 itself."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from tests.figures.looking import title
from workbench.core.records import ExponentCounts, StepRecord
from workbench.figures import gradient_exponents_figure, gradient_exponents_numbers


def _record(step: int, scale: float, *groups: ExponentCounts, overflow: bool = False) -> StepRecord:
    return StepRecord(
        step=step, seconds=0.0, step_ms=1.0, loss=1.0, loss_scale=scale, overflow=overflow, grad_exponents=groups
    )


STEPS = [
    _record(0, 1.0, ExponentCounts("a", -26, (3, 1, 4)), ExponentCounts("b", -15, (2,), zeros=6)),
    _record(1, 1.0, overflow=True),
    _record(2, 4.0, ExponentCounts("a", -26, (3, 1, 4))),
]


def test_shares_and_limits_of_a_small_run_are_exact() -> None:
    numbers = gradient_exponents_numbers(STEPS)
    assert numbers.steps.tolist() == [0, 2]
    assert numbers.exponents.tolist() == list(range(-26, -14))
    assert list(numbers.shares) == ["all groups", "a", "b"]
    everything = numbers.shares["all groups"]
    assert everything[:3, 0].tolist() == [3 / 16, 1 / 16, 4 / 16]
    assert everything[-1, 0] == 2 / 16
    assert math.isnan(everything[-1, 1])
    assert numbers.shares["b"][-1, 0] == 2 / 8
    assert (numbers.lower.tolist(), numbers.normal.tolist()) == ([-24, -26], [-14, -16])
    assert numbers.upper[0] == pytest.approx(math.log2(65504))
    # Step 0: bins -26 and -25 (4 elements) lie below 2**-24, bin -24 and bin -15 below 2**-14. Step 2, at scale 4:
    # nothing below 2**-26, all eight below 2**-16.
    assert numbers.below_share == pytest.approx(4 / 18)
    assert numbers.subnormal_share == pytest.approx((4 + 2 + 8) / 18)
    assert numbers.overflow.x.tolist() == [1]
    assert numbers.n_records == 2


def test_the_limits_are_those_of_float16() -> None:
    limits = np.finfo(np.float16)
    numbers = gradient_exponents_numbers([_record(0, 1024.0, ExponentCounts("a", 0, (1,)))])
    drawn, own = (numbers.upper, numbers.normal, numbers.lower), ("max", "smallest_normal", "smallest_subnormal")
    assert [2 ** line[0] for line in drawn] == pytest.approx([float(getattr(limits, name)) / 1024 for name in own])


def test_dictionaries_as_read_from_a_run_are_understood() -> None:
    cell = [{"group": "a", "lowest": -3, "counts": np.array([1, 3]), "zeros": 0, "nonfinite": 0}]
    frame = pd.DataFrame({"step": [0, 1, 2], "loss_scale": [1.0] * 3, "grad_exponents": [cell, None, []]})
    numbers = gradient_exponents_numbers(frame)
    assert numbers.n_records == 1
    assert list(numbers.shares) == ["all groups"]  # one group needs no second map
    assert numbers.shares["all groups"].tolist() == [[0.25], [0.75]]


def test_neighbouring_records_are_added_when_there_are_too_many() -> None:
    steps = [_record(i, 1.0, ExponentCounts("a", 0, (1, 1 if i % 2 else 3))) for i in range(1000)]
    numbers = gradient_exponents_numbers(steps, limit=10)
    assert numbers.steps.size == 10
    assert np.allclose(numbers.shares["all groups"].sum(axis=0), 1.0)
    assert numbers.shares["all groups"][0].tolist() == pytest.approx([100 / 300] * 10)


def test_a_long_run_is_read_in_an_even_choice() -> None:
    steps = [_record(i, 1.0, ExponentCounts("a", 0, (1,))) for i in range(5000)]
    numbers = gradient_exponents_numbers(steps)
    assert (numbers.n_records, numbers.steps.size) == (2000, 400)
    assert numbers.steps[-1] > 4980
    assert numbers.shares["all groups"].tolist() == [[1.0] * 400]


def test_the_figure_draws_the_band_and_a_menu_of_groups() -> None:
    figure = gradient_exponents_figure(STEPS)
    assert [trace.type for trace in figure.data] == ["heatmap"] * 3 + ["scatter"] * 4
    assert [trace.visible for trace in figure.data[:3]] == [True, False, False]
    assert [trace.line.dash for trace in figure.data[3:6]] == ["solid", "dash", "solid"]
    assert {trace.coloraxis for trace in figure.data[:3]} == {"coloraxis"}
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (-6, 0)
    menu = figure.layout.updatemenus[0].buttons
    assert [button.label for button in menu] == ["all groups", "a", "b"]
    assert menu[1].args[0]["visible"] == [False, True, False, True, True, True, True]
    assert "log2" in figure.layout.yaxis.title.text
    assert "22.2 %" in title(figure)


def test_what_was_not_recorded_is_said() -> None:
    figure = gradient_exponents_figure([_record(0, 1.0)])
    assert "No gradient exponents were recorded" in figure.layout.annotations[0].text
    assert len(gradient_exponents_figure([]).data) == 0


@pytest.mark.parametrize(
    ("groups", "overflow", "answer"),
    [
        ((ExponentCounts("a", 0, (5,)),), False, "fit into float16"),
        ((ExponentCounts("a", 0, (5,)),), True, "at times too high"),
        ((ExponentCounts("a", -30, (5,)),), False, "100 % of the gradient would be zero"),
    ],
)
def test_the_title_answers(groups: tuple[ExponentCounts, ...], overflow: bool, answer: str) -> None:
    assert answer in title(gradient_exponents_figure([_record(0, 1.0, *groups, overflow=overflow)]))
