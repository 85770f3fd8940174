"""A set-up in MindSpore's own words: what its names carry, what is left, and what the file says."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.interoperability.test_mindspore import VARIABLE, needs_mindspore
from workbench.config import BoostConfig
from workbench.integrations.float32_layers import float32_layers
from workbench.integrations.scripts.set_up import SetUp
from workbench.integrations.scripts.writing import write_script
from workbench.loss_scale import ScalePolicy
from workbench.runs import Run

TRAINS = Path(__file__).parents[1] / "interoperability/train_with_mindspore.py"
QUICKSTART = Path(__file__).parents[2] / "studies/quickstart/published/boost_config.o1.json"
PLAIN: dict[str, Any] = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": False}}
FLOAT16 = PLAIN | {
    "amp": {"level": "O2"},
    "loss_scale": {"init": 1024.0, "factor": 4.0, "window": 50},
    "optimizer": {"name": "SGD", "lr": 0.1, "momentum": 0.9},
    "schedule": {"shape": "cosine", "final": 0.1},
}
BOOSTED: dict[str, Any] = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": True}}


def text_of(set_up: dict[str, Any], **more: Any) -> str:
    return write_script("mindspore", SetUp(BoostConfig.from_dict(set_up), "o1", 40, **more)).text


def test_the_file_says_what_autoboost_acts_on_and_which_layers_stay_in_float32() -> None:
    boosted = text_of(BOOSTED, worth={"boost.grad_freeze": "1.40 x faster (no interval)"})
    assert "AutoBoost acts on boost.grad_freeze" in boosted
    assert "# boost methods: 1.40 x faster (no interval)" in boosted
    assert "No float16 run was recorded" in boosted
    plain = text_of(FLOAT16, float32_layers=("conv1",))
    assert "AutoBoost acts on nothing of this set-up." in plain
    assert "KEEP_FLOAT32 = ['conv1']" in plain
    assert "float16 held the gradients of every layer" in text_of(FLOAT16, float32_layers=())


def test_the_rates_are_those_of_the_schedule() -> None:
    tree = ast.parse(text_of(FLOAT16))
    tree.body = [one for one in tree.body if not isinstance(one, ast.ImportFrom) or one.module == "__future__"]
    tree.body = [one for one in tree.body if "mindspore" not in ast.unparse(one) or isinstance(one, ast.FunctionDef)]
    module: dict[str, Any] = {}
    exec(compile(tree, "script", "exec"), module)
    from workbench.methods.schedule.method import factor_at

    expected = [0.1 * factor_at(update, 40, "cosine", warmup=0.1, final=0.1) for update in range(40)]
    assert module["learning_rates"]() == pytest.approx(expected)


def test_rates_that_are_multiplied_are_so_in_the_file() -> None:
    text = text_of(PLAIN | {"optimizer": {"lr_factor": 1.5}, "batch": {"factor": 4.0, "lr_rule": "sqrt"}})
    assert "its rates, 3 x today's." in text
    assert "learning_rate=learning_rates(3 * 0.1)" in text


def histogram(group: str, exponent: int) -> dict[str, Any]:
    return {"group": group, "lowest": exponent, "counts": [10], "zeros": 0, "nonfinite": 0}


@pytest.mark.parametrize(("scale", "layers"), [(1024.0, ()), (2.0**20, ("head",)), (1.0, ("stem",))])
def test_layers_beyond_float16_are_read_from_the_recorded_exponents(scale: float, layers: tuple[str, ...]) -> None:
    n = 20
    cells = [[histogram("stem", -27), histogram("body", -10), histogram("head", 0)] for _ in range(n)]
    each = {"loss_scale": 1.0, "overflow": False, "skipped": False, "accumulated": 1, "grad_amax": 1.5}
    steps = pd.DataFrame({"step": np.arange(n), **each, "grad_exponents": cells})
    run = Run(Path("run"), {}, {}, {}, steps, pd.DataFrame({"step": [], "kind": []}), True)
    assert float32_layers(run, ScalePolicy(init=scale, kind="fixed")) == layers


@pytest.mark.parametrize("name", ["quickstart", "float16", "boosted", "boosted with Adam"])
@needs_mindspore
def test_the_file_trains_a_small_network_in_mindspore(tmp_path: Path, name: str) -> None:
    configs = {"float16": FLOAT16, "boosted": BOOSTED, "boosted with Adam": BOOSTED | {"optimizer": {"name": "Adam"}}}
    config = BoostConfig.from_dict(configs[name]) if name in configs else BoostConfig.from_json(QUICKSTART)
    layers = ("0",) if name == "float16" else None
    script = write_script("mindspore", SetUp(config, "o1", 40, float32_layers=layers))
    (tmp_path / script.name).write_text(script.text, encoding="utf-8")
    config.save(tmp_path / "boost_config.o1.json")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [os.environ[VARIABLE], str(TRAINS), str(tmp_path / script.name)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, env=clean, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    answer = json.loads(ended.stdout.splitlines()[-1])
    assert answer["after"] < answer["before"]
    if name == "float16":
        assert answer["formats"] == ["Float32", "Float16", "Float16"]
        assert answer["amp_level"] == "O2"
        assert {answer["manager"][one] for one in ("loss_scale", "scale_factor", "scale_window")} == {1024.0, 4.0, 50}
        assert answer["optimizer"] == "Momentum"
    assert answer["boost_level"] == ("O1" if name == "boosted" else "O0")
    assert name != "quickstart" or (answer["optimizer"], len(answer["rates"])) == ("AdamWeightDecay", 10)
