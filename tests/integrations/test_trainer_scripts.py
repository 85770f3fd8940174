"""A set-up as a script of another trainer: its arguments alone where they carry it, a class of ours where not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.test_torch_scripts import (
    _ALONE,
    _FIELDS,
    _NAMED,
    _PAIRED,
    _TUPLES,
    _WHOLE,
    ACCUMULATED,
    PLAIN,
    QUICKSTART,
    own_task,
    particular,
    trained_here,
    two_towers,
    written,
)
from tests.kit.script_runs import run_here, run_script
from workbench.config import BoostConfig

QUIET: dict[str, dict[str, Any]] = {
    "lightning": {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu",
    },
    "transformers": {"disable_tqdm": True, "use_cpu": True},
}  # fmt: skip
LOADED = {"lightning": "lightning.pytorch", "transformers": "transformers.trainer"}
BFLOAT16 = PLAIN | {"amp": {"level": "O2", "dtype": "bfloat16"}}
FREEZING: dict[str, Any] = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": True}}
CONFIGS = {
    "bfloat16": BoostConfig.from_dict(BFLOAT16),
    "native": BoostConfig.from_dict(
        BFLOAT16
        | {
            "optimizer": {"name": "AdamW", "lr": 0.005},
            "schedule": {"length": 0.5, "shape": "linear"},
            "batch": {"factor": 2.0, "lr_rule": "sqrt"},
            "regularization": {"label_smoothing": 0.1},
        }
    ),
    "own rate": BoostConfig.from_dict(PLAIN | {"optimizer": {"lr": 0.05}, "batch": {"factor": 2.0, "lr_rule": "sqrt"}}),
    "quickstart": BoostConfig.from_json(QUICKSTART),
    "freezing": BoostConfig.from_dict(FREEZING),
    "freezing without norms": BoostConfig.from_dict({"boost": FREEZING["boost"] | {"less_bn": True}}),
}


def run_by(framework: str, path: Path, *, without: Sequence[str] = ()) -> float:
    """Run a script where some packages are not there, and return its metric."""
    options, imported = QUIET[framework], [LOADED[framework]]
    return float(run_script(path, without=without, options=options, strict=False, imported=imported)["metric"])


@pytest.mark.parametrize(
    ("framework", "name", "argument"),
    [("lightning", "bfloat16", "precision='bf16-mixed'"), ("transformers", "native", "bf16=True")],
)
def test_arguments_alone_carry_what_they_can(framework: str, name: str, argument: str, tmp_path: Path) -> None:
    worth = {"amp.level": "1.30 x as fast (95 % interval 1.20 to 1.40)"}
    script = written(tmp_path, "digits-lenet", CONFIGS[name], 12, framework, worth=worth)
    assert "needs nothing of workbench" in script.needs
    assert f"        {argument},  # 1.30 x as fast (95 % interval 1.20 to 1.40)\n" in script.text
    assert "workbench import" not in script.text


def test_a_rate_of_todays_optimizer_is_set_in_its_groups(tmp_path: Path) -> None:
    own = written(tmp_path, "digits-lenet", CONFIGS["own rate"], 12, "transformers").text
    assert 'group["lr"] = 0.0707' in own
    assert "learning_rate=" not in own


@pytest.mark.parametrize(
    ("framework", "why", "ours"),
    [
        ("lightning", "Lightning has no counterpart for", "lightning import Boost\n"),
        ("transformers", "no counterpart for runtime.memory_format", "transformers import BoostedTrainer\n"),
    ],
)
def test_the_rest_goes_in_through_a_class_of_ours(framework: str, why: str, ours: str, tmp_path: Path) -> None:
    script = written(tmp_path, "digits-resnet", CONFIGS["quickstart"], 12, framework)
    assert why in script.needs
    assert f"from workbench.integrations.{ours}" in script.text
    assert framework != "lightning" or "callbacks=[boost]" in script.text


def trained(framework: str, name: str, steps: int, *, long: bool = False) -> Any:
    return pytest.param(framework, name, steps, marks=[pytest.mark.long] * long)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "name", "steps"),
    [
        trained("lightning", "bfloat16", 40, long=True),
        trained("lightning", "quickstart", 16, long=True),
        trained("lightning", "freezing without norms", 16, long=True),
        trained("transformers", "native", 240),
        trained("transformers", "own rate", 240, long=True),
        trained("transformers", "quickstart", 180, long=True),
        trained("transformers", "freezing", 60),
    ],
)
def test_each_script_trains_in_its_trainer(framework: str, name: str, steps: int, tmp_path: Path) -> None:
    task = "digits-lenet" if name in ("bfloat16", "native", "own rate") else "digits-resnet"
    script = written(tmp_path, task, CONFIGS[name], steps, framework)
    refused = ["workbench"] if "needs nothing of workbench" in script.needs else []
    metric = run_by(framework, tmp_path / script.name, without=refused)
    # The trainers shuffle by themselves, so that the run is another one of the same kind.
    within = {"lightning": 0.03, "transformers": 0.06}[framework]
    assert metric == pytest.approx(trained_here(task, CONFIGS[name], steps)["metric"], abs=within)


HANDED = {
    "names": ("transformers", _NAMED, "nn.BCEWithLogitsLoss()", "accuracy", {"batch": {"factor": 2.0}}),
    "several inputs": ("transformers", _PAIRED, "nn.BCEWithLogitsLoss()", "accuracy", ACCUMULATED),
    "fields": ("transformers", _FIELDS, "own_loss", "loss", {"batch": {"factor": 0.5}}),
    "named tuples": ("transformers", _TUPLES, "own_loss", "loss", {"regularization": {"weight_average": "ema"}}),
    "a tensor alone": ("transformers", _ALONE, "own_loss", "loss", {}),
    # Not slow, as Lightning takes seconds to load, which it does for the unmarked tests already.
    "fields in Lightning": ("lightning", _FIELDS, "nn.BCEWithLogitsLoss()", "accuracy", {}),
}


@pytest.mark.parametrize(
    ("framework", "batch", "loss", "metric", "chosen"),
    [
        pytest.param(*values, id=name, marks=[pytest.mark.slow] * (values[0] == "transformers"))
        for name, values in HANDED.items()
    ],
)
def test_a_script_hands_its_trainer_what_a_batch_holds(
    framework: str, batch: str, loss: str, metric: str, chosen: dict[str, Any], tmp_path: Path
) -> None:
    task, config = own_task(tmp_path, two_towers(batch, loss, metric)), BoostConfig.from_dict(PLAIN | chosen)
    script, here = written(tmp_path, task, config, 40, framework), trained_here(task, config, 40)
    assert run_by(framework, tmp_path / script.name) == pytest.approx(here["metric"], abs=0.1, rel=0.2)


WARMED = {"schedule": {"shape": "warmup_stable_decay", "length": 0.5}}
FALLING = {"schedule": {"shape": "linear", "final": 0.5}}
O3 = {"amp": {"level": "O3", "dtype": "bfloat16"}}


@pytest.mark.filterwarnings("ignore")  # the trainers' own
@pytest.mark.parametrize(
    ("framework", "optimizer", "chosen", "alone"),
    [
        ("lightning", _WHOLE, {}, True),
        ("lightning", _WHOLE, O3, False),
        ("lightning", f"clipping({_WHOLE})", {}, False),
        ("transformers", _WHOLE, WARMED, True),
        ("transformers", _WHOLE, FALLING, False),
        ("transformers", f"clipping({_WHOLE})", {"optimizer": {"name": "SGD", "lr": 0.05}}, False),
    ],
    ids=["as today", "cast", "hook", "plateau", "a line to half the rate", "hook of another"],
)
def test_arguments_are_taken_only_where_they_train_the_same(
    framework: str, optimizer: str, chosen: dict[str, Any], alone: bool, tmp_path: Path
) -> None:
    task, config = particular(tmp_path, optimizer), BoostConfig.from_dict(PLAIN | chosen)
    script, here = written(tmp_path, task, config, 24, framework), trained_here(task, config, 24)
    assert ("needs nothing of workbench" in script.needs) is alone
    within = 1e-5 if framework == "lightning" else 0.3  # the other one shuffles
    assert run_here(tmp_path / script.name, **QUIET[framework])["metric"] == pytest.approx(here["metric"], rel=within)
