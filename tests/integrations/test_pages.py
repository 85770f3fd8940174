"""The pages about other people's loops: their code runs as it stands, and is as short as they say."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer

import workbench
from tests.kit.hugging_face import NO_METHODS, arguments, classifier, sentences

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
NATIVE = NO_METHODS | {"amp": {"level": "O2", "dtype": "bfloat16"}, "optimizer": {"name": "AdamW", "lr": 1e-3}}
WHOLE = NATIVE | {
    "boost": NO_METHODS["boost"] | {"grad_freeze": True},
    "optimizer": {"name": "AdamW", "lr": 4e-3},
    "schedule": {"length": 0.75, "shape": "linear"},
}


def blocks(page: str) -> dict[str, str]:
    """Return the code of a page by the comment in its first line."""
    return dict(re.findall(r"```python\n# (\w+)\n(.*?)```", (GUIDE / page).read_text(encoding="utf-8"), re.DOTALL))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, config in (("boost_config.o1.json", WHOLE), ("native.json", NATIVE)):
        (tmp_path / name).write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def changed(before: str, after: str) -> int:
    """Return how many lines of the later text are not in the earlier one."""
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return sum(line.startswith("+ ") and line.strip() != "+" for line in lines)


@pytest.mark.slow
def test_the_page_about_the_trainer(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = blocks("transformers.md")
    assert changed(page["before"], page["after"]) <= 4
    data, names = sentences(320), {"args": arguments(here)}
    names |= {"data": data[:256], "held_out": data[256:], "model": classifier()}
    exec(page["before"], names)
    today = names["trainer"].evaluate()["eval_loss"]
    names["model"] = classifier()
    exec(page["after"], names)
    assert names["trainer"].state.global_step == 30
    assert names["trainer"].evaluate()["eval_loss"] < max(2 * today, 0.6)
    names["args"] = arguments(here)
    exec(page["arguments"], names)
    assert (names["args"].bf16, names["args"].learning_rate) == (True, 1e-3)
    capsys.readouterr()
    exec(page["carried"], names)
    assert "boost.grad_freeze" in capsys.readouterr().out
    asked: dict[str, Any] = {}
    monkeypatch.setattr(workbench, "tune", lambda task, **options: asked.update(options, task=task))
    names["trainer"] = Trainer(classifier(), arguments(here), train_dataset=data[:256], eval_dataset=data[256:])
    exec(page["search"], names)
    assert (asked["task"].steps, asked["minutes"]) == (40, 15)


def test_the_page_about_accelerate(here: Path) -> None:
    page = blocks("accelerate.md")
    assert changed(page["before"], page["after"]) == 2
    torch.manual_seed(0)
    inputs = torch.randn(64, 6)
    loader = DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), 8, shuffle=True)
    config = NO_METHODS | {"schedule": {"length": 0.5, "shape": "linear"}}
    (here / "boost_config.o1.json").write_text(json.dumps(config), encoding="utf-8")
    losses = {}
    for which in ("before", "after", "prepare"):
        torch.manual_seed(0)
        AcceleratorState._reset_state(reset_partial_state=True)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
        names: dict[str, Any] = {
            "model": model, "loader": loader, "criterion": nn.CrossEntropyLoss(), "epochs": 10,
            "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True), "accelerator": Accelerator(),
        }  # fmt: skip
        exec(page[which], names)
        losses[which] = nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long()).item()
        boosted = names["accelerator"].boosted if which == "after" else names.get("boosted")
        assert which == "before" or (boosted.updates, boosted.step_index) == (40, 40)
    assert max(losses.values()) < 0.45
