"""When a process that asks nothing is taken for one that gets nowhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workbench.study.run import silence


def test_a_silence_is_too_long_by_the_clock_by_those_before_it_and_by_what_the_process_has_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(silence, "time", SimpleNamespace(monotonic=lambda: now[0]))
    one = silence.Silence()

    def is_too_long_after(seconds: float, *, stopping: bool = False) -> bool:
        one.begin()
        now[0] += seconds
        return one.is_too_long(stopping=stopping)

    assert not is_too_long_after(1e6), "a first job reads the data first"
    assert is_too_long_after(61.0, stopping=True)
    one.begin()
    now[0] += 2.0
    one.end(trained=False)
    assert one.longest == 2.0
    assert not is_too_long_after(299.0), "nothing was evaluated yet"
    assert is_too_long_after(301.0)
    one.begin()
    for asked in range(4):
        now[0] += 5.0
        one.hear(asked)
    one.end(trained=True)
    assert one.longest == 5.0, "of a step, not of the job"
    one.begin()
    now[0] += 200.0
    one.go_on()  # of which the other side took as long to answer
    now[0] += 99.0
    assert not one.is_too_long(stopping=False)
    assert not is_too_long_after(99.0)
    assert is_too_long_after(101.0)
    assert "within 101 s, where none took longer than 5.0 s before" in one.sentence()
