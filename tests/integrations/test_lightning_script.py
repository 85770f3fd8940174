"""A set-up as a script of Lightning's: arguments alone where they carry it, the callback where they do not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.test_torch_scripts import PLAIN, QUICKSTART, trained_here, written
from tests.kit.script_runs import run_script
from workbench.config import BoostConfig

needs_lightning = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="needs the extra `lightning`"
)
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
NATIVE = PLAIN | {"amp": {"level": "O2", "dtype": "bfloat16"}}
FREEZING: dict[str, Any] = {"boost": {"mode": "manual", "less_bn": True, "grad_freeze": True}}


def test_arguments_alone_carry_what_they_can(tmp_path: Path) -> None:
    worth = {"amp.level": "1.30 x as fast (95 % interval 1.20 to 1.40)"}
    config = BoostConfig.from_dict(NATIVE)
    script = written(tmp_path, "digits-lenet", config, 12, "lightning", worth=worth)
    assert not script.why_ours
    assert "        precision='bf16-mixed',  # 1.30 x as fast (95 % interval 1.20 to 1.40)\n" in script.text
    assert "workbench import" not in script.text


def test_the_rest_goes_in_through_the_callback(tmp_path: Path) -> None:
    script = written(tmp_path, "digits-resnet", BoostConfig.from_json(QUICKSTART), 12, "lightning")
    assert "Lightning has no counterpart for" in script.why_ours
    assert "from workbench.integrations.lightning import Boost\n" in script.text
    assert "callbacks=[boost]" in script.text


@pytest.mark.slow
@needs_lightning
@pytest.mark.parametrize(
    "name",
    ["native", pytest.param("quickstart", marks=pytest.mark.long), pytest.param("freezing", marks=pytest.mark.long)],
)
def test_each_script_trains_in_lightning(tmp_path: Path, name: str) -> None:
    config = {
        "native": BoostConfig.from_dict(NATIVE),
        "quickstart": BoostConfig.from_json(QUICKSTART),
        "freezing": BoostConfig.from_dict(FREEZING),
    }[name]
    task, steps = ("digits-lenet", 40) if name == "native" else ("digits-resnet", 16)
    script = written(tmp_path, task, config, steps, "lightning")
    refused = [] if script.why_ours else ["workbench"]
    ran = run_script(tmp_path / script.name, without=refused, options=QUIET, strict=False)
    assert ran["metric"] == pytest.approx(trained_here(task, config, steps)["metric"], abs=0.03)
