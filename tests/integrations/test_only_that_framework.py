"""Every file of three searches, run where there is its framework and nothing else."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.test_mindspore_script import TRAINS
from tests.integrations.test_torch_scripts import OWN
from tests.interoperability.test_mindspore import VARIABLE
from tests.kit.environments import environment_with
from tests.kit.script_runs import run_script
from workbench import api

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
WORLDS: dict[str, tuple[str, ...]] = {
    "torch": ("torch",), "transformers": ("torch", "transformers", "accelerate"), "lightning": ("torch", "lightning"),
}  # fmt: skip
OF_THE_DATA = {"sklearn": "scikit-learn", "numpy": "numpy", "torchmetrics": "torchmetrics"}  # what tasks here import
OPTIONS: dict[str, dict[str, Any]] = {
    "torch": {},
    "transformers": {"disable_tqdm": True, "use_cpu": True},
    "lightning": {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"},
}
TASKS = {"digits-lenet": 200, "digits-autoencoder": 100, "own": 240}


@pytest.fixture(scope="module", params=TASKS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Search for a minute and a half, and write the answer for every framework."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    task = f"{folder / 'own.py'}:task" if request.param == "own" else request.param
    before = Path.cwd()
    os.chdir(folder)
    try:
        api.tune(task, minutes=1.5, steps=TASKS[request.param], confirm_seeds=10, on_note=lambda _: None)
        study = next(folder.rglob("study.toml")).parent
        api.export(study, folder / "out", formats=[*WORLDS, "mindspore"])
    finally:
        os.chdir(before)
    return folder / "out"


def imported(script: str) -> set[str]:
    """Return the packages that a script imports, without Python's own."""
    names = set()
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names


@pytest.mark.parametrize("world", WORLDS)
def test_the_file_trains_where_there_is_its_framework_alone(exported: Path, tmp_path: Path, world: str) -> None:
    (path,) = exported.glob(f"train_{world}_*.py")
    needs = imported(path.read_text(encoding="utf-8"))
    data = needs & OF_THE_DATA.keys()
    assert needs - data - {"workbench"} <= set(WORLDS[world]), "what neither the framework nor the data brings"
    ours = "workbench" in needs
    distributions = [*WORLDS[world], *(OF_THE_DATA[name] for name in data), *(["boost-workbench"] if ours else [])]
    python = environment_with(tmp_path / "env", distributions, on_path=ROOT if ours else None)
    others = {name for of in WORLDS.values() for name in of} - set(WORLDS[world]) | ({"workbench"} - needs)
    probe = f"import importlib.util; print([name for name in {sorted(others)} if importlib.util.find_spec(name)])"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    seen = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=True, env=clean, cwd=tmp_path)
    assert seen.stdout.strip() == "[]"
    ran = run_script(path, options=OPTIONS[world], strict=False, python=python)
    print(f"{path}: {'with' if ours else 'without'} workbench, metric {ran['metric']:.4f}")
    assert ran["metric"] < 2.0 if "autoencoder" in str(path) else ran["metric"] > 0.85


@pytest.mark.mindspore
@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter with MindSpore 2.7")
def test_the_file_trains_in_mindspore(exported: Path) -> None:
    (path,) = exported.glob("train_mindspore_*.py")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [os.environ[VARIABLE], str(TRAINS), str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, env=clean, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    answer = json.loads(ended.stdout.splitlines()[-1])
    assert answer["after"] < answer["before"]
