"""Step-time breakdown."""

from __future__ import annotations

import pandas as pd

from tests.figures.looking import axis_titles, title
from workbench.core.records import StepRecord
from workbench.figures import step_time_figure, step_time_numbers


def _timed(n: int) -> list[StepRecord]:
    return [
        StepRecord(step=i, seconds=i, step_ms=100.0 if i < 10 else 10.0, loss=1.0,
                   columns={"time.backward": 5.0, "time.forward": 3.0, "time.thor": float("nan")})
        for i in range(n)
    ]  # fmt: skip


def test_step_time_leaves_out_the_warm_up_and_names_the_rest() -> None:
    numbers = step_time_numbers(_timed(30))
    assert (numbers.step_ms, numbers.n_steps) == (10.0, 20)
    assert list(numbers.parts.items()) == [("forward", 3.0), ("backward", 5.0), ("other", 2.0)]
    assert step_time_numbers(_timed(15)).n_steps == 15


def test_step_time_is_drawn_per_run() -> None:
    figure = step_time_figure({"O0": _timed(30), "trial 1": _timed(30)})
    assert [t.name for t in figure.data] == ["forward", "backward", "other"]
    assert [t.text[0] for t in figure.data] == ["forward<br>3", "backward<br>5", "other<br>2"]
    assert axis_titles(figure) == ["Time per step (ms)"]
    two = step_time_figure({"O0": _timed(30), "slow": _timed(12)})
    assert title(two) == "A step of O0 takes 10 ms, one of slow 85 ms"
    assert title(step_time_figure({"O0": _timed(30)})) == "Most of a step's 10 ms goes to backward"
    assert not step_time_figure({"O0": pd.DataFrame({"step_ms": [1.0]})}).data
