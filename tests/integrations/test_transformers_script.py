"""A set-up as a script of Hugging Face's Trainer: arguments alone where they carry it, BoostedTrainer where not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.test_torch_scripts import PLAIN, QUICKSTART, trained_here, written
from tests.kit.script_runs import run_script
from workbench.config import BoostConfig

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="needs the extra `transformers`"
)
QUIET = {"disable_tqdm": True, "use_cpu": True}
NATIVE: dict[str, Any] = PLAIN | {
    "amp": {"level": "O2", "dtype": "bfloat16"},
    "optimizer": {"name": "AdamW", "lr": 0.005},
    "schedule": {"length": 0.5, "shape": "linear"},
    "batch": {"factor": 2.0, "lr_rule": "sqrt"},
    "regularization": {"label_smoothing": 0.1},
}
OWN_RATE = PLAIN | {"optimizer": {"lr": 0.05}, "batch": {"factor": 2.0, "lr_rule": "sqrt"}}


def test_arguments_alone_carry_what_they_can(tmp_path: Path) -> None:
    worth = {"amp.level": "1.30 x as fast (95 % interval 1.20 to 1.40)"}
    script = written(tmp_path, "digits-lenet", BoostConfig.from_dict(NATIVE), 12, "transformers", worth=worth)
    assert not script.why_ours
    assert (
        "        bf16=True,  # 1.30 x as fast (95 % interval 1.20 to 1.40); not measured separately\n"
        not in script.text
    )
    assert "        bf16=True,  # 1.30 x as fast (95 % interval 1.20 to 1.40)\n" in script.text
    assert "workbench import" not in script.text
    own = written(tmp_path, "digits-lenet", BoostConfig.from_dict(OWN_RATE), 12, "transformers").text
    assert 'group["lr"] = 0.0707' in own
    assert "learning_rate=" not in own


def test_the_rest_goes_in_through_boosted_trainer(tmp_path: Path) -> None:
    script = written(tmp_path, "digits-resnet", BoostConfig.from_json(QUICKSTART), 12, "transformers")
    assert "no counterpart for runtime.memory_format" in script.why_ours
    assert "from workbench.integrations.transformers import BoostedTrainer\n" in script.text


@pytest.mark.slow
@needs_transformers
@pytest.mark.parametrize(
    "name",
    [
        "native",
        pytest.param("own rate", marks=pytest.mark.long),
        pytest.param("quickstart", marks=pytest.mark.long),
        "freezing",
    ],
)
def test_each_script_trains_in_the_trainer(tmp_path: Path, name: str) -> None:
    config = {
        "native": BoostConfig.from_dict(NATIVE),
        "own rate": BoostConfig.from_dict(OWN_RATE),
        "quickstart": BoostConfig.from_json(QUICKSTART),
        "freezing": BoostConfig.from_dict({"boost": {"mode": "manual", "less_bn": False, "grad_freeze": True}}),
    }[name]
    task, steps = ("digits-lenet", 240) if name in ("native", "own rate") else ("digits-resnet", 60)
    steps = 180 if name == "quickstart" else steps
    script = written(tmp_path, task, config, steps, "transformers")
    refused = [] if script.why_ours else ["workbench"]
    ran = run_script(tmp_path / script.name, without=refused, options=QUIET, strict=False)
    # The Trainer shuffles by itself, so that the run is another one of the same kind.
    assert ran["metric"] == pytest.approx(trained_here(task, config, steps)["metric"], abs=0.06)
