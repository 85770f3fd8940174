"""From a Trainer to a set-up and back: the search finds and exports, and the export trains in the Trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="pip install boost-workbench[test] brings transformers")

from transformers import Trainer

from tests.integrations.test_task_from_trainer import accuracy
from tests.kit.hugging_face import arguments, classifier, sentences
from workbench import tune
from workbench.config import BoostConfig
from workbench.integrations.transformers import BoostedTrainer, task_from_trainer


@pytest.mark.long
def test_a_search_from_a_trainer_finds_what_trains_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = sentences(512 + 256)
    args = arguments(tmp_path / "out", max_steps=160, metric_for_best_model="accuracy")
    held = {"train_dataset": data[:512], "eval_dataset": data[512:], "compute_metrics": accuracy}
    result = tune(task_from_trainer(Trainer(classifier(), args, **held), name="texts"), minutes=1.5, confirm_seeds=4)
    files = sorted((tmp_path / "studies" / "texts").rglob("boost_config.o1.json"))
    assert files, result
    config = BoostConfig.from_json(files[0])
    before = Trainer(classifier(), args, **held)
    before.train()
    after = BoostedTrainer(classifier(), args, boost=config, **held)
    after.train()
    assert after.state.global_step > 0
    assert after.evaluate()["eval_accuracy"] >= before.evaluate()["eval_accuracy"] - 0.05
