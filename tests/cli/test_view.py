"""``workbench view``: it says where it is, ends quietly, and refuses in a sentence."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from workbench.cli import view_command


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_serves_and_ends_quietly(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "workbench", "view", str(tmp_path), "--no-browser"]
    if number == signal.SIGTERM:  # a shell starts its background jobs with Ctrl-C ignored
        command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+/\S+/", process.stdout.readline())
            assert found is not None
            with urllib.request.urlopen(found.group(), timeout=30) as answer:
                assert tmp_path.name in answer.read().decode()
            process.send_signal(number)
            _, complaints = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert complaints.strip() == "workbench view has ended"


def test_a_folder_that_is_not_there_is_wrong_input(workbench: Command) -> None:
    sentence = workbench("view", "nowhere", "--no-browser").refused()
    assert "nowhere: there is no such folder; name a study, a run directory, or a folder that holds some" in sentence


def test_a_port_in_use_is_said(workbench: Command, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sentence = workbench("view", tmp_path, "--no-browser", "--port", port).refused()
    assert f"port {port} is in use" in sentence


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is always a screen")
def test_without_a_screen_no_browser_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not view_command.has_browser()
    monkeypatch.setenv("DISPLAY", ":0")
    assert view_command.has_browser()
