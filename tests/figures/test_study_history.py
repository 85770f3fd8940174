"""History of a study."""

from __future__ import annotations

import math
from typing import Any

from tests.figures.looking import axis_titles, title
from workbench.core.records import TrialRecord
from workbench.figures import study_history_figure, study_history_numbers
from workbench.figures.drawing import figure_text


def _trial(number: int, value: float = 1.0, *, state: str = "complete", **known: Any) -> TrialRecord:
    return TrialRecord(number=number, state=state, value=value, **known)


def test_best_so_far_ignores_what_breaks_the_constraint() -> None:
    trials = [_trial(2, 0.5), _trial(0, 1.0), _trial(1, 0.9, feasible=True), _trial(3, 0.7, state="pruned"),
              _trial(4, 0.8, feasible=True), _trial(5, math.nan), _trial(6, 1e6)]  # fmt: skip
    numbers = study_history_numbers(trials)
    assert numbers.numbers == (0, 1, 2, 3, 4, 6)
    assert numbers.kinds == ("baseline", "feasible", "infeasible", "pruned", "feasible", "infeasible")
    assert numbers.best == (1.0, 0.9, 0.9, 0.9, 0.8, 0.8)
    assert numbers.ceiling == 1.0
    assert numbers.counts.text() == "O0, 2 within the allowed drop, 3 beyond the allowed drop, 1 pruned"


def test_history_names_no_winner_marks_penalties_at_the_edge_and_every_point_carries_its_trial() -> None:
    trials = [_trial(0, 1.0), _trial(7, 0.9, feasible=True), _trial(8, 1e6)]
    figure = study_history_figure(trials, objective="Time to target (O0 steps)")
    assert title(figure) == "What each trial scored, and the lowest score within the allowed drop"
    assert axis_titles(figure)[0] == "Time to target (O0 steps)"
    (beyond,) = figure.select_traces({"name": "beyond this axis"})
    assert list(beyond.x) == [8]
    assert max(beyond.y) < 2
    carried = {point[0] for trace in figure.data if trace.customdata is not None for point in trace.customdata}
    assert carried == {0, 7, 8}
    assert len(study_history_figure([_trial(0, math.nan)]).data) == 0


def test_ticks_of_few_trials_are_whole_numbers() -> None:
    for numbers, dtick in (((0, 1), 1), ((0, 2), 1), (range(40), None)):
        assert study_history_figure([_trial(number) for number in numbers]).layout.xaxis.dtick == dtick


def test_o0_alone_is_no_history() -> None:
    figure = study_history_figure([_trial(0), _trial(1, math.nan, state="waiting")])
    assert not figure.data
    assert "So far only O0 has a score." in figure_text(figure)


def test_what_suits_one_export_only_is_neither_within_nor_beyond() -> None:
    trials = [_trial(0), _trial(1, 0.8, metric_deficit=0.02)]
    numbers = study_history_numbers(trials, {"o1": 0.01, "o2": 0.03})
    assert numbers.kinds == ("baseline", "partly")
    assert numbers.best == (1.0, 1.0)  # the score is for the study's own target
    figure = study_history_figure(trials, allowed_drops={"o1": 0.01, "o2": 0.03})
    assert "O0, 1 within the drop of o2 only" in figure_text(figure)
