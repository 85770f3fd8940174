"""The boosted Trainer on two ranks, against one rank with twice the batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="pip install boost-workbench[test] brings transformers")

from tests.integrations import trainer_rank_program as program
from tests.integrations.test_boosted_trainer import boosted, logged
from tests.kit.hugging_face import NO_METHODS


@pytest.mark.slow
def test_two_ranks_train_as_one_with_twice_the_batch(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*torchrun, program.__file__, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    for name in ("plain", "freezing"):
        told = found[name]
        assert told["equal on both"], name
        assert told["resumed with the same bits"], name
        assert (told["steps"], told["samples"]) == (20, 256)
    alone = boosted(tmp_path / "alone", NO_METHODS, max_steps=20, eval_strategy="epoch")
    alone.train()
    assert found["plain"]["loss"] == pytest.approx(logged(alone, "loss"), rel=1e-3)
    assert found["plain"]["eval_loss"] == pytest.approx(logged(alone, "eval_loss"), rel=1e-3)
