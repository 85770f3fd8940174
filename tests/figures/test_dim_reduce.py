"""DimReduce beside the run that made its snapshots."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from tests.figures.looking import axis_titles, subtitle, title, xy
from workbench.core.records import Event, EventKind, StepRecord
from workbench.figures import SubspacePair, dim_reduce_figure, dim_reduce_numbers

NAN = float("nan")


def pair(label: str = "seed 0", *, last: float = 0.05) -> SubspacePair:
    steps = pd.DataFrame(
        {
            "step": [0, 1, 2, 3],
            "dim_reduce.rho": [1.0, 0.0, NAN, 0.55],  # a failed search, a skipped step
            "dim_reduce.trials": [1.0, 8.0, NAN, 2.0],
            "dim_reduce.condition": [1.0, 1.0, NAN, 40.0],
            "dim_reduce.explained_variance": [0.97, NAN, NAN, NAN],
        }
    )
    events = [
        Event(1, EventKind.LINE_SEARCH_FAILED, "dim_reduce", 0.01, "failed"),
        Event(3, EventKind.EVALUATION, "loss", 0.1, "loss 0.1"),
    ]
    return SubspacePair(label, [(4, 0.9), (8, 0.1)], [(2, 0.4), (3, 0.1), (4, last)], steps, events)


def test_numbers_of_a_small_pair_are_exact() -> None:
    numbers = dim_reduce_numbers(pair())
    assert (numbers.target, numbers.warm_up_steps, numbers.reached) == (0.1, 8.0, 3.0)
    assert xy(numbers.rho) == ([0, 1, 3], [1.0, 0.0, 0.55])
    assert (numbers.failed_x.tolist(), numbers.n_failed, numbers.n_steps) == ([1], 1, 4)
    assert numbers.condition.y.tolist() == [1.0, 1.0, 40.0]
    assert numbers.explained_variance == 0.97
    assert numbers.mean_trials == pytest.approx(11 / 3)


def test_a_target_that_is_never_reached_is_told_as_such() -> None:
    never = SubspacePair("seed 1", [(8, 0.1)], [(2, 0.4), (4, 0.11)], pair().steps)
    assert math.isnan(dim_reduce_numbers(never).reached)
    assert title(dim_reduce_figure([never])).startswith("DimReduce did not reach the end loss")


def test_the_title_counts_the_runs_that_were_sooner() -> None:
    alone = title(dim_reduce_figure([pair()]))
    assert alone == "DimReduce needs 3 steps to the end loss that the warm-up reached in 8"
    later = SubspacePair("seed 1", [(4, 0.1)], [(4, 0.4), (8, 0.1)], pair().steps)
    figure = dim_reduce_figure([pair(), later])
    assert "in fewer steps in 1 of 2 runs, after 6 in the median" in title(figure)  # 3 and 8
    assert "12.5 % of the line searches failed" in subtitle(figure)  # told by one event in 8 steps
    assert "explain at least 97 %" in subtitle(figure)


def test_the_figure_shows_both_runs_the_search_and_the_condition() -> None:
    figure = dim_reduce_figure([pair(), pair("seed <1>", last=0.02)], loss_name="Training loss")
    named = [trace.name for trace in figure.data if trace.showlegend]
    assert len(named) == len(set(named))
    assert "line search failed" in named
    own = ("Accepted rho<br>(seed 0)", "Condition, log<br>(seed 0)")
    assert axis_titles(figure) == ["Training loss (log)", *own, "Step (batches)"]
    assert figure.layout.yaxis.type == figure.layout.yaxis3.type == "log"
    (target,) = [note for note in figure.layout.annotations if "end of the warm-up" in note.text]
    assert target.y == pytest.approx(-1)  # 0.1 on a logarithmic axis
    assert [shape.y0 for shape in figure.layout.shapes] == [0.1]
    stars = [trace for trace in figure.data if trace.marker.symbol == "star"]
    assert [list(trace.x) for trace in stars] == [[3.0], [3.0]]
    assert not any("<1>" in str(trace.hovertemplate) for trace in figure.data)


def test_records_will_do_and_nothing_is_said_of_nothing() -> None:
    records = [StepRecord(step, 0.0, 1.0, 0.5, columns={"dim_reduce.rho": 1.0}) for step in range(3)]
    numbers = dim_reduce_numbers(SubspacePair("run", [], [(3, 0.2)], records))
    assert numbers.rho.y.tolist() == [1.0, 1.0, 1.0]
    assert np.isnan([numbers.target, numbers.explained_variance, numbers.mean_trials]).all()
    assert not dim_reduce_figure([]).data
    assert not dim_reduce_figure([SubspacePair("run", [], [], [])]).data


def test_a_run_that_goes_on_is_drawn_from_its_steps() -> None:
    records = [StepRecord(i, 0.0, 1.0, 0.5 / (i + 1), columns={"dim_reduce.rho": 1.0}) for i in range(3)]
    numbers = dim_reduce_numbers(SubspacePair("now", [], [], records))
    assert [numbers.x.tolist(), numbers.loss.tolist()] == [[0, 1, 2], [0.5, 0.25, 0.5 / 3]]
    figure = dim_reduce_figure([SubspacePair("now", [], [], records)])
    assert title(figure) == "How does DimReduce find its steps?"


def test_a_log_axis_has_a_tick_per_decade_or_more() -> None:
    wide = SubspacePair("wide", [], [(1, 1.0), (2, 1e-4)], pair().steps)
    assert all(np.log10(dim_reduce_figure([wide]).layout.yaxis.tickvals) % 1 == 0)
    narrow = SubspacePair("narrow", [], [(1, 1.0), (2, 0.4)], pair().steps)
    assert len(dim_reduce_figure([narrow]).layout.yaxis.tickvals) >= 3
