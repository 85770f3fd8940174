"""Where a gain comes from: bars that follow each other, in light and dark, with any number of parts."""

from __future__ import annotations

import math

import pytest

from tests.reports.synthetic_study import PARTS, candidate
from workbench.core.records import GainPart
from workbench.figures import attribution_figure, attribution_numbers, figure_text
from workbench.figures.theme import BLUE, GREY, VERMILLION

TAKEN = candidate(label="trial 7", speedup=2.0, speedup_low=1.8, speedup_high=2.25)


def test_each_bar_begins_where_the_one_before_it_ends() -> None:
    numbers = attribution_numbers(PARTS, TAKEN, 1.25)
    assert [(bar.start, bar.end) for bar in numbers.parts] == [(1.0, 2.0), (2.0, 2.5), (2.5, 2.0)]
    assert [(bar.low, bar.high) for bar in (numbers.parts[0], numbers.parts[2])] == [(1.8, 2.2), (1.75, 2.25)]
    assert [bar.is_measured for bar in numbers.parts] == [True, False, True]
    total = numbers.total
    assert (total.start, total.end, total.low, total.high, numbers.tuned_plain) == (1.0, 2.0, 1.8, 2.25, 1.25)


@pytest.mark.parametrize("taken", [None, candidate(speedup=math.nan)], ids=["O0", "not known"])
def test_without_a_measured_whole_the_parts_are_multiplied(taken: None) -> None:
    total = attribution_numbers(PARTS, taken).total
    assert (total.end, total.is_measured) == (2.0, False)


def test_bars_intervals_and_references_are_drawn() -> None:
    figure = attribution_figure(PARTS, TAKEN, 1.25)
    drawn = {trace.name: trace for trace in figure.data if trace.name}
    assert list(drawn) == [
        "one part, 95 % interval",
        "one that costs time, 95 % interval",
        "one part, not measured by itself",
        "all together, 95 % interval",
        "task as given, 1.00 x",
        "tuned plain, 1.25 x",
    ]
    measured = drawn["one part, 95 % interval"]
    costs = drawn["one that costs time, 95 % interval"]
    bars = [(list(one.base), list(one.x), list(one.y), list(one.marker.color)) for one in (measured, costs)]
    assert bars == [([1.0], [1.0], [0], [BLUE]), ([2.5], [-0.5], [2], [VERMILLION])]
    for one, margin in ((measured, 0.2), (costs, 0.25)):
        assert [*one.error_x.array, *one.error_x.arrayminus] == pytest.approx([margin, margin])
    assert not drawn["one part, not measured by itself"].error_x.visible
    assert list(drawn["tuned plain, 1.25 x"].x) == [1.25, 1.25]
    axis = figure.layout.xaxis
    assert (axis.type, axis.title.text) == ("log", "Speed (x as given)")
    low, high = axis.range
    assert high - max(math.log10(max(trace.x)) for trace in figure.select_traces({"mode": "text"})) > (high - low) / 5
    assert 10**low < 1.0 < 2.5 < 10**high
    assert 1.0 in axis.tickvals
    assert figure_text(figure).startswith("schedule x 0.5 gives most: 2.00 x of 2.00 x")


def test_a_part_may_give_more_than_all_together() -> None:
    figure = attribution_figure([GainPart("Muon", 6.66, 4.6, 9.7), GainPart("shorter", 0.5, 0.4, 0.6)])
    assert figure_text(figure).startswith("Muon gives most: 6.66 x, all together 3.33 x")


def test_a_rest_that_was_not_measured_part_by_part_gives_no_most() -> None:
    figure = attribution_figure([GainPart("Muon, batch x 2, length 0.2", 4.0), GainPart("compiled", 1.5, 1.4, 1.6)])
    assert figure_text(figure).startswith("4.00 x of the 6.00 x were not measured part by part")


def test_a_whole_that_the_parts_do_not_make_is_told() -> None:
    figure = attribution_figure(PARTS, candidate(speedup=2.2))
    assert "the parts multiply to 2.00 x, whole runs were measured at 2.20 x" in figure_text(figure).replace("\n", " ")


@pytest.mark.parametrize("theme", ["light", "dark", "auto"])
@pytest.mark.parametrize("n", [1, 3, 12])
def test_any_number_of_parts_has_room(n: int, theme: str) -> None:
    parts = [GainPart(f"part {i} <b> with a long name of its own, {'and more ' * 5}", 1.1) for i in range(n)]
    figure = attribution_figure(parts, theme=theme)  # type: ignore[arg-type]
    names = figure.layout.yaxis.ticktext
    assert len(names) == n + 1
    assert figure.layout.height > 20 * max(name.count("<br>") + 1 for name in names) * (n + 1)
    assert "<b>" not in "".join(names)
    assert len(figure.layout.xaxis.tickvals) <= 5


def test_without_parts_it_says_why() -> None:
    figure = attribution_figure((), TAKEN)
    assert not figure.data
    assert "there was no time for it" in figure_text(figure)


def test_parts_that_were_not_measured_one_by_one_are_not_said_to_be_where_the_gain_comes_from() -> None:
    told = figure_text(attribution_figure([GainPart("SGD, length 0.4", 2.0, note="no time was left")], TAKEN))
    assert told.startswith("The parts of the 2.00 x were not measured by themselves")
    assert figure_text(attribution_figure([GainPart("length 0.4", 2.0)], TAKEN)).startswith("All of the 2.00 x")


@pytest.mark.parametrize("part", [GainPart("LessBN", 0.9), GainPart("LessBN", 1.3, 0.9, 1.9)], ids=["costs", "unsure"])
def test_nothing_that_surely_helps_is_no_answer(part: GainPart) -> None:
    assert figure_text(attribution_figure([part])).startswith("Where does the gain come from?")


def test_a_part_whose_interval_includes_1_is_not_said_to_cost_time() -> None:
    figure = attribution_figure([GainPart("batch x 4", 2.0, 1.8, 2.2), GainPart("LessBN", 0.97, 0.88, 1.07)])
    unsure, *others = (trace for trace in figure.data if "LessBN" in str(trace.customdata))
    assert others == []
    assert (unsure.name, unsure.marker.color) == ("one without a sure effect, 95 % interval", (GREY,))
    assert "no sure effect: its interval includes 1" in str(unsure.customdata)
