"""Hugging Face's Trainer with a set-up: what it was before where nothing is chosen, and everything that is chosen."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainerCallback

from tests.kit.chains import assert_same_bits
from tests.kit.configurations import accumulating
from tests.kit.hugging_face import NO_METHODS, arguments, classifier, padded, sentences
from tests.kit.twins import assert_close
from workbench.config import BoostConfig
from workbench.integrations.transformers import BoostedTrainer
from workbench.integrations.transformers.conflicts import conflict
from workbench.methods.schedule.method import factor_at

DATA, HELD_OUT = sentences(), sentences(320)[256:]
FREEZING = {"boost": NO_METHODS["boost"] | {"grad_freeze": True}, "grad_freeze": {"freeze_p": 0.5, "param_groups": 3}}


def boosted(folder: Path, boost: Any, *, dropout: float = 0.0, data: Any = DATA, **given: Any) -> BoostedTrainer:
    extra = {name: given.pop(name) for name in ("callbacks", "data_collator", "optimizers") if name in given}
    args = arguments(folder, **given)
    return BoostedTrainer(classifier(dropout), args, train_dataset=data, eval_dataset=HELD_OUT, boost=boost, **extra)


def theirs(folder: Path, **given: Any) -> Trainer:
    return Trainer(classifier(), arguments(folder, **given), train_dataset=DATA, eval_dataset=HELD_OUT)


def trained(trainer: Any) -> Any:
    trainer.train()
    return trainer


def logged(trainer: Any, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def batches_of(trainer: Any) -> list[Any]:
    """Return a list of what the trainer will be given at each step."""
    step, seen = trainer.training_step, list[Any]()
    trainer.training_step = lambda model, inputs, n=None: (seen.append(inputs), step(model, inputs, n))[1]
    return seen


@pytest.mark.slow
def test_without_a_choice_it_is_the_trainer(tmp_path: Path) -> None:
    usual = {"eval_strategy": "epoch", "num_train_epochs": 2, "max_steps": -1, "max_grad_norm": 0.5}
    plain = trained(theirs(tmp_path, **usual))
    ours = trained(boosted(tmp_path, NO_METHODS, **usual))
    assert ours.state.global_step == plain.state.global_step == 16
    for name in ("loss", "grad_norm", "eval_loss", "learning_rate", "epoch"):
        assert logged(ours, name) == pytest.approx(logged(plain, name), rel=1e-5), name
    assert_close(ours.model, plain.model, rtol=1e-4, atol=1e-6)


def test_the_set_up_says_how_long_and_how(tmp_path: Path) -> None:
    config = NO_METHODS | {
        "schedule": {"length": 0.5, "shape": "cosine", "warmup": 0.2},
        "batch": {"factor": 2.0, "lr_rule": "linear"},
        "optimizer": {"name": "SGD", "lr": 0.1, "momentum": 0.9},
    }
    seen: list[int] = []

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append(state.global_step)

    trainer = boosted(tmp_path, config, logging_steps=1, callbacks=[Watch()])
    batches = batches_of(trainer)
    trainer.train()
    assert seen == list(range(1, 11)), "40 batches, half as many of twice the size"
    assert [len(batch["labels"]) for batch in batches] == [64] * 10
    assert type(trainer.boosted.optimizer).__name__ == "SGD"  # type: ignore[union-attr]
    expected = [0.2 * factor_at(update, 10, "cosine", warmup=0.2) for update in range(10)]
    assert logged(trainer, "learning_rate") == pytest.approx(expected)
    assert trainer.state.epoch == pytest.approx(2.5)


@pytest.mark.slow
def test_texts_of_different_length_are_padded_together(tmp_path: Path) -> None:
    config = NO_METHODS | {"batch": {"factor": 2.0}}
    trainer = boosted(
        tmp_path, config, data=sentences(ragged=True), data_collator=padded, max_steps=8,
        per_device_train_batch_size=4, remove_unused_columns=False,
    )  # fmt: skip
    trainer.eval_dataset = None
    seen = batches_of(trainer)
    trainer.train()
    assert [len(batch["labels"]) for batch in seen] == [8] * 4
    assert all((batch["input_ids"] > 0).any(dim=0).all() for batch in seen), "no column is only padding"


@pytest.mark.slow
def test_an_update_takes_several_batches_and_callbacks_see_it(tmp_path: Path) -> None:
    calls: list[str] = []

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_substep_end(self, *_: Any, **__: Any) -> None:
            calls.append("part")

        def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
            calls.append("gradients" if model.classifier.weight.grad is not None else "none")

        def on_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
            calls.append("cleared" if model.classifier.weight.grad is None else "kept")

    args = {"max_grad_norm": 0.0, "logging_steps": 1, "learning_rate": 1e-3, "lr_scheduler_type": "constant"}
    trainer = boosted(
        tmp_path, accumulating(4), callbacks=[Watch()], per_device_train_batch_size=8, max_steps=32, **args
    )
    trainer.train()
    assert trainer.state.global_step == 8
    assert calls == ["part", "part", "part", "gradients", "cleared"] * 8
    whole = trained(theirs(tmp_path, max_steps=8, **args))
    assert logged(trainer, "loss")[:-1] == pytest.approx(logged(whole, "loss")[:-1], rel=1e-3), "of the same samples"


def test_the_gradients_that_are_clipped_carry_no_scale(tmp_path: Path) -> None:
    config = NO_METHODS | {"loss_scale": {"kind": "fixed", "init": 1024.0}, "optimizer": {"name": "SGD", "lr": 0.5}}
    given = {"max_steps": 6, "logging_steps": 1, "lr_scheduler_type": "constant", "max_grad_norm": 0.05}
    trainer = boosted(tmp_path, config, **given)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    moves = [(b - p).flatten() for b, p in zip(before, trainer.model.parameters(), strict=True)]
    assert 0 < torch.cat(moves).norm().item() <= 6 * 0.5 * 0.05 * 1.001, "six steps of at most rate x norm"
    plain = theirs(tmp_path, **given, optim="sgd")
    plain.args.learning_rate = 0.5
    plain.train()
    assert logged(trainer, "grad_norm") == pytest.approx(logged(plain, "grad_norm"), rel=1e-3)


@pytest.mark.slow
def test_an_overflow_skips_the_update_and_is_logged(tmp_path: Path) -> None:
    config = NO_METHODS | {
        "amp": {"level": "O2", "dtype": "float16"},
        "loss_scale": {"init": 2.0**30, "window": 4, "factor": 4.0},
    }
    trainer = trained(boosted(tmp_path, config, max_steps=20, logging_steps=1))
    scales, overflows = logged(trainer, "loss_scale"), logged(trainer, "overflows")
    assert trainer.state.global_step == 20, "a skipped update counts, as in a schedule"
    assert (overflows[0], overflows) == (1, sorted(overflows))
    assert scales[0] == 2.0**28 > scales[-1]
    assert trainer.state.log_history[-1].keys().isdisjoint({"loss_scale"}), "the summary is the Trainer's"


@pytest.mark.slow
def test_evaluations_and_saved_weights_are_the_averaged_ones(tmp_path: Path) -> None:
    config = NO_METHODS | {"regularization": {"weight_average": "ema", "decay": 0.9}}
    given = {"max_steps": 20, "eval_strategy": "steps", "eval_steps": 10}
    trainer = trained(boosted(tmp_path, config, **given, save_strategy="steps", save_steps=10))
    plain = trained(boosted(tmp_path / "plain", NO_METHODS, **given))
    assert logged(trainer, "loss") == pytest.approx(logged(plain, "loss")), "the training is the same"
    assert logged(trainer, "eval_loss") != pytest.approx(logged(plain, "eval_loss"), rel=1e-3)
    saved = type(trainer.model).from_pretrained(tmp_path / "checkpoint-20")
    assert_same_bits(saved, trainer.model)  # which holds the average when training is over
    assert trainer.evaluate()["eval_loss"] == pytest.approx(logged(trainer, "eval_loss")[1], abs=1e-7)


@pytest.mark.slow
def test_labels_are_smoothed_in_training_alone(tmp_path: Path) -> None:
    given = {"max_steps": 12, "logging_steps": 1}
    smooth = boosted(tmp_path, NO_METHODS | {"regularization": {"label_smoothing": 0.2}}, **given)
    plain = theirs(tmp_path, **given, label_smoothing_factor=0.2)
    smooth.train()
    plain.train()
    assert logged(smooth, "loss") == pytest.approx(logged(plain, "loss"), rel=1e-3)
    plain.label_smoother = None
    assert smooth.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-2)


def test_a_decoder_reads_the_labels_that_are_smoothed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = T5Config(vocab_size=16, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    network = T5ForConditionalGeneration(config)
    tokens = torch.arange(64).view(8, 8) % 15 + 1
    data = [{"input_ids": row, "labels": row} for row in tokens]
    smooth = NO_METHODS | {"regularization": {"label_smoothing": 0.2}}
    trainer = BoostedTrainer(network, arguments(tmp_path, max_steps=2), train_dataset=data, boost=smooth)
    trainer.train()
    assert trainer.state.global_step == 2


RESUMED: dict[str, Any] = {
    "nothing": NO_METHODS,
    "everything": FREEZING
    | {
        "amp": {"level": "O2", "dtype": "bfloat16"},
        "loss_scale": {"kind": "dynamic", "window": 3},
        "schedule": {"length": 0.9, "shape": "cosine"},
        "batch": {"factor": 0.5},
        "curriculum": {"kind": "sequence", "start": 0.5},
        "regularization": {"weight_average": "ema"},
        "optimizer": {"name": "Muon"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("nothing", marks=pytest.mark.long), "everything"])
def test_an_interrupted_training_goes_on_with_the_assert_same_bits(name: str, tmp_path: Path) -> None:
    given = {"save_strategy": "steps", "save_steps": 12, "dropout": 0.1, "max_steps": 30}
    whole = trained(boosted(tmp_path, RESUMED[name], **given))
    resumed = boosted(tmp_path, RESUMED[name], **given)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-12"))
    assert resumed.state.global_step == whole.state.global_step
    assert_same_bits(resumed.model, whole.model)
    assert logged(resumed, "loss")[2:] == logged(whole, "loss")[2:], "the one before is a mean since the checkpoint"


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    given = {"save_strategy": "steps", "save_steps": 4, "max_steps": 8}
    boosted(tmp_path, NO_METHODS, **given).train()
    folder = tmp_path / "checkpoint-4"
    with pytest.raises(ValueError, match="another run: another configuration"):
        boosted(tmp_path, FREEZING, **given).train(resume_from_checkpoint=str(folder))
    with pytest.raises(ValueError, match="another run: 8 batches"):
        boosted(tmp_path, NO_METHODS, **given | {"max_steps": 12}).train(resume_from_checkpoint=str(folder))
    (folder / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match=r"holds no optimizer\.pt"):
        boosted(tmp_path, NO_METHODS, **given).train(resume_from_checkpoint=str(folder))
    theirs(tmp_path / "plain", **given).train()
    with pytest.raises(ValueError, match="by a Trainer without a set-up"):
        boosted(tmp_path, NO_METHODS, **given).train(resume_from_checkpoint=str(tmp_path / "plain" / "checkpoint-4"))


@pytest.mark.slow
def test_frozen_layers_rest_and_are_trainable_again_afterwards(tmp_path: Path) -> None:
    trainer = trained(boosted(tmp_path, FREEZING))
    assert logged(trainer, "loss")[-1] < 0.6
    assert all(parameter.requires_grad for parameter in trainer.model.parameters())
    with pytest.raises(RuntimeError, match=r"train\(\) was called before"):
        trainer.train()


@pytest.mark.slow
def test_after_an_exception_every_parameter_requires_gradients_again(tmp_path: Path) -> None:
    class Fails(TrainerCallback):
        def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
            if not next(model.parameters()).requires_grad:
                raise InterruptedError

    trainer = boosted(tmp_path, FREEZING, callbacks=[Fails()])
    with pytest.raises(InterruptedError):
        trainer.train()
    assert all(parameter.requires_grad for parameter in trainer.model.parameters())


CONFLICTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "nothing": ({}, {}, ""),
    "bf16": ({"bf16": True}, {"amp": {"level": "O2", "dtype": "bfloat16"}}, "`bf16=True` meets amp.level O2"),
    "fp16": ({"fp16": True}, {}, "`fp16=True` scales the loss, as a set-up does; leave it out, and set amp.level O2"),
    "accumulation": ({"gradient_accumulation_steps": 2}, {}, "`gradient_accumulation_steps` is 2"),
    "compile": ({"torch_compile": True}, {"runtime": {"compile": "default"}}, "`torch_compile=True` meets runtime.com"),
    "smoothing": (
        {"label_smoothing_factor": 0.1},
        {"regularization": {"label_smoothing": 0.1}},
        "`label_smoothing_factor` meets regularization",
    ),
    "plateau": ({"lr_scheduler_type": "reduce_lr_on_plateau"}, {}, "`lr_scheduler_type` reduce_lr_on_plateau follows"),
    "greedy": ({"lr_scheduler_type": "greedy"}, {}, "`lr_scheduler_type` greedy follows the evaluations"),
    "steps in backward": ({"optim": "lomo"}, {}, "`optim` lomo updates during the backward pass"),
    "offload": ({}, {"optimizer": {"name": "adam_offload"}}, "`max_grad_norm` is 1, but adam_offload"),
    "batch size": ({"auto_find_batch_size": True}, {}, "`auto_find_batch_size` would change the batch"),
    "deepspeed": ({"deepspeed": "zero.json"}, {}, "`deepspeed` shards what the set-up steps as a whole; leave it out"),
    "fsdp": ({"fsdp": "full_shard"}, {}, "`fsdp` shards what the set-up steps as a whole; leave it out"),
    "GPUs": ({"n_gpu": 4}, {}, "4 GPUs in one process would train as one DataParallel; start a process for each"),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_what_both_would_do_is_refused_with_the_way_out(name: str, tmp_path: Path) -> None:
    given, config, sentence = CONFLICTS[name]
    args = SimpleNamespace(**vars(arguments(tmp_path)) | {"n_gpu": 0} | given)  # some of it only on an accelerator
    told = conflict(args, BoostConfig.from_dict(NO_METHODS | config).resolve("O1"))  # type: ignore[arg-type]
    assert told.startswith(sentence)
    assert bool(told) == bool(sentence)


def test_the_trainer_itself_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`gradient_accumulation_steps` is 2.*leave it at 1"):
        boosted(tmp_path, NO_METHODS, gradient_accumulation_steps=2)


def test_a_scheduler_object_and_a_loss_of_the_users_are_refused_where_they_would_be_overridden(tmp_path: Path) -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    with pytest.raises(ValueError, match=r"optimizers=\(optimizer, None\)"):
        BoostedTrainer(
            model, arguments(tmp_path), train_dataset=DATA, optimizers=(optimizer, scheduler), boost=NO_METHODS
        )
    smoothing = NO_METHODS | {"regularization": {"label_smoothing": 0.1}}
    with pytest.raises(ValueError, match="`compute_loss_func` takes its place"):
        BoostedTrainer(model, arguments(tmp_path), compute_loss_func=lambda *_, **__: None, boost=smoothing)


@pytest.mark.slow
def test_todays_own_precision_and_optimizer_stay_where_nothing_else_is_chosen(tmp_path: Path) -> None:
    losses = []
    for kind, options in ((BoostedTrainer, {"boost": NO_METHODS}), (Trainer, {})):
        model, args = classifier(), arguments(tmp_path, bf16=True, max_steps=12, logging_steps=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trainer = trained(kind(model, args, train_dataset=DATA, optimizers=(optimizer, None), **options))
        losses.append(logged(trainer, "loss"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


class _Own(Trainer):  # type: ignore[misc]
    """Makes a new optimizer and schedule each time it is asked, as some Trainers do."""

    def create_optimizer(self, model: Any = None) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        chosen = self.optimizer if optimizer is None else optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.StepLR(chosen, 2, 0.5)
        return self.lr_scheduler


class _OwnOfBoth(BoostedTrainer, _Own):
    pass


class _OwnBelow(BoostedTrainer):
    create_optimizer, create_scheduler = _Own.create_optimizer, _Own.create_scheduler


@pytest.mark.parametrize("kind", [_OwnOfBoth, _OwnBelow])
def test_an_optimizer_and_a_schedule_of_ones_own_are_todays(kind: Any, tmp_path: Path) -> None:
    losses, rates = [], []
    for one, options in ((_Own, {}), (kind, {"boost": NO_METHODS})):
        args = arguments(tmp_path, max_steps=6, logging_steps=1)
        trainer = trained(one(classifier(), args, train_dataset=DATA, **options))
        losses.append(logged(trainer, "loss"))
        rates.append(logged(trainer, "learning_rate"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert rates[0] == pytest.approx(rates[1])
    assert len(rates[1]) == 6


@pytest.mark.slow
def test_the_best_checkpoint_stays_in_the_model(tmp_path: Path) -> None:
    config = NO_METHODS | {"regularization": {"weight_average": "ema"}}
    trainer = boosted(
        tmp_path, config, save_strategy="steps", save_steps=10, eval_strategy="steps", eval_steps=10,
        load_best_model_at_end=True, metric_for_best_model="eval_loss",
    )  # fmt: skip
    trainer.train()
    best = json.loads((tmp_path / "checkpoint-40" / "trainer_state.json").read_text(encoding="utf-8"))
    number = re.findall(r"\d+$", best["best_model_checkpoint"])[0]
    assert_same_bits(type(trainer.model).from_pretrained(tmp_path / f"checkpoint-{number}"), trainer.model)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(logged(trainer, "eval_loss")), abs=1e-6)


@pytest.mark.slow
def test_every_train_of_a_model_init_begins_anew(tmp_path: Path) -> None:
    trainer = BoostedTrainer(
        model_init=lambda: classifier(0.0), args=arguments(tmp_path, max_steps=8), train_dataset=DATA, boost=FREEZING
    )
    first = trainer.train().training_loss
    assert trainer.train().training_loss == first


@pytest.mark.long
def test_a_faster_set_up_reaches_the_same_quality_within_seeds(tmp_path: Path) -> None:
    config = NO_METHODS | {
        "amp": {"level": "O2", "dtype": "bfloat16"},
        "optimizer": {"lr": 4e-3},
        "schedule": {"length": 0.5, "shape": "linear"},
    }
    metrics: dict[str, list[float]] = {"before": [], "after": []}
    for seed in range(4):
        args = arguments(tmp_path, max_steps=160, seed=seed)
        data: dict[str, Any] = {"train_dataset": DATA, "eval_dataset": DATA}
        before = Trainer(classifier(seed=seed), args, **data)
        after = BoostedTrainer(classifier(seed=seed), args, **data, boost=config)
        for name, trainer in (("before", before), ("after", after)):
            trainer.train()
            metrics[name].append(trainer.evaluate()["eval_loss"])
        assert after.state.global_step == 80
    mean_before, mean_after = (sum(values) / len(values) for values in metrics.values())
    assert mean_after < mean_before + 0.02, metrics


@pytest.mark.slow
def test_a_network_that_loses_batch_norms_is_recorded_trained_saved_and_resumed(tmp_path: Path) -> None:
    from transformers import ResNetConfig, ResNetForImageClassification

    images = torch.randn(32, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    data = [{"pixel_values": image, "labels": int(image.mean() > 0)} for image in images]
    config = {"boost": NO_METHODS["boost"] | {"less_bn": True}}

    def trainer() -> BoostedTrainer:
        torch.manual_seed(0)
        shape = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=2)
        args = arguments(tmp_path, max_steps=8, per_device_train_batch_size=8, save_strategy="steps", save_steps=4)
        return BoostedTrainer(ResNetForImageClassification(shape), args, train_dataset=data, boost=config)

    whole, resumed = trainer(), trainer()
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in whole.model.modules())
    whole.train()
    assert sum(isinstance(module, nn.BatchNorm2d) for module in whole.model.modules()) < norms
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert_same_bits(resumed.model, whole.model)
