"""The live widget: what a page is told equals what was computed. No browser, no kernel."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
import pytest

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
from workbench.figures.drawing import Drawing
from workbench.figures.live import LiveFigure, static_mimebundle
from workbench.figures.loss_curves import RunCurve, loss_curves_drawing
from workbench.figures.loss_scale import loss_scale_drawing
from workbench.figures.step_time import step_time_drawing
from workbench.figures.theme import inks


def run(n: int, *, overflow_at: tuple[int, ...] = (3, 8)) -> list[StepRecord]:
    def record(i: int) -> StepRecord:
        scale, after = (2.0 ** (10 + step % 3) for step in (i, i + 1))
        exponents = (ExponentCounts("a", -10, (1, 2 + i)), ExponentCounts("b", -3, (5,)))
        given: dict[str, Any] = {"group_scales": (2.0 ** (8 + i % 2), 4.0), "grad_exponents": exponents}
        given |= {"loss_scale": scale, "loss_scale_after": after, "overflow": i in overflow_at}
        return StepRecord(i, 0.1 * i, 2.0, 1.0 / (i + 1), columns={"time.forward": 1.0}, **given)

    return [record(i) for i in range(n)]


def sent(live: LiveFigure) -> dict[str, Any]:
    """Return what a page is told, which is JSON without NaN."""
    told: dict[str, Any] = json.loads(live.widget.figure, parse_constant=pytest.fail)
    return told


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


TOLD = [
    loss_curves_drawing([RunCurve("one", run(3, overflow_at=()))]),
    loss_curves_drawing([RunCurve("one", run(9), [(2, 0.5), (8, 0.7)])]),
    loss_scale_drawing(run(5), theme="dark"),
    loss_scale_drawing(run(0)),
    step_time_drawing({"one": run(40)}),
]


def test_whatever_came_before_a_page_is_told_the_last_figure() -> None:
    live = LiveFigure()
    widget = live.widget
    for figure in [*STORY, *reversed(STORY), *TOLD]:
        before = deepcopy(figure)
        live.update(figure)
        told = sent(live)
        whole = figure.figure() if isinstance(figure, Drawing) else figure
        assert live.shown.to_json() == whole.to_json()
        shown = pio.from_json(live.widget.figure)
        shown.layout.template, shown.layout.uirevision = whole.layout.template, None
        assert json.loads(shown.to_json())["layout"] == json.loads(whole.to_json())["layout"]
        assert [trace.name for trace in shown.data] == [trace.name for trace in whole.data]
        assert len({trace["uid"] for trace in told["data"]}) == len(whole.data)
        assert all(trace["uid"].isalnum() for trace in told["data"])  # plotly looks for ".cb" and it
        given = (before, figure) if isinstance(figure, go.Figure) else (vars(before), vars(figure))
        np.testing.assert_equal(*given)  # it was only read
    assert live.widget is widget
    live.close()


def test_nothing_that_a_page_cannot_read_is_sent() -> None:
    heat = go.Heatmap(z=np.array([[1.0, np.nan], [np.inf, 2.0]]).tolist())
    points = go.Scatter(x=[1.0, np.nan], customdata=np.array([["a", np.nan]], dtype=object))
    assert sent(LiveFigure(go.Figure([heat, points])))["data"][0]["z"] == [[1.0, None], [None, 2.0]]


def test_a_trace_keeps_its_name_on_the_page_when_others_come_and_a_new_question_is_told() -> None:
    live = LiveFigure(TOLD[0])
    (line,) = sent(live)["data"]
    revision = sent(live)["layout"]["uirevision"]
    live.update(TOLD[1])
    assert line["uid"] in {trace["uid"] for trace in sent(live)["data"]}
    assert sent(live)["layout"]["uirevision"] == revision
    live.update(TOLD[2], reset_axes=True)
    assert sent(live)["layout"]["uirevision"] != revision


def test_no_change_is_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveFigure(loss_scale_figure(run(9)))
    messages: list[Any] = []
    monkeypatch.setattr(live.widget, "send_state", lambda *, key: messages.append(key))
    live.update(loss_scale_figure(run(9)))
    assert messages == []
    live.update(loss_scale_figure(run(12)))
    assert messages == ["figure"]


def test_plotly_is_sent_once_a_page_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveFigure(loss_scale_figure(run(5)))
    assert len(live.widget.get_state("_esm")["_esm"]) < 6000
    told: list[tuple[Any, Any]] = []
    monkeypatch.setattr(live.widget, "send", lambda content, buffers=None: told.append((content, buffers)))
    live.widget._handle_custom_msg({"plotly": "module"}, [])
    ((content, (module,)),) = told
    assert content == {"plotly": "module"}
    assert b"plotly.js v" in module[:100]


def test_the_ink_is_the_widgets_whatever_theme_a_figure_has() -> None:
    live = LiveFigure(loss_scale_figure(run(9), theme="light"), theme="dark")
    assert sent(live)["layout"]["template"]["layout"]["font"]["color"] == inks("dark").ink
    with pytest.raises(ValueError, match="`theme` must be"):
        LiveFigure(theme="sepia")  # type: ignore[arg-type]


def test_a_click_gives_what_the_point_carries() -> None:
    picked: list[Any] = []
    LiveFigure(on_pick=picked.append).widget._handle_custom_msg({"pick": 8}, [])
    LiveFigure().widget._handle_custom_msg({"pick": 8}, [])
    assert picked == [8]


def test_a_closed_figure_ignores_updates() -> None:
    live = LiveFigure(loss_scale_figure(run(12)))
    live.close()
    live.close()
    live.update(loss_scale_figure(run(5)))
    assert live.closed
    assert live.widget.comm is None
    assert live.shown == loss_scale_figure(run(12))


def test_threads_may_update_at_once() -> None:
    live = LiveFigure()
    figures = [loss_scale_drawing(run(n)) for n in range(1, 16)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(live.update, figures * 3))
    live.update(loss_scale_figure(run(12)))
    assert live.shown == loss_scale_figure(run(12))


def test_a_saved_notebook_has_a_static_figure_and_words() -> None:
    figure = loss_scale_figure(run(12))
    bundle = LiveFigure(figure)._repr_mimebundle_()
    assert bundle["text/plain"] == figure_text(figure)
    assert bundle["text/plain"].startswith("The loss scale stands at")
    assert "application/vnd.jupyter.widget-view+json" in bundle
    static = json.loads(json.dumps(bundle["application/vnd.plotly.v1+json"]))
    assert (static["config"], len(static["data"])) == (FIGURE_CONFIG, len(figure.data))
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
