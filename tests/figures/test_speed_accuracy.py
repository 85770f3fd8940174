"""Speed against accuracy."""

from __future__ import annotations

import functools
from typing import Any

import plotly.graph_objects as go
import pytest

from tests.figures.looking import axis_titles, title, trace_of
from tests.reports.synthetic_study import candidate
from workbench.core.records import Choice, TrialRecord, TunedPlain, Verdict
from workbench.figures import MetricScale, speed_accuracy_figure, speed_accuracy_numbers
from workbench.figures.drawing import figure_text
from workbench.figures.speed_accuracy import FAR_BEYOND

ACCURACY = MetricScale("accuracy")


def _trial(number: int, value: float = 1.0, *, state: str = "complete", **known: Any) -> TrialRecord:
    return TrialRecord(number=number, state=state, value=value, **known)


_candidate = functools.partial(
    candidate,
    label="trial 2",
    trial_number=2,
    speedup=1.4,
    speedup_low=1.3,
    speedup_high=1.5,
    drop=0.01,
    drop_bound=0.03,
    allowed_drop=0.05,
)


TRIALS = [
    _trial(0, metric=0.9, relative_step_time=1.0),
    _trial(1, 0.8, metric=0.89, relative_step_time=0.9, feasible=True, summary="LessBN"),
    _trial(2, 0.5, metric=0.80, relative_step_time=0.5),
    _trial(3, metric=0.2, relative_step_time=1.25, state="pruned"),
    _trial(4, state="failed"),
]


def test_trials_are_placed_by_the_objective_s_speed_and_shown_metric() -> None:
    numbers = speed_accuracy_numbers(TRIALS, metric=ACCURACY, allowed_drops={"o1": 0.05})
    assert [(p.number, p.speedup, round(p.metric, 9), p.kind) for p in numbers.trials] == [
        (1, 1.25, 89.0, "within the allowed drop"),
        (2, 2.0, 80.0, "beyond the allowed drop"),
        (3, 0.8, 20.0, "pruned or failed"),
    ]
    assert numbers.baseline == 90.0
    assert numbers.bounds["o1"] == pytest.approx(85.0)
    assert numbers.left_out == "1 failed"


def test_a_trial_is_named_by_the_exports_it_suits() -> None:
    trials = [TRIALS[0]] + [
        _trial(i, 0.9, metric=0.9 - drop, metric_deficit=drop, relative_step_time=0.9, feasible=drop <= 0.01)
        for i, drop in enumerate((0.005, 0.02, 0.05), start=1)
    ]
    drops = {"o1": 0.01, "o2": 0.03}
    kinds = [point.kind for point in speed_accuracy_numbers(trials, metric=ACCURACY, allowed_drops=drops).trials]
    assert kinds == ["within the allowed drop", "within the drop of o2 only", "beyond the allowed drop"]
    names = [trace.name for trace in speed_accuracy_figure(trials, metric=ACCURACY, allowed_drops=drops).data]
    assert set(kinds) <= set(names)


def test_with_o0_alone_the_figure_says_so() -> None:
    choices = [Choice(target, None, "") for target in ("o1", "o2")]
    figure = speed_accuracy_figure(TRIALS[:1], metric=ACCURACY, choices=choices)
    assert figure_text(figure) == (
        "Exported: O0, as nothing is surely faster and as good\nSo far only O0 has both a measured speed and a metric."
    )


@pytest.mark.parametrize(("higher", "metric", "bound"), [(True, 89.0, 87.0), (False, 91.0, 93.0)])
def test_a_candidate_stands_where_its_paired_drop_puts_it(higher: bool, metric: float, bound: float) -> None:
    scale = MetricScale("error", "share", higher_is_better=higher)
    point = speed_accuracy_numbers(TRIALS, [_candidate(Verdict.CONFIRMED)], metric=scale).candidates[0]
    assert point.metric == pytest.approx(metric)
    assert point.metric_bound == pytest.approx(bound)


