"""Loss curves."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.figures.looking import axis_titles, xy
from workbench.figures import MetricScale, RunCurve, loss_curve_numbers, loss_curves_figure


def _frame(loss: list[float], **columns: object) -> pd.DataFrame:
    return pd.DataFrame({"step": np.arange(len(loss)), "loss": loss, "seconds": 0.5 * np.arange(len(loss))} | columns)


def test_the_running_mean_skips_what_is_not_finite() -> None:
    run = RunCurve("a", _frame([4.0, 2.0, np.nan, 6.0]), evaluations=[(2, 0.5)])
    numbers = loss_curve_numbers(run, window=2, metric=MetricScale("accuracy"))
    assert xy(numbers.loss) == ([0, 1, 3], [4.0, 3.0, 6.0])
    assert xy(numbers.metric) == ([2], [50.0])


def test_a_huge_loss_is_forgotten_once_it_has_left_the_window() -> None:
    losses = loss_curve_numbers(RunCurve("a", _frame([1.0, 1e25, 1.0, 1.0, 3.0])), window=2).loss.y
    assert losses[-2:].tolist() == [1.0, 2.0]


def test_relative_time_stretches_the_axis_and_seconds_are_looked_up() -> None:
    run = RunCurve("a", _frame([1.0, 1.0, 1.0]), evaluations=[(2, 0.5)], relative_step_time=0.5)
    assert loss_curve_numbers(run, x="relative_time").loss.x.tolist() == [0, 0.5, 1.0]
    assert loss_curve_numbers(run, x="relative_time").metric.x.tolist() == [1.0]
    assert loss_curve_numbers(run, x="seconds").metric.x.tolist() == [0.5]  # after the step with index 1
    with pytest.raises(ValueError, match="`window` must be at least 1"):
        loss_curve_numbers(run, window=0)


def test_two_runs_differ_in_dash_and_symbol_not_only_in_colour() -> None:
    runs = [RunCurve(name, _frame([1.0, 0.5], overflow=[False, True]), [(1, 0.9)]) for name in ("O0", "trial <1>")]
    figure = loss_curves_figure(runs, metric=MetricScale("accuracy"))
    assert len(figure.data) == 6
    lines = [t for t in figure.data if t.mode == "lines"]
    assert lines[0].line.dash != lines[1].line.dash
    assert lines[1].name == "trial &lt;1&gt;"
    assert [t.marker.symbol for t in figure.data if t.mode == "markers"] == ["x", "x"]
    assert axis_titles(figure) == ["Training loss (nats)", "Accuracy (%)", "Step (batches)"]


def test_a_row_that_nobody_has_is_left_out() -> None:
    metric_only = loss_curves_figure([RunCurve("a", [], [(1, 0.9), (2, 0.95)])], x="relative_time")
    assert axis_titles(metric_only) == ["Metric", "Relative time (O0 steps)"]
    loss_only = loss_curves_figure([RunCurve("a", _frame([1.0, 0.5]))])
    assert axis_titles(loss_only) == ["Training loss (nats)", "Step (batches)"]
    assert not loss_curves_figure([RunCurve("a", [])]).data


def test_a_long_run_is_thinned() -> None:
    figure = loss_curves_figure([RunCurve("a", _frame(np.sin(np.arange(100_000)).tolist()))])
    assert len(figure.data[0].x) <= 4000


def test_a_short_run_has_no_steps_between_its_steps() -> None:
    assert loss_curves_figure([RunCurve("O1", _frame([4.0, 3.0, 2.0, 1.0]))]).layout.xaxis.dtick == 1
