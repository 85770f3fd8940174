"""A Model that two ranks train is killed, one rank or both, and ends as if it had not been."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.processes import free_port, wait_until
from workbench.training.checkpoint_folder import CheckpointFolder

PROGRAM = Path(__file__).with_name("fit_program.py")
EPOCHS = 12


def begin(folder: Path) -> list[subprocess.Popen[str]]:
    folder.mkdir(exist_ok=True)
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        subprocess.Popen(
            [sys.executable, PROGRAM, folder, str(EPOCHS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip


def what_came(folder: Path) -> tuple[str, str, dict[str, str]]:
    losses = dict(line.split() for line in (folder / "losses.txt").read_text().splitlines())
    first, second = ((folder / f"end.{rank}.txt").read_text() for rank in range(2))
    return first, second, losses


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_three_times_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for rank in begin(whole):
        _, said = rank.communicate(timeout=600)
        assert rank.returncode == 0, said
    for victims in ((0,), (1,), (0, 1)):
        ranks = begin(cut)
        before = CheckpointFolder(cut / "kept").newest_step()
        wait_until(lambda was=before: CheckpointFolder(cut / "kept").newest_step() > was)  # type: ignore[misc]
        for number in victims:
            ranks[number].kill()
        for rank in ranks:
            rank.communicate(timeout=600)  # the other one notices and ends
        assert not (cut / "end.0.txt").exists()
    for rank in begin(cut):
        _, said = rank.communicate(timeout=600)
        assert rank.returncode == 0, said
    assert what_came(cut) == what_came(whole)
    assert len(what_came(whole)[2]) == EPOCHS * 8
