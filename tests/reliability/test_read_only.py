"""Folders that may not be written: what is there can be read, and what would be written ends in one sentence."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.fake_runner import STUDY, make_fake, write_study
from workbench.study import tune

pytestmark = pytest.mark.long

_DROP_FROM_BOUNDING_SET = 24  # prctl(2), linux/prctl.h
_MAY_WRITE_ANYTHING = 1  # CAP_DAC_OVERRIDE, linux/capability.h
SMALL = STUDY.replace("n_trials = 10", "n_trials = 3").replace("seeds_max = 6", "seeds_max = 3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that nobody may write, with a study in it and one that has not begun."""
    root = tmp_path_factory.mktemp("read_only")
    directory = write_study(root / "s", SMALL)
    tune(directory, make_experimenter=make_fake)
    write_study(root / "new", SMALL.replace('"fake"', '"digits-lenet"'))
    for path in (root, *root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield root
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.rmtree(root)


def _obey() -> None:
    """Give up root's right to write what may not be written, in a process that is about to begin (man capabilities)."""
    if os.getuid() == 0:
        ctypes.CDLL(None).prctl(_DROP_FROM_BOUNDING_SET, _MAY_WRITE_ANYTHING, 0, 0, 0)


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process for which permissions hold."""
    return subprocess.run(
        [sys.executable, "-m", "workbench", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=_obey,
    )


@pytest.fixture(scope="module", autouse=True)
def _permissions_hold(folder: Path) -> None:
    told = subprocess.run(["/bin/sh", "-c", ": > made"], cwd=folder, preexec_fn=_obey, check=False, capture_output=True)
    if told.returncode == 0:
        pytest.skip("whoever runs this test may write everywhere")


def test_a_study_is_read(folder: Path) -> None:
    outcome = command("status", "s", "--json", cwd=folder)
    assert outcome.returncode == 0, outcome.stderr
    assert len(json.loads(outcome.stdout)["trials"]) >= 3
    assert {path.name for path in (folder / "s").glob("study.db*")} == {"study.db", "study.db.lock"}


@pytest.mark.parametrize(
    "words",
    [
        ("tune", "new"),
        ("tune", "s"),
        ("export", "s"),
        ("export", "s", "--out", "elsewhere"),
        ("train", "--task", "digits-lenet", "--steps", "2", "--out", "runs"),
        ("init", "made"),
    ],
    ids=" ".join,
)
def test_what_would_be_written_is_refused_in_one_sentence(words: tuple[str, ...], folder: Path) -> None:
    outcome = command(*words, cwd=folder)
    lines = [line for line in outcome.stderr.splitlines() if line.strip()]
    assert outcome.returncode in {1, 2}, outcome
    assert "Traceback" not in outcome.stderr
    assert "bug of the workbench" not in outcome.stderr
    assert any(word in lines[-1] for word in ("ermission", "read-only", "readonly", "may not be written")), lines
