"""Accelerate's loop with a set-up on two ranks of gloo, against Accelerate's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="pip install boost-workbench[test] brings accelerate")

PROGRAM = Path(__file__).with_name("accelerate_rank_program.py")
PASSES = {"nothing": 16, "frozen": 16, "shorter": 2}  # 4 epochs of 8 batches, shared out between two


@pytest.mark.long
def test_two_ranks_train_one_model_and_go_on_with_the_same_bits(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*torchrun, str(PROGRAM), str(tmp_path)], capture_output=True, text=True, timeout=300, check=False,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["nothing"].pop("away from Accelerate's own") < 1e-5
    same = {"equal on both": True, "resumed with the same bits": True, "as our loop": True, "ranks": 2, "moved": True}
    assert found == {name: same | {"passes": passes} for name, passes in PASSES.items()}
