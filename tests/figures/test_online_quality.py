"""Prequential figures with drift marks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.figures.looking import axis_titles, title, xy
from workbench.core.records import Event, EventKind
from workbench.figures import figure_text, online_quality_figure, online_quality_numbers

NAN = float("nan")


def _steps(n: int = 40) -> pd.DataFrame:
    """Return a run that is judged every tenth step: bad at first, good, bad once more, good."""
    auc, loss = np.full(n, NAN), np.full(n, NAN)
    auc[[9, 19, 29, 39]] = [0.5, 0.8, 0.6, 0.7]
    loss[[9, 19, 29, 39]] = [0.7, 0.5, 0.65, 0.55]
    return pd.DataFrame({"step": np.arange(n), "online.auc": auc, "online.log_loss": loss})


def _drift(step: int) -> Event:
    return Event(step, EventKind.DRIFT, "online.log_loss", 0.9, f"step {step}: the log loss of new records has risen")


def test_the_line_has_the_judged_steps_and_drift_lies_on_it() -> None:
    numbers = online_quality_numbers(_steps(), [_drift(24), Event(25, EventKind.RECORD_REJECTED, "nan", 1.0)])
    assert xy(numbers.auc) == ([9, 19, 29, 39], [0.5, 0.8, 0.6, 0.7])
    assert xy(numbers.log_loss) == ([9, 19, 29, 39], [0.7, 0.5, 0.65, 0.55])
    assert xy(numbers.drifts) == ([24], pytest.approx([0.7]))  # half-way from 0.8 at step 19 to 0.6 at step 29
    assert numbers.n_drifts == 1
    assert (numbers.last_auc, numbers.last_log_loss) == (0.7, 0.55)


def test_the_lowest_area_is_looked_for_behind_the_first_tenth() -> None:
    steps = pd.concat([_steps(), _steps().assign(**{"online.auc": 0.9})], ignore_index=True)
    numbers = online_quality_numbers(steps.assign(step=np.arange(80)))
    assert (numbers.lowest_auc, numbers.lowest_step) == (0.5, 9)
    longer = pd.concat([steps, steps.iloc[40:]], ignore_index=True)
    numbers = online_quality_numbers(longer.assign(step=np.arange(120)))
    assert (numbers.lowest_auc, numbers.lowest_step) == (0.6, 29)


def test_drift_and_known_changes_are_told_apart_by_shape_and_word() -> None:
    figure = online_quality_figure(_steps(), [_drift(24)], changes=[20, 30])
    assert [trace.name for trace in figure.data] == ["AUC", "log loss", "the data changed", "drift seen"]
    assert figure.data[2].marker.symbol != figure.data[3].marker.symbol
    assert figure.data[3].customdata[0][0] == "Step 24: the log loss of new records has risen."
    uprights = [(line.x0, line.line.dash, line.yref) for line in figure.layout.shapes]
    assert uprights == [(20, "dot", "paper"), (30, "dot", "paper"), (24, "dash", "paper")]
    assert title(figure) == "The AUC of new records stands at 0.700; drift was seen once"
    assert "log loss at the end 0.55 nats per record" in figure_text(figure)
    upright = ["AUC of the last<br>window (0 to 1)", "Log loss of the last<br>window (nats per record)"]
    assert axis_titles(figure) == [*upright, "Step (batches)"]


def test_a_quiet_stream_and_one_of_a_single_class() -> None:
    quiet = online_quality_figure(_steps())
    assert "no drift was seen" in title(quiet)
    assert not quiet.layout.shapes
    losses_only = online_quality_figure(_steps().drop(columns="online.auc"), [_drift(3)] * 3)
    assert title(losses_only) == "The log loss of new records stands at 0.55 nats; drift was seen 3 times"


def test_a_run_that_judges_nothing_says_how_to() -> None:
    assert not online_quality_figure([]).data
    assert "Prequential" in figure_text(online_quality_figure([]))


def test_predictions_that_are_no_longer_finite_are_the_answer() -> None:
    lacking = pd.DataFrame({"step": np.arange(40, 70)})
    assert title(online_quality_figure(pd.concat([_steps(), lacking]))) == (
        "Since step 39 no prediction of a new record has been finite"
    )
    assert "stands at" in title(online_quality_figure(pd.concat([_steps(), lacking.iloc[:19]])))
