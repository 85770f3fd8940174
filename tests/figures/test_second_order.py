"""THOR's refreshes, damping and times."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.figures.looking import axis_titles, title
from workbench.core.records import Event, EventKind, StepRecord
from workbench.figures import figure_text, second_order_figure, second_order_numbers

NAN = float("nan")


def _run(n: int = 30, every: int = 5, *, slow_ms: float = 40.0) -> list[StepRecord]:
    """Return a run that refreshes every so many steps, which then take longer; its damping halves at step 10."""
    return [
        StepRecord(
            step=i,
            seconds=0.01 * i,
            step_ms=slow_ms if i % every == 0 else 10.0,
            loss=1.0,
            columns={"thor.refreshed": float(i % every == 0), "thor.damping": 0.4 if i < 10 else 0.2},
        )
        for i in range(n)
    ]


def _refreshed(step: int, layers: float) -> Event:
    return Event(step, EventKind.FACTORS_REFRESHED, value=layers, message="so many layers")


RAISED = Event(12, EventKind.DAMPING_RAISED, "fc<1>", 0.9, "step 12: factor A of fc<1> is damped by 0.9")


def test_refreshes_are_counted_by_layers_against_the_fullest_one() -> None:
    events = [_refreshed(0, 8.0), _refreshed(5, 6.0), _refreshed(10, 0.0), _refreshed(20, 8.0)]
    numbers = second_order_numbers(_run(25), events)
    assert numbers.refresh_steps.tolist() == [0, 5, 10, 15, 20]
    np.testing.assert_array_equal(numbers.layers_done, [8, 6, 0, NAN, 8])  # nobody told of step 15
    np.testing.assert_array_equal(numbers.layers_left, [0, 2, 8, NAN, 0])
    assert (numbers.n_refreshes, numbers.n_done, numbers.n_left) == (5, 22, 10)


def test_the_share_is_what_refreshes_take_beyond_an_ordinary_step() -> None:
    numbers = second_order_numbers(_run(30))  # without the first ten steps: 4 refreshes, 16 other steps
    assert (numbers.plain_median_ms, numbers.slow_median_ms) == (10.0, 40.0)
    assert numbers.share == 4 * 30.0 / (4 * 40.0 + 16 * 10.0)
    assert numbers.slow.x.tolist() == [10, 15, 20, 25]
    assert numbers.plain.x.tolist() == [i for i in range(10, 30) if i % 5]
    assert second_order_numbers(_run(20)).slow.x.tolist() == [0, 5, 10, 15]  # too short to leave any out
    assert second_order_numbers(_run(30, slow_ms=9.0)).share == 0.0
    assert np.isnan(second_order_numbers(_run(4, every=1)).share)


def test_raised_damping_stands_on_the_line_of_the_damping_in_force() -> None:
    numbers = second_order_numbers(_run(), [RAISED, Event(99, EventKind.DAMPING_RAISED, "fc", 1.0, "later")])
    assert numbers.damping.x.size == 30
    assert numbers.damping.y[[9, 10]].tolist() == [0.4, 0.2]
    np.testing.assert_array_equal(numbers.raised.y, [0.2, NAN])
    assert numbers.n_raised == 2


def test_the_figure_says_what_the_curvature_cost() -> None:
    events = [_refreshed(0, 8.0), _refreshed(5, 6.0), RAISED]
    figure = second_order_figure(_run(), events)
    assert [trace.name for trace in figure.data] == [
        "recomputed",
        "skipped",
        "refresh of an unknown number of layers",
        "damping in force",
        "damping raised",
        "step without a refresh",
        "step with a refresh",
    ]
    assert figure.data[4].customdata[0][0] == "Step 12: factor A of fc&lt;1&gt; is damped by 0.9."
    for told in (
        "Refreshing the curvature took 37.5 % of the time",
        "6 refreshes: a step with one takes 40 ms, one without 10 ms (medians)",
        "the trace rule skipped 12.5 % of the layers' refreshes",
        "damping raised once",
    ):
        assert told in figure_text(figure)
    assert axis_titles(figure) == ["Layers", "Damping (log)", "Time of a step (ms)", "Step (batches)"]
    assert all(trace.hovertemplate.endswith("<extra></extra>") for trace in figure.data)


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        pytest.param(0.1, 0.1, ["0.05", "0.1", "0.2"], id="level"),
        pytest.param(0.015, 0.03, ["0.01", "0.02", "0.05"], id="an octave"),
        pytest.param(0.0015, 0.03, ["0.001", "0.002", "0.005", "0.01", "0.02", "0.05"], id="more than a decade"),
        pytest.param(1.5e-8, 1.0, ["1e-08", "1e-06", "0.0001", "0.01", "1"], id="eight decades"),
    ],
)
def test_the_damping_has_few_ticks_that_read_as_numbers(low: float, high: float, shown: list[str]) -> None:
    damping = [high, low]
    steps = pd.DataFrame({"step": [0, 1], "step_ms": 1.0, "thor.refreshed": [1.0, 0.0], "thor.damping": damping})
    assert list(second_order_figure(steps).layout.yaxis2.ticktext) == shown


def test_a_run_without_curvature_says_how_to_get_it() -> None:
    assert "optimizer.name" in figure_text(second_order_figure([]))
    plain = pd.DataFrame({"step": [0], "step_ms": [1.0], "thor.refreshed": [0.0]})
    assert not second_order_figure(plain).data
    assert title(second_order_figure(_run(1))) == "The curvature was refreshed once"
