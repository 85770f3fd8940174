"""``kill -9`` of `workbench tune`, three times during the same trials: what has not finished waits, and never fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.slow_trials import in_training, make_slow, trials_of, write_slow_study
from tests.kit.processes import wait_until


def slow_study(folder: Path) -> tuple[Path, list[str]]:
    """Return a study whose baseline is trained and whose trials take minutes, and the command that tunes it."""
    study = write_slow_study(folder)
    command = [sys.executable, "-m", "workbench", "tune", str(study)]
    subprocess.run([*command, "--trials", "1"], check=True, capture_output=True)  # O0, which is the driver's own
    make_slow(study, slow=True)
    return study, command


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_driver_killed_three_times_during_the_same_trials_fails_none(jobs: int, tmp_path: Path) -> None:
    study, command = slow_study(tmp_path)
    hit: list[set[int]] = []
    for _ in range(3):
        with subprocess.Popen(
            [*command, "--jobs", str(jobs)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as driver:
            try:
                wait_until(lambda: len(in_training(study)) == jobs or driver.poll() is not None, seconds=400.0)
                assert driver.poll() is None, driver.communicate()
                hit.append(in_training(study))
                workers = psutil.Process(driver.pid).children(recursive=True)
            finally:
                driver.kill()
        psutil.wait_procs(workers, timeout=60.0)
    assert hit[0] == hit[1] == hit[2], "the same trials each time"
    make_slow(study, slow=False)
    subprocess.run([*command, "--jobs", str(jobs)], check=True, capture_output=True)
    trials = trials_of(study)
    assert {trials[number].state.name for number in hit[0]} <= {"COMPLETE", "PRUNED"}
    assert not any("worker_deaths" in one.user_attrs for one in trials)
    assert all("trained" in trials[number].user_attrs for number in hit[0])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.name == "nt", reason="no such signal")
def test_an_impatient_user_of_several_workers_sees_one_sentence(tmp_path: Path) -> None:
    study, command = slow_study(tmp_path)
    with subprocess.Popen(
        [*command, "--jobs", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as driver:
        try:
            wait_until(lambda: len(in_training(study)) == 2 or driver.poll() is not None, seconds=400.0)
            for _ in range(4):
                driver.send_signal(signal.SIGINT)
                time.sleep(0.3)
            _, said = driver.communicate(timeout=120)
        finally:
            driver.kill()
    assert driver.returncode == 130, said
    assert "Traceback" not in said
    assert said.count("everything finished is saved") == 1
