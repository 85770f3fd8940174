"""Accelerate's loop and the boosted Trainer on two ranks of gloo: one model, gone on with the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.test_boosted_trainer import boosted, logged
from tests.kit.hugging_face import NO_METHODS

PROGRAM = Path(__file__).with_name("rank_program.py")
SAME = {"equal on both": True, "resumed with the same bits": True}


def on_two_ranks(framework: str, folder: Path) -> dict[str, Any]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    command = [*torchrun, str(PROGRAM), framework, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads((folder / "found.json").read_text(encoding="utf-8")))


@pytest.mark.long
def test_accelerate_trains_as_its_own_ranks_do(tmp_path: Path) -> None:
    found = on_two_ranks("accelerate", tmp_path)
    assert found["nothing"].pop("away from Accelerate's own") < 1e-5
    passes = {"nothing": 16, "frozen": 16, "shorter": 2}  # 4 epochs of 8 batches, shared out between two
    same = SAME | {"as our loop": True, "ranks": 2, "moved": True}
    assert found == {name: same | {"passes": n} for name, n in passes.items()}


@pytest.mark.long
def test_the_trainer_trains_as_one_rank_with_twice_the_batch(tmp_path: Path) -> None:
    found = on_two_ranks("transformers", tmp_path)
    losses = {name: of.pop("losses") for name, of in found.items()}
    assert found == dict.fromkeys(("plain", "freezing"), SAME | {"steps": 20, "samples": 256})
    alone = boosted(tmp_path / "alone", NO_METHODS, max_steps=20, eval_strategy="epoch")
    alone.train()
    for name, seen in losses["plain"].items():
        assert seen == pytest.approx(logged(alone, name), rel=1e-3)
