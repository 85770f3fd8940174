from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.panels.recorded_runs import POLICY, recorded_run
from workbench import api
from workbench.loss_scale import ScalePolicy
from workbench.runs import Run, read_run
from workbench.runs.replayed_run import (
    ReplayedRun,
    policy_grid,
    recorded_policy,
    usual_windows,
)


def test_a_run_opened_for_replay_says_what_replay_says(tmp_path: Path) -> None:
    run = read_run(recorded_run(tmp_path))
    policies = policy_grid([2.0**10, 2.0**20], [2.0, 4.0], [5, 50])
    opened, replayed = ReplayedRun(run), api.replay(run, policies)
    judged, ranges = opened.judge(policies), opened.ranges(policies)
    for name in ("init", "factor", "window", "overflows", "wasted_share", "underflow_share"):
        np.testing.assert_array_equal(judged[name], replayed.table[name], err_msg=name)
    pd.testing.assert_frame_equal(ranges.table, replayed.table, check_exact=True)
    assert ranges.assumption == replayed.assumption


def test_the_recorded_policy_replayed_is_the_recorded_scale(tmp_path: Path) -> None:
    run = read_run(recorded_run(tmp_path))
    replayed = ReplayedRun(run)
    assert replayed.recorded == POLICY
    np.testing.assert_array_equal(replayed.scales(POLICY), run.steps["loss_scale"])


def test_a_policy_above_every_threshold_wastes_what_it_takes_to_come_down(tmp_path: Path) -> None:
    replayed = ReplayedRun(read_run(recorded_run(tmp_path)))
    judged = replayed.judge([ScalePolicy(init=2.0**19, window=1000), ScalePolicy(init=2.0**8, window=1000)])
    assert judged["overflows"].tolist() == [3, 0]
    assert judged["underflow_share"].tolist() == [0.0, 0.0]
    # A tenth of the elements lies in [2^-30, 2^-29): at 2^4 that is below 2^-24, at 2^8 it is not.
    assert replayed.judge([ScalePolicy(init=16.0, window=1000)])["underflow_share"][0] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, ScalePolicy(kind="fixed", init=1.0)),
        ({"amp": {"level": "O2"}}, ScalePolicy(init=65536.0)),
        ({"loss_scale": {"kind": "fixed", "init": 8.0}}, ScalePolicy(kind="fixed", init=8.0)),
        ({"boost": {"mode": "manual", "loss_scale_group": True}, "amp": {"level": "O2"}}, None),
        ({"a": {"later": "version"}}, None),
    ],
    ids=["no scale", "dynamic", "fixed", "groups", "unreadable"],
)
def test_the_policy_of_a_run_is_read_from_its_configuration(values: dict[str, object], wanted: object) -> None:
    run = Run(Path("run"), values, {"level": "O1"}, {}, pd.DataFrame(), pd.DataFrame(), True)
    assert recorded_policy(run) == wanted


def test_windows_worth_a_try_fit_the_run() -> None:
    assert usual_windows(1) == [5, 10, 20, 50, 100]
    assert usual_windows(60) == [5, 10, 20, 50, 100]
    assert usual_windows(5000) == [200, 500, 1000, 2000, 5000]
    assert usual_windows(1_000_000) == [1000, 2000, 3000, 4000, 5000]


@pytest.mark.parametrize(
    ("lists", "sentence"),
    [
        (([], [2.0], [10]), "`init` must name at least one value"),
        (([2.0] * 11, [2.0] * 5, [10]), "11 initial scales x 5 factors x 1 windows are 55 policies; at most 50"),
        (([2.0], [1.0], [10]), "`factor`"),
        ((["big"], [2.0], [10]), "`init`"),
        (([float("nan")], [2.0], [10]), "`init`"),
        (([2.0], [2.0], [0]), "`window`"),
    ],
)
def test_lists_that_make_no_policies_are_refused(
    lists: tuple[list[float], list[float], list[int]], sentence: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        policy_grid(*lists)
