"""Which numbers of a run are mirrored, and how many."""

from __future__ import annotations

import dataclasses
import itertools
import math

from tests.mirrors.fake_mirror import events_of_a_run, steps_of_a_run
from workbench.core.records import StepRecord
from workbench.runs.mirrors.selection import FROZEN, OVERFLOWS, SCALARS, Selection, described


def test_a_point_has_the_numbers_of_its_step_and_the_time_at_which_it_ended() -> None:
    points = Selection(1000).points(steps_of_a_run(3))
    assert [(point.step, round(point.seconds, 9)) for point in points] == [(0, 0.1), (1, 0.2), (2, 0.3)]
    values = points[2].values
    assert (values["training/loss"], values["loss_scale/scale"], values["gradient/norm"]) == (2.0 / 3, 1024.0, 0.25)
    assert (values["time/step_ms"], values["time/forward_ms"], values["dim_reduce/rho"]) == (100.0, 60.0, 0.5)
    assert values[OVERFLOWS] == 0.0
    assert FROZEN not in values


def test_overflows_are_counted_over_all_steps_and_evaluations_are_points() -> None:
    points = Selection(4, steps=40).points(steps_of_a_run(), events_of_a_run())
    assert points[-1].values == {"evaluation/accuracy": 0.875}
    assert [point.step for point in points] == [0, 9, 10, 19, 19, 20, 29, 30, 39, 39]
    assert [point.values[OVERFLOWS] for point in points if OVERFLOWS in point.values] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert [round(point.seconds, 6) for point in points if "evaluation/accuracy" in point.values] == [2.0, 4.0]


def test_a_run_without_a_plan_gets_sparser_points_the_longer_it_is() -> None:
    selection = Selection(100)
    chosen: list[int] = []
    for first in range(0, 10_000, 50):
        block = [StepRecord(step=first + i, seconds=0.0, step_ms=1.0, loss=1.0) for i in range(50)]
        chosen += [point.step for point in selection.points(block)]
    assert chosen[:100] == list(range(100))
    assert 100 < len(chosen) < 500
    assert chosen[-1] - chosen[-2] >= 64
    assert all(b - a <= 256 for a, b in itertools.pairwise(chosen))


def test_a_norm_that_exists_only_where_a_window_ends_is_not_lost_between_points() -> None:
    steps = [
        StepRecord(step=i, seconds=float(i), step_ms=1.0, loss=1.0, grad_norm=float(i) if i % 2 else math.nan)
        for i in range(40)
    ]
    points = Selection(10, steps=40).points(steps)
    assert [point.step for point in points] == list(range(0, 40, 4))
    assert [point.values.get("gradient/norm") for point in points] == [None, *range(3, 39, 4)]


def test_what_is_not_finite_is_left_out_and_frozen_groups_until_there_are_any() -> None:
    step = StepRecord(step=0, seconds=0.0, step_ms=1.0, loss=math.nan, grad_norm=math.inf)
    assert not {"training/loss", "gradient/norm"} & set(Selection(10).points([step])[0].values)
    steps = steps_of_a_run(3)
    steps[1] = dataclasses.replace(steps[1], frozen_groups=2)
    assert [point.values.get(FROZEN) for point in Selection(10).points(steps)] == [None, 2.0, 0.0]


def test_every_mirrored_name_has_a_unit_and_a_meaning() -> None:
    names = [*SCALARS.values(), OVERFLOWS, FROZEN, "time/forward_ms", "dim_reduce/rho", "evaluation/accuracy"]
    found = described(names)
    assert set(names) - set(found) == {"evaluation/accuracy"}
    assert (found["time/forward_ms"].unit, found["time/step_ms"].unit, found[FROZEN].unit) == ("ms", "ms", "groups")
    assert "DimReduce" in found["dim_reduce/rho"].description


def test_steps_that_are_lacking_leave_no_gap() -> None:
    odd = [record for record in steps_of_a_run(400) if record.step % 2 and not record.overflow]
    steps = [point.step for point in Selection(100, 400).points(odd)]
    assert max(after - before for before, after in itertools.pairwise(steps)) <= 8
    assert len(steps) == 100
