"""Whether a process is still there: living, another of the same number, ended, ended but not waited for."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from workbench.core.process_identity import is_running, machine, start_ticks

HERE = os.getpid()
BEGAN = psutil.Process().create_time()

needs_ticks = pytest.mark.skipif(start_ticks(HERE) is None, reason="this system does not tell ticks")


@needs_ticks
@pytest.mark.parametrize(
    ("later", "began", "running"),
    [(0, BEGAN, True), (0, 0.0, True), (1, BEGAN, False), (None, BEGAN + 1.0, True), (None, BEGAN + 60.0, False)],
    ids=["same", "clock_was_set", "number_used_again", "by_the_clock", "another_by_the_clock"],
)
def test_a_process_is_known_by_its_number_and_its_start(later: int | None, began: float, running: bool) -> None:
    own = start_ticks(HERE)
    assert own is not None
    assert is_running(HERE, ticks=None if later is None else own + later, began=began) is running


@pytest.mark.parametrize("pid", [-1, 0, 2**22 + 1, 2**31, 2**70])
def test_a_number_that_no_process_has_is_nobodys(pid: int) -> None:
    assert not is_running(pid, ticks=None, began=BEGAN)


def test_a_process_has_ended_before_its_parent_waits_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        known = {"ticks": start_ticks(child.pid), "began": psutil.Process(child.pid).create_time()}
        assert is_running(child.pid, **known)
        child.kill()
        while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
            pass
        assert not is_running(child.pid, **known)
    assert not is_running(child.pid, **known)


def test_all_processes_of_a_machine_name_it_alike() -> None:
    program = "from workbench.core.process_identity import machine; print(machine())"
    named = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert named.stdout.strip() == machine()
