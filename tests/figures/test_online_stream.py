"""What comes in: rate, waiting, tables, rejected records."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.figures.looking import axis_titles, subtitle, title, xy
from workbench.core.records import Event, EventKind
from workbench.figures import figure_text, online_stream_figure, online_stream_numbers

NAN = float("nan")


def _steps() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "step": np.arange(6),
            "seconds": 0.5 * np.arange(6),
            "samples": [10, 10, 8, 10, 10, 12],
            "online.rejected": [0.0, 0.0, 2.0, 2.0, 2.0, 2.0],
            "online.wait_ms": [1.0, 1.0, 4.0, 1.0, 1.0, 1.0],
            "online.queue_depth": 0.0,
            "online.records_per_second": [NAN, NAN, 18.0, NAN, NAN, 20.0],
            "online.table_rows": [NAN, NAN, 7.0, NAN, NAN, 9.0],
            "online.table_evictions": [NAN, NAN, 0.0, NAN, NAN, 3.0],
        }
    )


REJECTED = Event(2, EventKind.RECORD_REJECTED, "not finite", 2.0, "step 2: 2 records rejected so far: not <finite>")


def test_the_lines_have_the_steps_that_recorded_them() -> None:
    numbers = online_stream_numbers(_steps(), [REJECTED, Event(2, EventKind.DRIFT)])
    assert xy(numbers.rate) == ([2, 5], [18.0, 20.0])
    assert (numbers.rows.y.tolist(), numbers.evictions.y.tolist()) == ([7.0, 9.0], [0.0, 3.0])
    assert numbers.wait.y.tolist() == [1.0, 1.0, 4.0, 1.0, 1.0, 1.0]
    assert numbers.rejected.y.tolist() == [0.0, 0.0, 2.0, 2.0, 2.0, 2.0]
    assert xy(numbers.rejections) == ([2], [2.0])


def test_the_totals_are_those_of_the_whole_record() -> None:
    numbers = online_stream_numbers(_steps())
    assert numbers.mean_rate == 48 / 2.5  # the last step's twelve records came after its clock was read
    assert numbers.mean_wait_ms == 1.5
    assert (numbers.last_rows, numbers.last_evictions, numbers.n_rejected) == (9.0, 3.0, 2)
    assert numbers.rejected_share == 2 / 62


def test_a_clock_that_began_anew_does_not_count_as_time() -> None:
    first, second = _steps(), _steps().assign(step=np.arange(6, 12))
    assert online_stream_numbers(pd.concat([first, second], ignore_index=True)).mean_rate == 48 / 2.5
    assert np.isnan(online_stream_numbers(_steps().iloc[:1]).mean_rate)


def test_every_row_has_its_name_and_unit() -> None:
    figure = online_stream_figure(_steps(), [REJECTED])
    assert axis_titles(figure) == [
        *("Records<br>per second", "Waiting<br>(ms per step)", "Table rows<br>in use"),
        *("Evicted<br>(rows)", "Rejected<br>(records)", "Step (batches)"),
    ]
    assert figure.data[-1].customdata[0][0] == "Step 2: 2 records rejected so far: not &lt;finite&gt;."
    assert title(figure) == "19 records per second, 3.2 % of the records rejected"
    assert subtitle(figure) == "a step waits 1.5 ms for its batch; 9 table rows in use; 3 evictions; 2 records rejected"


@pytest.mark.parametrize("missing", ["online.table_rows", "online.records_per_second", "online.rejected"])
def test_a_row_that_nobody_recorded_is_left_out(missing: str) -> None:
    figure = online_stream_figure(_steps().drop(columns=missing), [REJECTED])
    assert [trace.mode for trace in figure.data].count("lines") == 4
    assert "yaxis5" not in figure.layout.to_plotly_json()


def test_a_run_that_is_not_online_says_how_to_be() -> None:
    assert "online_train" in figure_text(online_stream_figure([]))
    for steps in ([], pd.DataFrame({"step": [0], "seconds": [0.0], "samples": [4]})):
        assert not online_stream_figure(steps).data
