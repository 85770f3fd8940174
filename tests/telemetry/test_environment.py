"""The environment of a run, described without torch."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from pathlib import Path

from workbench.runs import SCHEMA_VERSION, collect_environment


def test_the_environment_says_where_and_with_what() -> None:
    environment = collect_environment(
        device={"type": "cpu", "name": "test"}, seed=7, data_hash="abc", task="digits", level="O2"
    )
    assert environment["versions"]["numpy"] == importlib.metadata.version("numpy")
    assert environment["python"] == platform.python_version()
    assert environment["schema_version"] == SCHEMA_VERSION
    assert environment["device"] == {"type": "cpu", "name": "test"}
    assert [environment[name] for name in ("seed", "data_hash", "task", "level")] == [7, "abc", "digits", "O2"]
    assert environment["cpu"]
    assert environment["cores"] >= 1
    assert environment["memory_bytes"] > 2**28
    assert json.loads(json.dumps(environment)) == environment


def test_packages_that_are_not_installed_are_left_out() -> None:
    assert "torch_npu" not in collect_environment()["versions"] or importlib.metadata.version("torch_npu")


NO_TORCH = """
import sys, tempfile
from workbench.runs import RunRecorder, collect_environment, list_runs, read_run
recorder = RunRecorder.create(tempfile.mkdtemp(), {}, collect_environment())
recorder.finish({})
assert read_run(recorder.path).finished and len(list_runs(recorder.path.parent)) == 1
print([name for name in ("torch", "plotly", "optuna", "matplotlib") if name in sys.modules])
"""


def test_telemetry_loads_neither_torch_nor_figures_nor_tuning() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", NO_TORCH]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
