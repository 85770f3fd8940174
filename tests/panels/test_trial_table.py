"""The table of trials in the Tune tab: what it holds, when it is renewed, and what its button does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.panels.looking import everything
from tests.reports.synthetic_study import full_study
from workbench.panels.panel import Panel
from workbench.panels.trial_table import TrialTable
from workbench.report.trial_data import trial_data


class _Holder(Panel):
    """A panel of nothing but a table."""

    def __init__(self) -> None:
        super().__init__("Trials")
        self.taken: list[int] = []
        self.notes: list[tuple[int, str]] = []
        self.table: Any = TrialTable(self, self.taken.append, lambda *note: self.notes.append(note))


@pytest.fixture
def holder() -> Iterator[_Holder]:
    panel = _Holder()
    yield panel
    panel.close()


def test_it_holds_the_rows_that_the_report_has(holder: _Holder) -> None:
    holder.table.show(None)
    assert holder.table.stage.children == ()
    holder.table.show(full_study())
    assert holder.table.widget in everything(holder.table.stage)
    assert holder.table.widget.data == trial_data(full_study())
    holder.table.show(None)  # another folder, without a study
    assert holder.table.stage.children == ()


def test_a_running_study_renews_it_no_faster_than_it_is_made_and_its_end_always(
    holder: _Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = full_study()
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0  # making it takes one or two seconds
        return now[0]

    monkeypatch.setattr("workbench.panels.trial_table.time.monotonic", clock)
    running = replace(study, exported={})
    holder.table.show(running)
    widget = holder.table.widget
    holder.table.show(replace(running, trials=running.trials[:3]))
    assert len(widget.data["trials"]) == len(study.trials)  # too early
    now[0] += 60.0
    holder.table.show(replace(running, trials=running.trials[:3]))
    assert len(widget.data["trials"]) == 3
    holder.table.show(study)
    assert len(widget.data["trials"]) == len(study.trials)  # it has ended


def test_its_button_takes_a_trial_and_a_picked_trial_is_opened(holder: _Holder) -> None:
    holder.table.open(3)  # nothing to open yet
    holder.table.show(full_study())
    widget = holder.table.widget
    takes: list[dict[str, Any]] = [{"take": 4}, {"take": "rm -rf"}, {"something": "else"}]
    for message in (*takes, {"note": 4, "text": "try it with more data"}, {"note": 4, "text": None}):
        widget._handle_custom_msg(message, [])
    assert (holder.taken, holder.notes) == ([4], [(4, "try it with more data")])
    holder.table.open(3)
    assert widget.selected == 3


def test_the_scripts_are_those_of_the_report() -> None:
    import workbench.report as report
    from workbench.panels.trial_table import _TableWidget

    folder = Path(report.__file__).parent
    assert str(_TableWidget._esm) == (folder / "trial_table.js").read_text(encoding="utf-8")
