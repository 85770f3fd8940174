"""Turns are short while work is under way, and as they were afterwards."""

from __future__ import annotations

import sys

import pytest

from workbench.panels.worker import RunControl, Worker, short_turns


def test_blocks_may_overlap_and_the_last_one_puts_it_back() -> None:
    before = sys.getswitchinterval()
    first, second = short_turns(), short_turns()
    first.__enter__()
    second.__enter__()
    assert sys.getswitchinterval() == pytest.approx(0.001, rel=0.01)
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(0.001, rel=0.01)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(before, rel=0.01)


def test_turns_shorter_still_are_left_alone() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    try:
        with short_turns():
            assert sys.getswitchinterval() == pytest.approx(0.0002, rel=0.01)
    finally:
        sys.setswitchinterval(before)


def test_work_that_fails_leaves_them_as_they_were() -> None:
    before, seen = sys.getswitchinterval(), []

    def work(_: RunControl) -> None:
        seen.append(sys.getswitchinterval())
        raise ValueError("no")

    worker = Worker(lambda _: None, lambda _: None)
    worker.start(work)
    assert worker.join(30.0)
    assert seen == [pytest.approx(0.001, rel=0.01)]
    assert sys.getswitchinterval() == pytest.approx(before, rel=0.01)