def test_the_title_names_what_is_exported_and_nothing_else_and_its_point_is_marked() -> None:
    first, second = _candidate(Verdict.CONFIRMED, label="trial 1", speedup=1.45), _candidate(Verdict.CONFIRMED)

    def of(*choices: Choice) -> go.Figure:
        return speed_accuracy_figure(TRIALS, [first, second], metric=ACCURACY, choices=choices)

    assert title(of(Choice("o1", second, ""))) == "Exported: trial 2, 1.40 x O0 (confirmed)"
    assert title(of(Choice("o1", None, ""))) == "Exported: O0, as nothing is surely faster and as good"
    both = title(of(Choice("o1", None, ""), Choice("o2", second, "")))
    assert both == "Exported: o1 O0; o2 trial 2, 1.40 x O0 (confirmed)"
    assert title(of()) == "How much faster can this task be trained, and what does that cost?"
    assert list(trace_of(of(Choice("o1", second, "")), "confirmed").text) == ["", "o1: trial 2 ✓"]


def test_the_plane_marks_the_baseline_the_bounds_and_the_verdict_in_names_that_fit_into_the_legend() -> None:
    candidates = [_candidate(v, label=f"trial {i}") for i, v in enumerate(Verdict)]
    figure = speed_accuracy_figure(TRIALS, candidates, metric=ACCURACY, allowed_drops={"o1": 0.05})
    names = [trace.name for trace in figure.data]
    assert "O0" in names
    assert {f"{v} {s}" for v, s in zip(Verdict, "✓?✗", strict=True)} <= set(names)
    both = speed_accuracy_figure(TRIALS, candidates, metric=ACCURACY, allowed_drops={"o1": 0.05, "o2": 0.07})
    assert max(len(trace.name) for trace in both.data) * 6 <= both.layout.legend.entrywidth
    assert axis_titles(figure) == ["Accuracy (%)", "Speed: time of O0 / time (x)"]
    assert [note.text for note in figure.layout.annotations] == ["allowed for o1"]
    confirmed = trace_of(figure, "confirmed")
    assert [*confirmed.error_x.arrayminus, *confirmed.error_x.array] == pytest.approx([0.1, 0.1])
    assert [*confirmed.error_y.arrayminus, *confirmed.error_y.array] == pytest.approx([2.0, 0.0])
    assert [place.split()[1] for place in confirmed.textposition] == ["left"], "a bar goes through the middle"
    marked = [t for t in figure.data if t.mode != "lines"]
    assert len({t.marker.symbol for t in marked}) == len(marked)


def test_o0_and_tuned_plain_are_named_on_opposite_sides_of_their_points() -> None:
    same = {"o1": (TunedPlain("length 1", {}, 1.0, 1.0, 1.0, 1.0, 0.0, 14), 1.0)}
    figure = speed_accuracy_figure(TRIALS, metric=ACCURACY, tuned_plain=same)
    o0, tuned = trace_of(figure, "O0"), trace_of(figure, "tuned plain")
    assert (o0.x[0], o0.y[0]) == pytest.approx((tuned.x[0], tuned.y[0])), "else their names could not meet"
    assert [list(trace.text) for trace in (o0, tuned)] == [["O0"], ["tuned plain"]]
    assert [trace.textposition.split()[1] for trace in (o0, tuned)] == ["left", "right"]
    assert o0.textposition.startswith("top"), "the line of the allowed drop is below"


def test_a_trial_given_up_early_does_not_squeeze_the_picture() -> None:
    figure = speed_accuracy_figure(TRIALS, metric=ACCURACY)
    low, high = figure.layout.yaxis.range
    assert 70 < low < high < 100
    pruned = trace_of(figure, "pruned or failed")
    assert list(pruned.y) == [low]
    assert "reached 20.00 %" in pruned.customdata[0][1]


