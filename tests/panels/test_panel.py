from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import IPython
import pytest
import torch

from tests.panels.looking import html_in, missing
from workbench.config import ConfigError
from workbench.panels import notebook_cells
from workbench.panels.panel import Panel, PanelState
from workbench.tasks.errors import TaskError


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_a_panel_shows_its_title_and_state() -> None:
    with Panel("Train") as panel:
        assert missing(panel, "Train", "○ idle") == []
        panel.machine.to(PanelState.RUNNING)
        assert (missing(panel, "▶ running"), panel.state) == ([], PanelState.RUNNING)


def of_another() -> Exception:
    error = TaskError("task file a.py cannot be loaded: NameError: x (line 3 of a.py)")
    error.__cause__ = raised(NameError("x"))
    return error


@pytest.mark.parametrize(
    ("error", "sentence", "has_trace"),
    [
        (ZeroDivisionError("no <such> share"), "ZeroDivisionError: no &lt;such&gt; share (line ", True),
        (ConfigError("`freeze_p` must lie in [0, 1)"), "<code>freeze_p</code> must lie in [0, 1)", False),
        (of_another(), "NameError: x (line 3 of a.py)", True),
    ],
    ids=["the user's", "ours", "ours, of another"],
)
def test_an_error_is_a_sentence_and_the_traceback_of_others_is_folded(
    error: Exception, sentence: str, has_trace: bool
) -> None:
    with Panel("Train") as panel:
        panel.report_error(raised(error))
        assert sentence in html_in(panel)
        assert ("<details><summary>Traceback</summary>" in html_in(panel)) is has_trace
        assert panel.error is error
        panel.clear_error()
        assert sentence not in html_in(panel)
        assert panel.error is None


def test_an_error_within_a_library_names_the_line_of_the_users_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "\ncross_entropy(zeros(2, 3), zeros(2, 5))"
    cell = compile(source, "/tmp/ipykernel_7/1.py", "exec")
    compiler = SimpleNamespace(format_code_name={cell.co_filename: ("Cell", "In[3]")}.get)
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(compile=compiler))
    with Panel("Train") as panel:
        panel.guarded(lambda: exec(cell, {"cross_entropy": torch.nn.functional.cross_entropy, "zeros": torch.zeros}))()
        assert "(line 2 of Cell In[3])" in html_in(panel)


def test_the_last_sentence_is_on_top_and_the_log_stays_short() -> None:
    with Panel("Train") as panel:
        for number in range(200):
            panel.log(f"sentence {number}.")
        text = html_in(panel)
        assert text.index("sentence 199.") < text.index("Earlier") < text.index("sentence 198.")
        assert "sentence 100." not in text


@pytest.mark.parametrize(
    ("error", "told"), [(KeyError("x"), "KeyError"), (KeyboardInterrupt(), "interrupted; start again when you like")]
)
def test_what_a_handler_raises_is_shown_and_the_panel_stays_usable(error: BaseException, told: str) -> None:
    def fail() -> None:
        raise error

    with Panel("Train") as panel:
        panel.guarded(fail)()
        assert told in html_in(panel)
        clicks: list[int] = []
        panel.guarded(lambda: clicks.append(1))()
        assert clicks == [1]


def test_a_closed_panel_ignores_late_clicks_and_moves() -> None:
    panel, clicks = Panel("Train"), []
    handler = panel.guarded(lambda: clicks.append(1))
    panel.close()
    panel.close()
    handler()
    panel.machine.to(PanelState.RUNNING)
    assert (clicks, repr(panel)) == ([], "<Panel: closed>")


def test_what_was_last_made_is_cleaned_up_first() -> None:
    order: list[str] = []
    panel = Panel("Train")
    panel.cleaned_up_by(lambda: order.append("first made"))
    panel.cleaned_up_by(lambda: order.append("last made"))
    panel.close()
    assert order == ["last made", "first made"]
    panel.cleaned_up_by(lambda: order.append("too late"))
    assert order[-1] == "too late"


def test_a_theme_is_one_of_three() -> None:
    with Panel("Train", theme="dark") as panel:
        assert "wb-dark" in panel.widget._dom_classes
    with pytest.raises(ValueError, match='`theme` must be "auto", "light" or "dark", got \'blue\''):
        Panel("Train", theme="blue")  # type: ignore[arg-type]


def test_a_saved_notebook_has_something_to_show_without_a_kernel() -> None:
    with Panel("Train <it>") as panel:
        bundle = panel._repr_mimebundle_()
        assert "application/vnd.jupyter.widget-view+json" in bundle
        assert bundle["text/plain"] == "<Panel: idle>"
        assert "Train &lt;it&gt;" in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" not in panel._repr_mimebundle_()


def test_running_a_cell_again_closes_what_it_had_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert notebook_cells.current_cell() is None, "a program has no cells"
    place: list[tuple[str, str] | None] = [None]
    monkeypatch.setattr(notebook_cells, "current_cell", lambda: place[0])
    monkeypatch.setattr(notebook_cells, "_panels", {})
    outside = Panel("outside")
    place[0] = ("cell a", "execution 1")
    first, second = Panel("first"), Panel("second")
    place[0] = ("cell b", "execution 2")
    other = Panel("other")
    assert not any(panel.closed for panel in (outside, first, second, other))
    place[0] = ("cell a", "execution 3")
    again = Panel("first")
    assert (first.closed, second.closed) == (True, True)
    assert not any(panel.closed for panel in (outside, other, again))
    for panel in (outside, other, again):
        panel.close()


def test_a_panel_nobody_holds_is_collected() -> None:
    panel = Panel("Train")
    reference = weakref.ref(panel)
    panel.close()
    del panel
    gc.collect()
    assert reference() is None
