"""Where the compiled library comes from, and that nothing needs it."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.kit.processes import start
from workbench.core.kernels import library
from workbench.core.kernels.library import OFF, kernel_library

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler here")


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(OFF, raising=False)
    kernel_library.cache_clear()
    yield
    kernel_library.cache_clear()


@needs_compiler
def test_it_is_compiled_once_and_what_others_could_have_written_is_not_loaded(tmp_path: Path) -> None:
    assert kernel_library() is not None
    (path,) = (tmp_path / "boost-workbench").iterdir()
    first = path.stat().st_mtime_ns
    kernel_library.cache_clear()
    assert kernel_library() is not None
    assert path.stat().st_mtime_ns == first
    path.chmod(0o777)
    kernel_library.cache_clear()
    assert kernel_library() is None


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_its_threads_are_torchs() -> None:
    code = """
import torch
from workbench.optim.adam_offload.host_adam import AdamNumbers, RoundedAdam
torch.set_num_threads(2)
moments = [[torch.zeros(200_000, dtype=torch.bfloat16)] for _ in range(2)]
RoundedAdam().step_([torch.ones(200_000)], [torch.ones(200_000)], *moments, AdamNumbers(0.1, (0.9, 0.999), 1e-8))
print(len({line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line}))
"""
    done = subprocess.run([sys.executable, "-c", code], env=_environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "1\n", "a second OpenMP would let all threads sleep at barriers"


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(OFF, "1")
    assert kernel_library() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("compiler", ["/no/such/compiler", "false"])
def test_without_a_compiler_that_works_there_is_none(
    compiler: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", compiler)
    with caplog.at_level(logging.INFO, logger="workbench"):
        assert kernel_library() is None
    assert "no kernels of our own" in caplog.text


@needs_compiler
def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kernel_library() is None


@pytest.mark.slow
@needs_compiler
def test_processes_may_compile_it_at_once(tmp_path: Path) -> None:
    started = [start(_compile_in, str(tmp_path)) for _ in range(2)]
    for one in started:
        one.join(120)
    assert [one.exitcode for one in started] == [0, 0]
    assert [path.suffix for path in (tmp_path / "boost-workbench").iterdir()] == [".so"]


def _compile_in(folder: str) -> None:
    os.environ["XDG_CACHE_HOME"] = folder
    assert kernel_library() is not None


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(library.__file__).parents[2])}


def test_torchs_openmp_is_where_it_is_looked_for() -> None:
    if sys.platform == "linux":
        assert list((Path(torch.__file__).parent / "lib").glob("libgomp*"))
