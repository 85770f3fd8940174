"""Offloaded updates: times and what of them is hidden."""

from __future__ import annotations

import numpy as np
import pytest

from tests.figures.looking import axis_titles, title
from workbench.core.records import StepRecord
from workbench.figures import figure_text, offload_figure, offload_numbers

NAN = float("nan")


def _run(n: int, *, travels: bool) -> list[StepRecord]:
    """Return a run whose odd steps hide everything and whose even ones hide half; every third one updates nothing."""
    records = []
    for i in range(n):
        columns = {} if i % 3 == 2 else {"offload.host_ms": 4.0}
        if travels and columns:
            columns |= {"offload.transfer_ms": 2.0 + 2.0 * (i % 2), "offload.hidden_share": 0.5 if i % 2 == 0 else 1.0}
        records.append(StepRecord(step=i, seconds=i, step_ms=100.0 if i < 10 else 10.0, loss=1.0, columns=columns))
    return records


def test_shares_weigh_by_time_and_leave_the_warm_up_out() -> None:
    numbers = offload_numbers(_run(22, travels=True))  # steps 10 to 21: 12, 15, 18, 21 and 10, 13, 16, 19 update
    assert numbers.host.x.tolist() == [10, 12, 13, 15, 16, 18, 19, 21]
    assert (numbers.n_steps, numbers.mean_host_ms, numbers.mean_transfer_ms) == (8, 4.0, 3.0)
    assert numbers.transfer.y.tolist() == [2.0, 2.0, 4.0, 4.0] * 2
    assert numbers.hidden.y.tolist() == [0.5, 0.5, 1.0, 1.0] * 2
    assert numbers.hidden_share == 1 - 4 * 3.0 / (4 * 6.0 + 4 * 8.0)
    assert numbers.waited_share == pytest.approx(4 * 3.0 / 80.0)
    assert offload_numbers(_run(20, travels=True)).host.x.tolist()[:2] == [0, 1]  # too short to leave any out


def test_on_the_cpu_nothing_travels_and_nothing_is_hidden() -> None:
    numbers = offload_numbers(_run(22, travels=False))
    assert numbers.transfer.x.size == numbers.hidden.x.size == 0
    assert np.isnan([numbers.hidden_share, numbers.mean_transfer_ms]).all()
    assert numbers.waited_share == pytest.approx(8 * 4.0 / 80.0)


def test_the_figure_has_a_row_for_what_is_hidden_where_gradients_travel() -> None:
    figure = offload_figure(_run(22, travels=True))
    assert [trace.name for trace in figure.data] == ["Adam on the host", "gradients in transit", "hidden share"]
    assert figure.data[2].y.tolist()[:3] == [50.0, 50.0, 100.0]
    assert title(figure) == "78.6 % of transfers and host updates is hidden behind other work"
    assert "steps wait for it 15 % of their time" in figure_text(figure)
    assert axis_titles(figure) == ["Time per step (ms)", "Hidden (%)", "Step (batches)"]
    assert len({(trace.line.color, trace.line.dash) for trace in figure.data}) == 3
    still = offload_figure(_run(22, travels=False))
    assert len(still.data) == 1
    assert title(still) == "Adam takes 4 ms per step on the host, and nothing has to be transferred"
    assert axis_titles(still) == ["Time per step (ms)", "Step (batches)"]


def test_a_run_without_offloading_says_how_to_get_it() -> None:
    assert "adam_offload" in figure_text(offload_figure([]))
    assert not offload_figure([StepRecord(step=0, seconds=0.0, step_ms=1.0, loss=1.0)]).data
