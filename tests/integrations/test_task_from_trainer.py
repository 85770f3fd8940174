"""A search that begins from a Trainer, and its answer back in the Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Seq2SeqTrainingArguments, Trainer

from tests.kit.hugging_face import NO_METHODS, arguments, classifier, padded, sentences
from tests.kit.runs import run_task
from workbench import apply, tune
from workbench.config import BoostConfig
from workbench.integrations.transformers import BoostedTrainer, task_from_trainer

CPU = torch.device("cpu")
DATA, HELD_OUT = sentences(), sentences(320)[256:]


def accuracy(seen: Any) -> dict[str, float]:
    return {"accuracy": float((seen.predictions.argmax(axis=1) == seen.label_ids).mean()), "n": len(seen.label_ids)}


def trainer(folder: Path, **given: Any) -> Trainer:
    extra = {name: given.pop(name) for name in ("compute_metrics", "data_collator", "model_init") if name in given}
    data, model = given.pop("data", DATA), None if "model_init" in extra else classifier()
    return Trainer(model, arguments(folder, **given), train_dataset=data, eval_dataset=HELD_OUT, **extra)


def test_a_run_of_the_task_is_the_trainers(tmp_path: Path) -> None:
    given = {"max_steps": 8, "per_device_train_batch_size": 256, "warmup_steps": 4, "weight_decay": 0.1}
    one = trainer(tmp_path, **given, compute_metrics=accuracy, metric_for_best_model="accuracy")
    before = {name: value.clone() for name, value in one.model.state_dict().items()}
    task = task_from_trainer(one)
    assert (task.name, task.steps) == ("BertForSequenceClassification", 8)
    assert (task.metric_name, task.higher_is_better) == ("accuracy", True)
    result = run_task(task, BoostConfig.from_dict(NO_METHODS), steps=8, device=CPU)
    assert (one.optimizer, one.lr_scheduler) == (None, None)
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, msg=name)
    one.train()  # whole-set batches, so that the order of the samples is the same
    assert result.metric == pytest.approx(one.evaluate()["eval_accuracy"], abs=0.02)
    groups = task.new_optimizer(task.new_model()).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]


def test_padded_texts_are_batches_like_any_other(tmp_path: Path) -> None:
    one = trainer(
        tmp_path, data=sentences(ragged=True), data_collator=padded, per_device_train_batch_size=8,
        remove_unused_columns=False, metric_for_best_model="loss", compute_metrics=accuracy,
    )  # fmt: skip
    one.eval_dataset = sentences(64, ragged=True)
    task = task_from_trainer(one)
    config = BoostConfig.from_dict(NO_METHODS | {"batch": {"factor": 4.0}, "curriculum": {"kind": "sequence"}})
    result = run_task(task, config, steps=16, device=CPU)
    assert not result.diverged
    assert task.metric_name == "loss"


def test_other_seeds_have_other_orders_and_the_same_weights(tmp_path: Path) -> None:
    task = task_from_trainer(trainer(tmp_path))
    first, again, other = (next(task.batches(seed))["input_ids"] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    for mine, theirs in zip(task.new_model().parameters(), task.new_model().parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine is not theirs
    drawn = task_from_trainer(trainer(tmp_path, model_init=lambda: classifier(seed=int(torch.randint(9, ())))))
    assert drawn.new_model() is not drawn.new_model()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "accumulation": ({"gradient_accumulation_steps": 4}, "leave it at 1"),
    "compile": ({"torch_compile": True}, "one of the things that a search tries"),
    "metric": ({"compute_metrics": accuracy}, "which of what `compute_metrics` gives is the quality"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_search_cannot_take_is_refused_with_the_way_out(name: str, tmp_path: Path) -> None:
    given, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence):
        task_from_trainer(trainer(tmp_path, **given))


def test_texts_that_are_generated_are_not_what_a_search_judges(tmp_path: Path) -> None:
    args = Seq2SeqTrainingArguments(
        str(tmp_path), predict_with_generate=True, metric_for_best_model="accuracy", use_cpu=True, report_to=[]
    )
    one = Trainer(classifier(), args, train_dataset=DATA, eval_dataset=HELD_OUT, compute_metrics=accuracy)
    with pytest.raises(ValueError, match="judge what generate\\(\\) writes"):
        task_from_trainer(one)
    args.metric_for_best_model = "loss"
    assert task_from_trainer(one).metric_name == "loss"


def test_what_is_no_untrained_trainer_with_something_to_evaluate_is_refused(tmp_path: Path) -> None:
    one = trainer(tmp_path, max_steps=1)
    one.train()
    with pytest.raises(ValueError, match="has trained already"):
        task_from_trainer(one)
    with pytest.raises(ValueError, match="one `eval_dataset`"):
        task_from_trainer(Trainer(classifier(), arguments(tmp_path), train_dataset=DATA))
    with pytest.raises(TypeError, match="without a set-up, got BoostedTrainer"):
        task_from_trainer(BoostedTrainer(classifier(), arguments(tmp_path), train_dataset=DATA, boost=NO_METHODS))


def test_a_metric_of_another_name_is_an_error_with_those_there_are(tmp_path: Path) -> None:
    task = task_from_trainer(trainer(tmp_path, compute_metrics=accuracy, metric_for_best_model="f1"))
    with pytest.raises(ValueError, match="gives accuracy, n, but metric_for_best_model is 'f1'"):
        run_task(task, BoostConfig.from_dict(NO_METHODS), steps=1, device=CPU)


def test_gradients_are_clipped_with_an_optimizer_of_the_set_ups_too(tmp_path: Path) -> None:
    task = task_from_trainer(trainer(tmp_path, max_grad_norm=1e-3))
    model = task.new_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    config = NO_METHODS | {"optimizer": {"name": "SGD", "lr": 1.0}, "loss_scale": {"kind": "fixed", "init": 256.0}}
    boosted = apply(config, model, task.new_optimizer(model))
    boosted.backward(task.compute_loss(boosted.model, next(task.batches(0))))
    boosted.step()
    moved = torch.cat([(b - p).flatten() for b, p in zip(before, model.parameters(), strict=True)]).norm().item()
    assert moved == pytest.approx(1e-3, rel=1e-2)


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
