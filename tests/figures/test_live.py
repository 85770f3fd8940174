"""The live widget: what is shown equals what was computed, and little is sent for it. No browser, no kernel."""

from __future__ import annotations

import base64
import itertools
import json
import threading
from copy import deepcopy
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from ipywidgets.widgets.widget import _remove_buffers
from plotly.callbacks import InputDeviceState, Points

from tests.kit.system_chromium import chromium_or_skip
from workbench.core.records import ExponentCounts, StepRecord
from workbench.figures import (
    FIGURE_CONFIG,
    empty_figure,
    figure_text,
    gradient_exponents_figure,
    group_scales_figure,
    loss_curves_figure,
    loss_scale_figure,
    step_time_figure,
)
from workbench.figures.live import LiveFigure, static_mimebundle
from workbench.figures.loss_curves import RunCurve, loss_curves_drawing
from workbench.figures.loss_scale import loss_scale_drawing
from workbench.figures.step_time import step_time_drawing


def run(n: int, *, overflow_at: tuple[int, ...] = (3, 8)) -> list[StepRecord]:
    return [
        StepRecord(
            step=i,
            seconds=0.1 * i,
            step_ms=2.0,
            loss=1.0 / (i + 1),
            loss_scale=2.0 ** (10 + i % 3),
            loss_scale_after=2.0 ** (10 + (i + 1) % 3),
            overflow=i in overflow_at,
            group_scales=(2.0 ** (8 + i % 2), 4.0),
            grad_exponents=(ExponentCounts("a", -10, (1, 2 + i)), ExponentCounts("b", -3, (5,))),
            columns={"time.forward": 1.0},
        )
        for i in range(n)
    ]


def content(figure: go.Figure) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(figure.to_json())
    for trace in shown["data"]:
        trace.pop("uid", None)
    return shown


