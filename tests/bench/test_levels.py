"""The benchmark of boost levels at sizes too small to mean anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.kit.tiny_questions import LEVELS
from workbench.bench import Request
from workbench.bench.questions import levels


def export(studies: Path, study: str, config: dict[str, object], **provenance: str) -> None:
    folder = studies / study / "result"
    folder.mkdir(parents=True)
    said = {"task": "digits-lenet", "verdict": "confirmed", "in_effect": "freezing", "sentence": "Confirmed."}
    content = {**config, "amp": {"level": "O0"}, "provenance": {**said, **provenance}}
    (folder / "boost_config.o2.json").write_text(json.dumps(content))


FREEZING = {
    "boost": {"mode": "manual", "less_bn": False, "grad_freeze": True, "adasum": False},
    "grad_freeze": {"param_groups": 2},
}


def test_what_is_left_out(tmp_path: Path) -> None:
    export(tmp_path, "a", FREEZING)
    export(tmp_path, "again", FREEZING)
    export(tmp_path, "nothing", {}, verdict="O0")
    export(tmp_path, "own_file", {}, task="tasks.py:mine")
    found = levels.exported_configs(tmp_path)
    assert [(one.study, one.task, one.level) for one in found] == [("a", "digits-lenet", "O2")]
    assert levels.exported_configs(tmp_path / "missing") == []


@pytest.mark.filterwarnings("ignore:grad_freeze is not in effect")
def test_the_level_and_the_exported_configuration_are_found(tmp_path: Path) -> None:
    export(tmp_path, "a", FREEZING)
    request = Request(1, device=torch.device("cpu"), threads=(1,))
    found = levels.measure(request, **LEVELS, studies=tmp_path)
    sides = ("O1", "O0 in channels_last", "O1 in channels_last", "exported by a")
    assert [one.what for one in found] == [f"levels, 1 thread: {side} / O0" for side in sides]
    assert all(one.estimate is not None for one in found)
    assert [one.goal is None for one in found] == [False, True, True, False]
    assert found[3].note.endswith("Confirmed.")
