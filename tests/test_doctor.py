"""The doctor finds what is there and names what is missing."""

from __future__ import annotations

import os
import shutil
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from workbench.core import devices, doctor
from workbench.core.doctor import Finding, examine


@pytest.fixture(autouse=True)
def _idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    # It watches for a third of a second.
    monkeypatch.setattr(doctor, "other_work_now", lambda: SimpleNamespace(sentence=lambda: ""))


def _by_subject(folder: Path) -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine(folder)}


def test_a_healthy_machine_has_no_problem_with_what_is_installed(tmp_path: Path) -> None:
    found = _by_subject(tmp_path)
    assert found["torch"].text == metadata.version("torch")
    assert not any(found[name].problem for name in ("Python", "torch", "optuna", "device", "folder"))
    assert devices.device_name(devices.select_device("auto")) in found["device"].text


def test_a_missing_package_is_a_problem_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without_plotly(name: str) -> str:
        if name == "plotly":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_plotly)
    found = _by_subject(tmp_path)
    assert found["plotly"].problem
    assert "pip install plotly" in found["plotly"].text
    assert not found["optuna"].problem


def test_a_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(free=1024**3 // 2))
    disk = _by_subject(tmp_path)["disk"]
    assert disk.problem
    assert "0.5 GiB free" in disk.text


def test_a_folder_that_cannot_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    folder = _by_subject(tmp_path)["folder"]
    assert folder.problem
    assert str(tmp_path) in folder.text


def test_a_number_format_that_does_not_work_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "autocast_supported", lambda device, dtype: "bfloat16" in str(dtype))
    found = _by_subject(tmp_path)
    assert "use amp O0" in found["float16"].text
    assert found["bfloat16"].text.startswith("autocast works")


@pytest.mark.parametrize(("fast", "slower"), [(True, ""), (False, ", slower than float32: no instructions for it")])
def test_a_number_format_without_instructions_is_called_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool, slower: str
) -> None:
    monkeypatch.setattr(devices, "has_fast_bfloat16", lambda device: fast)
    assert _by_subject(tmp_path)["bfloat16"].text == f"autocast works{slower}"
