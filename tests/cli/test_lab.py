"""``workbench lab``: notebooks are found by what people call them; the server asks for a token and ends at Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import Command
from workbench.cli.lab_command import notebook_named

NAMES = ["00_quickstart", "02_loss_scale_and_overflow", "03_gradient_freezing", "20_own"]
PATHS = [Path("notebooks") / f"{name}.ipynb" for name in NAMES]


@pytest.mark.parametrize(
    "name", ["02_loss_scale_and_overflow", "02", "overflow", "notebooks/02_loss_scale_and_overflow.ipynb"]
)
def test_a_notebook_is_found_by_name_number_and_words(name: str) -> None:
    assert notebook_named(name, PATHS) == PATHS[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [("thor", "is none of them: 00_quickstart, 02_loss"), ("ing", "is none of them"), ("0", "may mean 00_quickstart")],
)
def test_a_name_that_means_none_or_several_is_refused(name: str, said: str) -> None:
    paths = [path for path in PATHS if "freezing" not in path.stem]
    with pytest.raises(ValueError, match=f"notebook '{name}' {said}"):
        notebook_named(name, paths)


def test_an_unknown_notebook_is_one_sentence_and_starts_nothing(workbench: Command, here: Path) -> None:
    assert "notebook 'no such one' is none of them: 0" in workbench("lab", "no such one", "--no-browser").refused()
    assert not (here / "notebooks").exists()


@pytest.mark.slow
def test_the_server_asks_for_its_token_and_ends_at_ctrl_c_with_what_was_edited_kept(tmp_path: Path) -> None:
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    own = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}\n'
    (notebooks / "01_boost_levels.ipynb").write_text(own)
    command = [sys.executable, "-m", "workbench", "lab", "freezing", "--no-browser", "--port", "0"]
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": str(tmp_path / "config"), "PYTHONUNBUFFERED": "1"}
    environment.pop("JUPYTER_TOKEN", None)
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            told = [next(server.stdout) for _ in range(3)]
            (address,) = re.findall(r"JupyterLab is at (\S+)", "".join(told))
            assert "/lab/tree/notebooks/03_gradient_freezing.ipynb?token=" in address
            assert ("runs as root here" in "".join(told)) == (os.geteuid() == 0)
            root, _, token = re.match(r"(http://[^/]+/)(.*)token=(\w+)$", address).groups()  # type: ignore[union-attr]
            assert len(token) >= 48
            with urllib.request.urlopen(f"{root}api/contents/notebooks?token={token}", timeout=60) as answer:
                assert b"03_gradient_freezing.ipynb" in answer.read()
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"{root}api/contents/notebooks", timeout=60)
            server.send_signal(signal.SIGINT)
            rest, complaints = server.communicate(timeout=60)
        finally:
            for process in psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []:
                process.kill()
            server.kill()
    assert server.returncode == 0, complaints
    assert "JupyterLab has ended; what was saved is in notebooks/" in rest
    assert "Traceback" not in complaints
    assert (notebooks / "01_boost_levels.ipynb").read_text() == own
