"""What the arguments of Hugging Face's Trainer carry of a set-up, and that they mean there what the set-up says."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from workbench.config import BoostConfig
from workbench.integrations.carried import choices
from workbench.integrations.transformers import carried, training_arguments
from workbench.methods.schedule.method import factor_at

transformers = pytest.importorskip("transformers", reason="pip install boost-workbench[test] brings transformers")

NONE = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": False}}
NATIVE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bfloat16": ({"amp": {"level": "O2", "dtype": "bfloat16"}}, {"bf16": True}),
    "float16 with its usual scale": ({"amp": {"level": "O2"}}, {"fp16": True}),
    "compiler": (
        {"runtime": {"compile": "max-autotune"}},
        {"torch_compile": True, "torch_compile_mode": "max-autotune"},
    ),
    "accumulation": (
        {"boost": NONE["boost"] | {"grad_accumulation": True}, "grad_accumulation": {"grad_accumulation_step": 4}},
        {"gradient_accumulation_steps": 4},
    ),
    "smoothing": ({"regularization": {"label_smoothing": 0.1}}, {"label_smoothing_factor": 0.1}),
    "rate": (
        {"optimizer": {"lr": 0.01, "betas": [0.8, 0.9]}},
        {"learning_rate": 0.01, "adam_beta1": 0.8, "adam_beta2": 0.9},
    ),
    "SGD": (
        {"optimizer": {"name": "SGD", "lr": 0.1, "momentum": 0.9, "nesterov": True}},
        {"optim": "sgd", "learning_rate": 0.1, "weight_decay": 0.0, "optim_args": "momentum=0.9,nesterov=true"},
    ),
    "data": ({"runtime": {"data": "prefetch"}}, {"dataloader_num_workers": 1}),
}
LEFT = {
    "scale": ({"amp": {"level": "O2"}, "loss_scale": {"init": 1024.0}}, "amp.level", "dynamic loss scale"),
    "fixed scale": ({"amp": {"level": "O2"}, "loss_scale": {"kind": "fixed"}}, "loss_scale.kind", "loss scale"),
    "cast weights": ({"amp": {"level": "O3", "dtype": "bfloat16"}}, "amp.level", "casts no weights"),
    "auto": ({"amp": {"level": "auto"}}, "amp.level", "depends on the device"),
    "Muon": ({"optimizer": {"name": "Muon"}}, "optimizer.name", "no optimizer Muon"),
    "freezing": ({"boost": NONE["boost"] | {"grad_freeze": True}}, "boost.grad_freeze", "no argument"),
    "average": ({"regularization": {"weight_average": "ema"}}, "regularization.weight_average", "no argument"),
    "growth": ({"curriculum": {"kind": "sequence"}}, "curriculum.kind", "no argument"),
    "threads": ({"runtime": {"threads": 2}}, "runtime.threads", "torch.set_num_threads"),
}


def today(tmp_path: Path, **given: Any) -> Any:
    return transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], **given)


@pytest.mark.parametrize("name", NATIVE)
def test_a_choice_becomes_the_argument_that_says_the_same(name: str, tmp_path: Path) -> None:
    values, expected = NATIVE[name]
    found = carried(NONE | values)
    assert found.is_whole, found.left
    assert dict(found.arguments) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert training_arguments(NONE | values, today=today(tmp_path)) == expected


@pytest.mark.parametrize("name", LEFT)
def test_a_choice_without_an_argument_is_left_with_its_reason_and_named_in_a_warning(name: str, tmp_path: Path) -> None:
    values, path, why = LEFT[name]
    found = carried(NONE | values)
    assert why in found.left[path]
    assert not found.is_whole
    assert {*found.carriers, *found.left} == set(choices(BoostConfig.from_dict(NONE | values).resolve("O1")))
    with pytest.warns(UserWarning, match=rf"BoostedTrainer\(.*{path}.*{why}"):
        training_arguments(NONE | values, today=today(tmp_path))


SHORT = NONE | {
    "schedule": {"length": 0.5},
    "batch": {"factor": 4.0, "lr_rule": "linear"},
    "boost": NONE["boost"] | {"grad_accumulation": True},
    "grad_accumulation": {"grad_accumulation_step": 2},
}  # 400 batches of the loader make 200 x 1/4 passes and half as many updates


def test_lengths_and_rates_follow_todays(tmp_path: Path) -> None:
    assert carried(SHORT).is_whole
    assert carried(SHORT).carriers["schedule.length"] == ("num_train_epochs",)
    usual = today(tmp_path, max_steps=400, per_device_train_batch_size=4, learning_rate=0.01, warmup_steps=40)
    got = training_arguments(SHORT, today=usual)
    assert got.pop("learning_rate") == pytest.approx(0.04)
    counted = {"max_steps": 25, "warmup_steps": 2, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
    assert got == counted
    epochs = training_arguments(SHORT, today=today(tmp_path, num_train_epochs=3))
    assert epochs["num_train_epochs"] == 1.5
    assert "max_steps" not in epochs
    assert training_arguments(SHORT, today=today(tmp_path, num_train_epochs=3), total_steps=400)["max_steps"] == 25
    assert training_arguments(SHORT)["per_device_train_batch_size"] == 32, "the Trainer's default is 8"
    with pytest.raises(ValueError, match=r"4 equal parts, which a `per_device_train_batch_size` of 2"):
        training_arguments(NONE | {"batch": {"factor": 0.25}}, today=today(tmp_path, per_device_train_batch_size=2))


SHAPES = [
    *((shape, final) for shape in ("linear", "cosine") for final in (0.0, 0.1)),
    ("warmup_stable_decay", 0.1),
    ("constant", 0.0),
]


@pytest.mark.parametrize(("shape", "final"), SHAPES)
@pytest.mark.parametrize("warmup", [0.0, 0.1])
def test_the_trainers_schedule_takes_the_course_of_the_set_up(
    shape: str, final: float, warmup: float, tmp_path: Path
) -> None:
    updates = 200
    section = {"shape": shape, "warmup": warmup} | ({} if shape == "constant" else {"final": final})
    usual = today(tmp_path, max_steps=updates, learning_rate=0.5, lr_scheduler_type="cosine_with_restarts")
    got = training_arguments(NONE | {"schedule": section}, today=usual)
    args = dataclasses.replace(usual, **got)
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.5)
    trainer = transformers.Trainer(nn.Linear(1, 1), args, optimizers=(optimizer, None))
    scheduler = trainer.create_scheduler(updates)
    for update in range(updates):
        factor = scheduler.get_last_lr()[0] / 0.5
        near = [factor_at(max(update + off, 0), updates, shape, warmup=warmup, final=final) for off in (-1, 0, 1)]  # type: ignore[arg-type]
        assert min(near) - 0.02 <= factor <= max(near) + 0.02 or (update == 0 and warmup), update
        optimizer.step()
        scheduler.step()


def test_a_schedule_that_counts_its_last_updates_asks_how_many_there_are(tmp_path: Path) -> None:
    config = NONE | {"schedule": {"shape": "warmup_stable_decay"}}
    assert carried(config).is_whole
    with pytest.raises(ValueError, match="give training_arguments\\(\\) `total_steps`"):
        training_arguments(config, today=today(tmp_path))
    options = training_arguments(config, today=today(tmp_path), total_steps=100)["lr_scheduler_kwargs"]
    assert options["num_decay_steps"] == 36


@pytest.mark.parametrize("name", ["AdamW", "SGD", "RMSprop", "Adagrad"])
def test_a_named_optimizer_is_the_one_that_we_would_build(name: str, tmp_path: Path) -> None:
    section: dict[str, Any] = {"name": name, "eps": 1e-6} if name != "SGD" else {"name": name, "momentum": 0.5}
    args = dataclasses.replace(
        today(tmp_path, weight_decay=0.3, adam_beta1=0.1), **training_arguments(NONE | {"optimizer": section})
    )
    made = transformers.Trainer(nn.Linear(2, 2), args).create_optimizer()
    own = getattr(torch.optim, name)(nn.Linear(2, 2).parameters(), **{k: v for k, v in section.items() if k != "name"})
    assert type(made) is type(own)
    for option in ("lr", "betas", "eps", "momentum", "weight_decay", "nesterov"):
        assert made.param_groups[0].get(option) == own.param_groups[0].get(option), option
