"""What the arguments of Hugging Face's Trainer carry of a set-up, and that they mean there what the set-up says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from workbench.integrations.transformers import carried, training_arguments
from workbench.methods.schedule.method import factor_at

NONE = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": False}}


def today(tmp_path: Path, **given: Any) -> Any:
    return transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], **given)


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