class Messages:
    """Counts what a widget sends."""

    def __init__(self, live: LiveFigure, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[str] = []
        original = live.widget.send_state

        def send_state(key: Any = None) -> None:
            self.sent.append(str(key))
            original(key)

        monkeypatch.setattr(live.widget, "send_state", send_state)


STORY = [
    empty_figure("Why?", "Nothing yet."),
    loss_scale_figure(run(1)),
    loss_scale_figure(run(5)),  # the first overflow: a trace comes in before others
    loss_scale_figure(run(12), policies={"a": np.full(12, 4.0), "b": np.full(12, 8.0)}),
    loss_scale_figure(run(12), policies={"b": np.full(12, 8.0)}),
    loss_curves_figure([RunCurve("one", run(4), [(2, 0.5)]), RunCurve("two", run(9), [(2, 0.5)])]),
    loss_curves_figure([RunCurve("two", run(9), [(2, 0.5)]), RunCurve("one", run(4), [(2, 0.5)])]),
    gradient_exponents_figure(run(6)),
    gradient_exponents_figure(run(12)),
    group_scales_figure(run(12)),
    step_time_figure({"one": run(40)}),
    empty_figure("Why?", "Nothing any more."),
]


def displayed(live: LiveFigure) -> go.Figure:
    return go.Figure(live.widget.data, deepcopy(live.widget.layout))


def test_whatever_came_before_the_widget_shows_the_last_figure() -> None:
    live = LiveFigure()
    widget = live.widget
    for figure in [*STORY, *reversed(STORY)]:
        live.update(figure)
        assert content(displayed(live)) == content(figure)
    assert live.widget is widget
    live.close()


def test_updates_leave_the_given_figure_alone_and_a_page_opened_later_gets_what_is_shown_now() -> None:
    figure, now = loss_scale_figure(run(1)), loss_scale_figure(run(12))
    before = figure.to_json()
    live = LiveFigure(figure)
    live.update(now)
    assert figure.to_json() == before
    state = live.widget.get_state()
    assert len(state["_widget_data"]) == len(live.widget.data)
    assert state["_widget_layout"]["title"]["text"] == now.layout.title.text
    assert len(live.widget.get_state(["_widget_data"])) == 1
    assert FIGURE_CONFIG["modeBarButtonsToRemove"] is not live.widget._config["modeBarButtonsToRemove"]
    assert "sendChartToCloud" in live.widget._config["modeBarButtonsToRemove"]


def test_nothing_that_a_page_cannot_read_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(key: Any = None) -> None:
        state, _, _ = _remove_buffers(live.widget.get_state(key))
        json.dumps(state, allow_nan=False)
        checked.add(key)

    checked: set[str] = set()
    holes = go.Figure(
        [
            go.Heatmap(z=np.array([[1.0, np.nan], [np.inf, 2.0]]), customdata=np.full((2, 2), np.nan)),
            go.Scatter(x=[1.0, np.nan], y=np.array([np.nan, 1.0]), customdata=np.array([["a", np.nan]], dtype=object)),
        ]
    )
    live = LiveFigure()
    monkeypatch.setattr(live.widget, "send_state", check)
    for figure in [*STORY, holes]:
        live.update(figure)
        json.dumps(_remove_buffers(live.widget.get_state())[0], allow_nan=False)
    assert {"_py2js_addTraces", "_py2js_update"} <= checked
    assert live.widget.get_state("_widget_data")["_widget_data"][0]["z"] == [[1.0, None], [None, 2.0]]
    assert np.isnan(live.widget.data[0].z[0][1])


TOLD = [
    loss_curves_drawing([RunCurve("one", run(3, overflow_at=()))]),
    loss_curves_drawing([RunCurve("one", run(4), [(2, 0.5)])]),  # the first overflow, and a second row
    loss_curves_drawing([RunCurve("one", run(9), [(2, 0.5), (8, 0.7)])]),
    loss_scale_drawing(run(5), theme="dark"),
    loss_scale_drawing(run(0)),
    step_time_drawing({"one": run(40)}),
]


def test_a_drawing_is_shown_like_the_figure_it_becomes(monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveFigure(TOLD[0])
    figures = [drawing.figure() for drawing in TOLD]
    for figure in figures:
        figure.layout.template = live.widget.layout.template  # the ink is the widget's
    for drawing, figure in [*zip(TOLD, figures, strict=True), *zip(TOLD[::-1], figures[::-1], strict=True)]:
        before = deepcopy((drawing.traces, drawing.layout))
        live.update(drawing)
        assert content(displayed(live)) == content(figure)
        np.testing.assert_equal((drawing.traces, drawing.layout), before)
        messages = Messages(live, monkeypatch)
        live.update(figure)
        assert messages.sent == []
    live.close()


def test_a_zoom_ends_with_the_question_it_was_for() -> None:
    # Each of three is followed once by each of them.
    tour = [TOLD[index] for index in (1, 1, 3, 1, 5, 3, 3, 5, 5, 1)]
    live = LiveFigure(tour[0])
    for is_zoomed, (before, now) in itertools.product((True, False), itertools.pairwise(tour)):
        if is_zoomed:
            for axis in ("xaxis", "yaxis"):
                live.widget.layout[axis].range = [9.5, 10.5]  # as plotly takes over what a reader drags
            live.update(before)
            assert live.widget.layout.yaxis.range == (9.5, 10.5)
        live.update(now, reset_axes=True)
        figure = now.figure()
        figure.layout.template = live.widget.layout.template
        for axis in ("xaxis", "yaxis"):
            if figure.layout[axis].range is None and figure.layout[axis].autorange is None:
                shown = live.widget.layout[axis].autorange
                assert shown is None or shown is True  # a page that was told is told for good
                figure.layout[axis].autorange = shown
        expected = content(figure)
        assert content(displayed(live)) == expected
        live.update(now)
        assert content(displayed(live)) == expected
    live.close()


def test_a_trace_stays_when_a_second_row_comes() -> None:
    live = LiveFigure(TOLD[0])
    (line,) = live.widget.data
    line.visible = "legendonly"  # a reader hid it
    live.update(TOLD[1])
    assert live.widget.data[0] is line
    assert line.visible == "legendonly"
    assert len(live.widget.data) == 3
    live.close()


def test_plotlys_module_is_sent_once_a_page_asks_for_it_and_then_the_figure_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = LiveFigure(loss_scale_figure(run(5)))
    assert len(live.widget.get_state("_esm")["_esm"]) < 5000
    messages = Messages(live, monkeypatch)
    told: list[tuple[Any, Any]] = []
    monkeypatch.setattr(live.widget, "send", lambda content, buffers=None: told.append((content, buffers)))
    live.widget._handle_custom_msg({"plotly": "module"}, [])
    ((content, (module,)),) = told
    assert content == {"plotly": "module"}
    assert module.decode() == str(go.FigureWidget._esm)
    live.widget._handle_custom_msg({"plotly": "state"}, [])
    assert messages.sent == ["['_widget_data', '_widget_layout']"]
    assert told[1:] == [({"plotly": "state"}, None)]
    live.widget._handle_custom_msg({"anything": "else"}, [])
    assert len(told) == 2


def test_a_figure_of_another_height_goes_on_following_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveFigure(go.Figure(layout={"height": 300, "autosize": True}))
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(live.widget, "_send_update_msg", lambda relayout_data, **_: told.append(dict(relayout_data)))
    live.update(go.Figure(layout={"height": 400, "autosize": True}))
    assert told[-1] == {"height": 400, "autosize": True}
    live.update(go.Figure(layout={"height": 500}))
    assert told[-1] == {"height": 500, "autosize": True}
    assert displayed(live).layout.autosize


def test_one_update_is_one_message_and_no_change_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveFigure(loss_scale_figure(run(9)))
    messages = Messages(live, monkeypatch)
    live.update(loss_scale_figure(run(9)))
    assert messages.sent == []
    live.update(loss_scale_figure(run(12)))
    assert messages.sent.count("_py2js_update") == 2  # the message, and its None
    assert "_py2js_addTraces" not in messages.sent
    assert "_widget_data" not in messages.sent


def test_a_zoom_and_a_hidden_trace_survive_updates() -> None:
    live = LiveFigure(loss_scale_figure(run(9)))
    # What the browser reports when the reader zooms, hides an entry of the legend, or leaves both alone.
    live.widget.plotly_relayout({"yaxis.range[0]": 9.5, "yaxis.range[1]": 10.5, "yaxis.autorange": False})
    live.widget.plotly_restyle({"visible": "legendonly"}, [1])
    live.update(loss_scale_figure(run(12), policies={"a": np.full(12, 2.0)}))
    assert list(live.widget.layout.yaxis.range) == [9.5, 10.5]
    hidden = [trace.name for trace in live.widget.data if trace.visible == "legendonly"]
    assert hidden == ["growth"]
    other = LiveFigure(loss_scale_figure(run(9)))
    wider = loss_scale_figure(run(12), policies={"a": np.full(12, 2.0)})
    other.update(wider)
    assert other.widget.layout.yaxis.range == wider.layout.yaxis.range


def test_the_ink_is_the_widgets_whatever_theme_a_figure_has() -> None:
    live = LiveFigure(loss_scale_figure(run(9), theme="light"), theme="dark")
    dark = loss_scale_figure(run(9), theme="dark")
    assert live.widget.layout.template.layout.font.color == dark.layout.template.layout.font.color
    live.update(loss_scale_figure(run(12), theme="light"))
    assert live.widget.layout.template.layout.font.color == dark.layout.template.layout.font.color
    with pytest.raises(ValueError, match="`theme` must be"):
        LiveFigure(theme="sepia")  # type: ignore[arg-type]


def _click(live: LiveFigure, trace: int, *indices: Any) -> None:
    """Do what the widget does when the browser reports a click."""
    live.widget.data[trace]._dispatch_on_click(Points(point_inds=list(indices), xs=[], ys=[]), InputDeviceState())


def test_a_click_gives_what_the_point_carries() -> None:
    picked: list[Any] = []
    figure = go.Figure([go.Scatter(x=[1, 2], y=[1, 2], customdata=[[7, "text"], [8, "text"]]), go.Scatter(y=[1])])
    live = LiveFigure(figure, on_pick=picked.append)
    _click(live, 0, 1)
    _click(live, 1, 0)  # carries nothing
    live.update(go.Figure([go.Scatter(x=[1], y=[1], name="new", customdata=np.array([[5.0, 6.0]]))]))
    _click(live, 0, 0)
    live.update(go.Figure([go.Scatter(x=[1], y=[1], name="new", customdata=["word"])]))
    _click(live, 0, 0)
    _click(live, 0, [0, 0])  # a cell of a heat map
    assert picked == [8, 5.0, "word"]


def test_a_closed_figure_holds_no_data_and_ignores_updates() -> None:
    live = LiveFigure(loss_scale_figure(run(12)))
    live.close()
    live.close()
    live.update(loss_scale_figure(run(5)))
    assert live.closed
    assert live.widget.comm is None
    assert len(live.widget.data) == 0
    assert repr(live).endswith("closed>")


def test_threads_may_update_at_once() -> None:
    live = LiveFigure()
    figures = [loss_scale_drawing(run(n)) for n in range(1, 16)]
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for figure in figures[seed : seed + 11]:
                live.update(figure)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    live.update(loss_scale_figure(run(12)))
    assert content(displayed(live)) == content(loss_scale_figure(run(12)))


def test_a_saved_notebook_has_a_static_figure_and_words() -> None:
    figure = loss_scale_figure(run(12))
    bundle = LiveFigure(figure)._repr_mimebundle_()
    assert bundle["text/plain"] == figure_text(figure)
    assert bundle["text/plain"].startswith("The loss scale stands at")
    assert "application/vnd.jupyter.widget-view+json" in bundle
    static = json.loads(json.dumps(bundle["application/vnd.plotly.v1+json"]))
    assert static["config"] == FIGURE_CONFIG
    assert len(static["data"]) == len(figure.data)
    assert figure_text(empty_figure("Why?", "Nothing yet.")) == "Why?\nNothing yet."
    assert set(static_mimebundle(figure)) == {"text/plain", "application/vnd.plotly.v1+json"}


@pytest.mark.browser
@pytest.mark.optional
def test_a_saved_notebook_carries_a_picture_when_plotly_is_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kaleido", reason="kaleido is not installed; pip install boost-workbench[pictures]")
    chromium_or_skip()
    monkeypatch.setattr("plotly.io.renderers.default", "plotly_mimetype+png")
    live = LiveFigure(go.Figure(go.Scatter(y=[1.0, 3.0, 2.0])))
    picture = base64.b64decode(live._repr_mimebundle_()["image/png"])
    live.close()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5000
