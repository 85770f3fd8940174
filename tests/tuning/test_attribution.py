"""The factor of a part that was taken out, from the runs that were trained without it."""

from __future__ import annotations

import math

import pytest

from workbench.config import BoostConfig
from workbench.study.set_up.attribution import Part, _bar, _is_idle, _Needed, parts_of


def part() -> Part:
    return Part("batch x 4", ("batch.factor",), "learning")


@pytest.mark.parametrize("spread", [math.nan, math.inf, 1e6, 2.0])
def test_runs_that_hardly_depend_on_their_length_bound_no_factor(spread: float) -> None:
    bar = _bar(part(), _Needed(0.4, spread, 0.5, 9), _Needed(0.2, 0.0, 0.25, 0))
    assert bar.factor == pytest.approx(2.0)
    assert math.isnan(bar.low)
    assert math.isnan(bar.high)
    assert "do not bound" in bar.note
    assert not _is_idle(bar)


def test_runs_that_do_give_an_interval() -> None:
    bar = _bar(part(), _Needed(0.4, 0.05, 0.5, 9), _Needed(0.2, 0.0, 0.25, 0))
    assert 1.7 < bar.low < 2.0 < bar.high < 2.3
    assert not _is_idle(bar)
    assert _is_idle(_bar(part(), _Needed(0.202, 0.05, 0.5, 9), _Needed(0.2, 0.0, 0.25, 0)))


def test_a_part_takes_along_what_is_set_but_not_in_effect() -> None:
    off = {"boost": {"mode": "disable_all"}}
    given = BoostConfig.from_dict(off)
    stated = given.with_values({"optimizer.name": "AdamW", "optimizer.lr": 0.01, "optimizer.aux_lr": 0.005})
    (part,) = parts_of(stated.resolve("O0"), given.resolve("O0"))
    assert part.name == "AdamW"
    assert set(part.paths) == {"optimizer.name", "optimizer.lr", "optimizer.aux_lr"}
    assert given.with_values(part.taken_out({}, given)) == given
