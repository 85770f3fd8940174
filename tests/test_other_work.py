"""What other processes take of the machine."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import psutil
import pytest

from workbench.core import processor
from workbench.core.other_work import OtherWork, other_work_now


class _Machine:
    """Two cores whose times, and this process's, go on as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.all, self.mine = 0.0, 1000.0, 10.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "sleep", lambda seconds: self.go_on(seconds, others=2.0 * seconds))
        monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [SimpleNamespace(user=self.all / 2, idle=1e9)] * 2)
        monkeypatch.setattr(psutil, "Process", lambda: self)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)

    def children(self, *, recursive: bool) -> list[object]:
        return []

    def cpu_times(self) -> SimpleNamespace:
        return SimpleNamespace(user=self.mine, system=0.0)

    def go_on(self, seconds: float, *, others: float = 0.0, mine: float = 0.0) -> None:
        self.now += seconds
        self.all += others + mine
        self.mine += mine


def test_own_work_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _Machine(monkeypatch)
    other = OtherWork()
    machine.go_on(10.0, others=4.0, mine=20.0)
    assert other.cores() == pytest.approx(0.4)
    assert other.sentence() == ""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_busy_core_is_told(monkeypatch: pytest.MonkeyPatch, threads: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    machine = _Machine(monkeypatch)
    other = OtherWork()
    machine.go_on(10.0, others=15.0, mine=5.0)
    assert other.sentence().startswith("Other work keeps 1.5 of 2 cores busy: steps on the CPU take longer meanwhile")
    assert ("OMP_NUM_THREADS=1" in other.sentence()) is (threads != "1")
    assert ["OMP_NUM_THREADS=1" in other.sentence(number) for number in (1, 2)] == [False, True]


def test_what_a_container_s_neighbours_do_on_other_cores_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _Machine(monkeypatch)
    monkeypatch.setattr(processor, "cpu_quota", lambda: 1.0)
    other = OtherWork()
    machine.go_on(10.0, others=9.0)
    assert (other.cores(), other.idle_cores(), other.sentence()) == (pytest.approx(0.9), 1.0, "")
    machine.go_on(10.0, others=20.0)
    assert other.idle_cores() == pytest.approx(0.55)


def test_a_moment_says_nothing_and_a_look_waits_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _Machine(monkeypatch)
    other = OtherWork()
    machine.go_on(0.1, others=0.2)
    assert other.sentence() == ""
    assert other_work_now().sentence().startswith("Other work keeps 2.0 of 2 cores busy")