@pytest.mark.parametrize(("metric", "lost", "near", "mark"), [
    (ACCURACY, 0.45, 0.886, "triangle-down-open"),
    (MetricScale("loss", higher_is_better=False), 1.3, 0.914, "triangle-up-open"),
])  # fmt: skip
def test_trials_far_beyond_the_drop_stand_on_the_edge_so_that_the_drop_can_be_seen(
    metric: MetricScale, lost: float, near: float, mark: str
) -> None:
    trials = [_trial(0, metric=0.9), _trial(1, 0.5, metric=0.902, feasible=True)]
    trials += [_trial(2, 0.4, metric=near), _trial(3, 0.1, metric=lost)]
    figure = speed_accuracy_figure(trials, metric=metric, allowed_drops={"o1": 0.005})
    low, high = (end / metric.factor for end in figure.layout.yaxis.range)
    assert low < near < high
    assert high - low < 0.04
    beyond, far = (next(t for t in figure.data if t.name == name) for name in ("beyond the allowed drop", FAR_BEYOND))
    assert [row[0] for row in (*beyond.customdata, *far.customdata)] == [2, 3]
    assert far.marker.symbol == mark
    assert far.y[0] / metric.factor == (low if metric.higher_is_better else high)
    assert metric.value_text(lost) in far.customdata[0][1].replace("<br>", " ")
    slow, fast = figure.layout.xaxis.range
    assert slow < 1.0 < 2.5 < fast < 3.0, "what is far beyond is 10 x as fast"
    assert list(far.x) == [fast]
    assert "ran 10.00 x as fast" in far.customdata[0][1]
    assert 10.0 not in trace_of(figure, "Pareto front").x, "it would run along the edge"


def test_where_all_trials_lost_far_too_much_their_speeds_are_shown() -> None:
    trials = [_trial(0, metric=0.9), _trial(1, 0.5, metric=0.4), _trial(2, 0.1, metric=0.3)]
    figure = speed_accuracy_figure(trials, metric=ACCURACY, allowed_drops={"o1": 0.005})
    slow, fast = figure.layout.xaxis.range
    assert slow < 1.0 < 10.0 < fast


def test_hover_text_of_candidate_and_tuned_plain_says_a_gain_as_one() -> None:
    gained = _candidate(drop=-0.002, drop_bound=0.003, allowed_drop=0.005, verdict=Verdict.CONFIRMED)
    (point,) = speed_accuracy_numbers(TRIALS, [gained], metric=ACCURACY).candidates
    said = "The accuracy is 0.2 points better (95 % bound 0.3 points worse; 0.5 points allowed): confirmed."
    assert point.text.split("<br>")[1] == said
    plain = {"o1": (TunedPlain("length 0.5", {}, 0.5, drop=-0.002), 2.0)}
    trace = trace_of(speed_accuracy_figure(TRIALS, metric=ACCURACY, tuned_plain=plain), "tuned plain")
    assert (trace.customdata[0][2], "drops" in trace.hovertemplate) == ("0.2 points better", False)


def test_hover_text_is_a_sentence_and_cannot_be_broken() -> None:
    trial = _trial(1, metric=0.9, relative_step_time=0.5, summary="<script>%{x}")
    text = speed_accuracy_numbers([trial], metric=ACCURACY).trials[0].text
    assert text.startswith("Trial 1 (&lt;script&gt;%&#123;x}) ran 2.00 x as fast as O0")
    assert text.endswith(".")


@pytest.mark.parametrize(
    ("higher", "front"), [(True, [(1.0, 90.0), (1.25, 89.0), (2.0, 80.0)]), (False, [(2.0, 80.0)])]
)
def test_the_front_holds_what_nothing_beats_in_both(higher: bool, front: list[tuple[float, float]]) -> None:
    worse = _trial(5, 0.85, metric=0.85, relative_step_time=0.85, feasible=True)  # and slower than trial 1
    metric = MetricScale("share", "share", higher_is_better=higher)
    numbers = speed_accuracy_numbers([*TRIALS, worse], metric=metric)
    assert [(speed, round(value, 9)) for speed, value in numbers.front] == front


def test_points_carry_their_trial() -> None:
    figure = speed_accuracy_figure(TRIALS, [_candidate(Verdict.CONFIRMED)], metric=ACCURACY)
    assert trace_of(figure, "Pareto front").line.shape == "vh"
    carried = [point[0] for trace in figure.data if trace.customdata is not None for point in trace.customdata]
    assert sorted(carried) == [0, 1, 2, 2, 3]  # trial 2 once more as a candidate
