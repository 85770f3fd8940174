"""The freezing schedule."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.figures.looking import subtitle, title
from workbench.figures import TimeSaved, frozen_layers_figure, frozen_layers_numbers, time_saved_in_run
from workbench.figures.drawing import figure_text


def test_numbers_of_a_small_schedule_are_exact() -> None:
    numbers = frozen_layers_numbers([0, 2, 1, 0], 3)
    assert numbers.frozen.tolist() == [[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert numbers.frozen_share_by_group.tolist() == [0.5, 0.25, 0.0]
    assert numbers.frozen_step_share == 0.5
    assert numbers.frozen_work_share == pytest.approx(0.25)


def test_a_run_is_read_like_its_schedule() -> None:
    frame = pd.DataFrame({"step": [10, 11, 12], "frozen_groups": [0, 1, 0]})
    numbers = frozen_layers_numbers(frame)
    assert (numbers.steps.tolist(), numbers.frozen.tolist()) == ([10, 11, 12], [[0, 1, 0], [0, 0, 0]])
    assert numbers.n_groups == 2


def test_a_long_schedule_is_averaged_not_sampled() -> None:
    numbers = frozen_layers_numbers(np.tile([0, 1], 50_000), 2, limit=100)
    assert (numbers.frozen.shape, numbers.n_steps) == ((2, 100), 100_000)
    assert numbers.frozen[0].tolist() == pytest.approx([0.5] * 100)


def test_more_frozen_groups_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="freezes 3 groups, but there are only 2"):
        frozen_layers_numbers([3], 2)


def test_the_figure_answers_with_the_share_of_frozen_steps() -> None:
    figure = frozen_layers_figure([0, 2, 1, 0], 3)
    assert title(figure) == "Frozen steps: 50 % of 4 steps"
    assert "25 % of the backward work" in subtitle(figure)
    assert [trace.type for trace in figure.data] == ["heatmap", "bar"]
    assert (figure.layout.xaxis.title.text, figure.data[0].hovertemplate[:11]) == ("Update", "From update")
    recorded = frozen_layers_figure(pd.DataFrame({"step": [0, 1], "frozen_groups": [0, 1]}), 3)
    assert (recorded.layout.xaxis.title.text, recorded.data[0].hovertemplate[:9]) == ("Step (batches)", "From step")
    assert figure.layout.xaxis2.title.text == "Steps frozen (%)"
    assert len(frozen_layers_figure([]).data) == 0


def _timed(frozen: list[int]) -> pd.DataFrame:
    step_ms = [10.0 - 2.0 * k for k in frozen]
    return pd.DataFrame(
        {"step": range(len(frozen)), "frozen_groups": frozen, "step_ms": step_ms, "time.backward": [5.0] * len(frozen)}
    )


def test_a_run_tells_what_freezing_saved_and_what_it_could() -> None:
    frame = _timed([0, *([0] * 20), *([1] * 20)])
    frame.loc[30, "step_ms"] = 1e5  # an evaluation, a pause: single long steps do not count
    saved = time_saved_in_run(frame, 2)
    assert saved is not None
    assert saved.share == pytest.approx(0.1)  # half of the steps take 8 ms instead of 10
    assert (saved.low, saved.high) == pytest.approx((0.1, 0.1))
    # A quarter of the backward work rests (one of two groups, half of the time); backward is half of a full step.
    assert saved.limit == pytest.approx(0.5 * 0.25)


def test_too_few_timed_steps_say_nothing() -> None:
    assert time_saved_in_run(_timed([0] * 30)) is None
    assert time_saved_in_run(_timed([0] * 30 + [1] * 5)) is None
    assert time_saved_in_run([]) is None


def test_a_kind_that_was_seldom_timed_counts_as_the_next_one_that_freezes_less() -> None:
    seldom = time_saved_in_run(_timed([0, *([0] * 20), *([1] * 16), *([2] * 4)]), 3)
    often = time_saved_in_run(_timed([0, *([0] * 20), *([1] * 20)]), 3)
    first = time_saved_in_run(_timed([0, *([0] * 20), *([1] * 4), *([2] * 16)]), 3)
    assert seldom is not None
    assert often is not None
    assert first is not None
    assert seldom.share == pytest.approx(often.share)
    assert first.share == pytest.approx(16 / 40 * 0.4)  # the four count as saving nothing


def test_the_time_saved_stands_beside_its_limit() -> None:
    figure = frozen_layers_figure([0, 2, 1, 0], 3, saved=TimeSaved(0.1, 0.08, 0.13, 0.2))
    assert title(figure) == "Frozen steps: 50 % of 4 steps, which saved 10 % of the step time (limit 20 %)"
    assert [trace.name for trace in figure.data] == ["schedule", "share of steps frozen", "time saved", "limit"]
    bar, limit = figure.data[2:]
    assert [*bar.x, *bar.error_x.array, *bar.error_x.arrayminus, *limit.x] == pytest.approx([10.0, 3.0, 2.0, 20.0])
    assert figure.layout.xaxis3.title.text == "Step time saved (%)"
    slower = frozen_layers_figure([0, 1], 2, saved=TimeSaved(-0.02))
    assert title(slower).endswith("which made a step 2 % longer")
    assert slower.data[-1].name == "time saved"


def test_an_interval_around_nothing_claims_nothing() -> None:
    figure = frozen_layers_figure([0, 1], 2, saved=TimeSaved(0.02, -0.03, 0.07))
    assert title(figure).endswith("changed the step time by too little to tell (-3 to 7 % saved)")


def test_a_schedule_in_whole_periods_is_named_by_its_share() -> None:
    figure = frozen_layers_figure([0, 0, 1, 2, 0, 0], 3, share=0.5)
    assert figure_text(figure).startswith("Frozen steps: 50 %, here over 6 updates")
