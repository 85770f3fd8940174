"""The loss-scale trace: numbers exactly, the figure lightly."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from tests.figures.looking import axis_titles, subtitle, title, xy
from workbench.core.records import Event, EventKind, StepRecord
from workbench.figures import figure_text, loss_scale_figure, loss_scale_numbers


def _record(step: int, used: float, after: float, *, overflow: bool = False, accumulated: int = 1) -> StepRecord:
    return StepRecord(
        step=step, seconds=step * 0.1, step_ms=1.0, loss=1.0, loss_scale=used, loss_scale_after=after,
        overflow=overflow, skipped=overflow, accumulated=accumulated,
    )  # fmt: skip


STEPS = [
    _record(0, 16.0, 8.0, overflow=True),
    _record(1, 8.0, 8.0),
    _record(2, 8.0, 16.0),
    _record(3, 16.0, 8.0, overflow=True),
    _record(4, 8.0, 8.0),
]
EVENTS = [
    Event(0, EventKind.OVERFLOW, "conv1, head", 16.0),
    Event(3, EventKind.OVERFLOW, "a, b, c, d, e, f", 16.0),
    Event(4, EventKind.SCALE_FLOOR, value=8.0),
    Event(4, EventKind.SCALE_COLLAPSE, value=8.0),
]


def test_numbers_of_a_small_run_are_exact() -> None:
    numbers = loss_scale_numbers(STEPS, EVENTS)
    assert xy(numbers.line) == ([0, 1, 2, 3, 4], [4, 3, 3, 4, 3])
    assert numbers.overflow.x.tolist() == [0, 3]
    assert numbers.overflow_subjects == ("conv1, head", "a, b, c, d, e, f")
    marks = {name: [places.tolist() for places in mark] for name, mark in numbers.marks.items()}
    assert marks["growth"] == [[2], [4]]
    assert marks["back-off"] == [[0, 3], [3, 3]]
    assert marks["floor"] == marks["collapse"] == [[4], [3]]
    assert (numbers.n_overflows, numbers.wasted_share, numbers.last_log2) == (2, 2 / 5, 3)


def test_the_line_reaches_what_the_last_step_changed() -> None:
    assert xy(loss_scale_numbers(STEPS[:4]).line) == ([0, 1, 2, 3, 4], [4, 3, 3, 4, 3])


def test_a_skipped_window_wastes_all_its_micro_batches() -> None:
    steps = [_record(0, 8, 8), _record(1, 8, 8, accumulated=2), _record(2, 8, 8),
             _record(3, 8, 4, overflow=True, accumulated=2)]  # fmt: skip
    assert loss_scale_numbers(steps).wasted_share == pytest.approx(0.5)


def test_a_scale_that_is_no_number_leaves_a_gap() -> None:
    numbers = loss_scale_numbers([_record(0, 4.0, float("inf")), _record(1, float("inf"), float("inf"))])
    assert numbers.line.x.tolist() == [0]
    assert numbers.last_log2 == 2


def test_the_figure_names_every_mark_and_its_axes() -> None:
    figure = loss_scale_figure(STEPS, EVENTS, policies={"init 2^3": [8.0] * 5})
    names = [trace.name for trace in figure.data]
    assert names == ["recorded scale", "replayed: init 2³", "growth", "back-off", "floor", "collapse", "overflow"]
    symbols = [trace.marker.symbol for trace in figure.data if trace.mode.startswith("markers")]
    assert len(set(symbols)) == len(symbols) == 5
    assert axis_titles(figure) == ["Loss scale (log2 axis)", "Step (batches)"]
    assert title(loss_scale_figure(STEPS)) == "The loss scale stands at 2^3 after 2 overflows"
    assert "40 % of 5 steps wasted" in subtitle(figure)
    assert figure.data[-1].customdata[1][1] == " in a, b, c, d and 2 more"
    growth = figure.data[names.index("growth")]
    assert list(growth.x) == [3]  # step 2 let it grow; step 3 is the first that used it
    assert growth.customdata.tolist() == [[2, 16]]
    assert all(trace.hovertemplate.rstrip().endswith(".<extra></extra>") for trace in figure.data)


@pytest.mark.parametrize(
    ("figure", "answer", "n_traces"),
    [
        (loss_scale_figure([_record(0, 8.0, 8.0)]), "No overflow", 1),
        (loss_scale_figure(STEPS, EVENTS), "The loss scale collapsed", 6),
        (loss_scale_figure([]), "Which loss scale fits, and what did overflows cost?\nNo step has been recorded", 0),
    ],
    ids=["no overflow", "a collapse", "no step"],
)
def test_the_title_answers(figure: go.Figure, answer: str, n_traces: int) -> None:
    assert figure_text(figure).startswith(answer)
    assert len(figure.data) == n_traces


def test_a_replayed_trace_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one scale per recorded step \(5\), got shape \(2,\)"):
        loss_scale_figure(STEPS, policies={"short": [1.0, 2.0]})


def _long_run(n: int, overflow_every: int) -> pd.DataFrame:
    step = np.arange(n)
    overflow = step % overflow_every == overflow_every - 1
    scale = 2.0 ** (10 + (step // 1000) % 6)
    return pd.DataFrame(
        {"step": step, "loss_scale": scale, "loss_scale_after": np.where(overflow, scale / 2, scale),
         "overflow": overflow, "skipped": overflow, "accumulated": 1}
    )  # fmt: skip


def test_a_million_steps_keep_all_overflow_marks_and_few_points() -> None:
    frame = _long_run(1_000_000, 1000)
    began = time.process_time()  # others may have the processor meanwhile
    figure = loss_scale_figure(frame)
    text = figure.to_json()
    seconds = time.process_time() - began
    assert len(figure.data[0].x) <= 4000
    assert (figure.data[-1].name, len(figure.data[-1].x)) == ("overflow", 1000)
    assert len(text) < 1_000_000
    assert seconds < 1.0, f"a million steps took {seconds:.2f} s"  # promised to readers, about 0.2 s on one core


def test_more_overflows_than_can_be_told_apart_are_counted_in_the_subtitle() -> None:
    figure = loss_scale_figure(_long_run(20_000, 2))
    assert len(figure.data[-1].x) == 4000
    assert "4\u202f000 marks drawn for 10\u202f000 overflows" in subtitle(figure)


def test_the_first_overflows_are_told_from_later_ones() -> None:
    steps = [_record(i, 2.0 ** (9 - min(i, 3)), 2.0 ** (8 - min(i, 2)), overflow=i < 3 or i == 5) for i in range(8)]
    assert loss_scale_numbers(steps).n_first_overflows == 3
    assert "; 3 of 4 overflows were the initial search" in subtitle(loss_scale_figure(steps))
    # Over windows of two: the micro-batch in the middle of a window is no update that went through.
    windows = [_record(i, 8.0, 4.0, overflow=i % 2 == 1 and i < 4, accumulated=1 + i % 2) for i in range(8)]
    assert loss_scale_numbers(windows).n_first_overflows == 2
    assert loss_scale_numbers([]).n_first_overflows == 0
