"""Group scales: one line per group, and who overflowed."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.figures.looking import axis_titles, subtitle, title, xy
from workbench.core.records import Event, EventKind, StepRecord
from workbench.figures import figure_text, group_scales_figure, group_scales_numbers

BODY, HEAD = "group 1 (conv1, conv2)", "group 2 (head)"


def _record(step: int, *scales: float, overflow: bool = False) -> StepRecord:
    return StepRecord(step, 0.0, 1.0, 1.0, overflow=overflow, skipped=overflow, group_scales=scales)


STEPS = [
    _record(0),  # the window that finds the groups has no scales yet
    _record(1, 16.0, 1024.0),
    _record(2, 16.0, 1024.0, overflow=True),
    _record(3, 16.0, 512.0),
    _record(4, 32.0, 512.0, overflow=True),
]
EVENTS = [
    Event(0, EventKind.SCALE_UP, "", 16.0),
    Event(2, EventKind.OVERFLOW, "head", 1024.0),
    Event(2, EventKind.SCALE_DOWN, HEAD, 512.0),
    Event(3, EventKind.SCALE_UP, BODY, 32.0),
    Event(4, EventKind.OVERFLOW, "conv1", 32.0),
    Event(4, EventKind.SCALE_FLOOR, "", 32.0),
]


def test_numbers_of_a_small_run_are_exact() -> None:
    numbers = group_scales_numbers(STEPS, EVENTS)
    body, head = numbers.groups
    assert (body.name, head.name) == (BODY, HEAD)
    assert xy(body.line) == ([1, 2, 3, 4], [4, 4, 4, 5])
    assert head.line.y.tolist() == [10, 10, 9, 9]
    assert [a.tolist() for a in body.growth] == [[3], [5]]
    assert [a.tolist() for a in head.back_off] == [[2], [10]]
    assert (body.n_overflows, head.n_overflows, numbers.n_overflows) == (0, 1, 2)
    assert [a.tolist() for a in numbers.floor] == [[4], [5]]
    assert numbers.wasted_share == pytest.approx(2 / 5)
    assert (body.last_log2, head.last_log2) == (5, 9)


def test_tables_read_like_records_and_groups_without_events_are_numbered() -> None:
    frame = pd.DataFrame({"step": [0, 1], "group_scales": [(), (2.0, 8.0)]})
    numbers = group_scales_numbers(frame)
    assert [group.name for group in numbers.groups] == ["group 1", "group 2"]
    assert [group.line.y.tolist() for group in numbers.groups] == [[1], [3]]


def test_a_scale_that_is_no_number_leaves_a_gap() -> None:
    line = group_scales_numbers([_record(0, 4.0), _record(1, 0.0), _record(2, float("inf"))]).groups[0]
    assert line.line.x.tolist() == [0]
    assert line.last_log2 == 2


def test_groups_differ_in_dash_and_every_mark_has_a_name() -> None:
    figure = group_scales_figure(STEPS, EVENTS)
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert [trace.name for trace in lines] == [BODY, HEAD]
    assert len({trace.line.dash for trace in lines}) == 2
    assert [trace.name for trace in figure.data[2:]] == ["growth", "overflow", "floor"]
    assert list(figure.data[2].x) == [4]  # step 3 let it grow; step 4 is the first that used it
    assert title(figure) == "The loss scales of 2 groups stand between 2^5 and 2^9"
    assert "40 % of 5 steps wasted" in subtitle(figure)
    assert "1 overflow of 2 arose in group 2 (head)" in subtitle(figure)
    assert axis_titles(figure) == ["Loss scale (log2 axis)", "Step (batches)"]
    assert all(trace.hovertemplate.endswith(".<extra></extra>") for trace in figure.data)


def test_one_group_and_no_group_are_told_as_such() -> None:
    assert title(group_scales_figure([_record(0, 8.0)])).startswith("One group of parameters was found")
    assert "boost.loss_scale_group" in figure_text(group_scales_figure([_record(0)]))
    assert not group_scales_figure([]).data
