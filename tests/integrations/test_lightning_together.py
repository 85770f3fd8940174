"""Boost beside what Lightning does: schedules, clipping, loggers, checkpoints, ranks; and what does not go together."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau

import workbench
from tests.integrations.test_lightning import (
    N_TRAIN,
    OFF,
    SET_UPS,
    fitted,
    looped,
    module_of,
    plain_loop,
    pytestmark,
    same_weights,
    trainer,
)
from tests.kit.lit_digits import Digits, LitDigits, small_network
from workbench.integrations.lightning import Boost, from_lightning

__all__ = ["pytestmark"]
ROOT = Path(__file__).parents[2]
FLOAT16, SHORT = SET_UPS["overflows"][0], {"boost": OFF, "schedule": {"length": 0.5}}


class _Watch(Callback):
    """Keeps the rates of a run."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_before_zero_grad(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        self.rates.append(float(optimizer.param_groups[0]["lr"]))


@pytest.mark.parametrize(("interval", "t_max"), [("step", 20), ("epoch", 2)])
def test_the_modules_schedule_is_stretched_to_the_run(interval: str, t_max: int) -> None:
    def schedule(optimizer: Any) -> Any:
        scheduler = {"scheduler": CosineAnnealingLR(optimizer, t_max), "interval": interval}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    plain, today, half = _Watch(), _Watch(), _Watch()
    for callbacks in ([plain], [Boost({"boost": OFF}), today], [Boost(SHORT), half]):
        fitted(*callbacks, module=module_of(schedule=schedule))
    assert today.rates == pytest.approx(plain.rates)
    assert len(half.rates) == 10
    assert (half.rates[0], half.rates[-1]) == pytest.approx((today.rates[0], today.rates[-1]))


def test_unscaled_gradients_are_clipped() -> None:
    _, module = fitted(Boost(FLOAT16), gradient_clip_val=0.05)
    assert same_weights(module, plain_loop(FLOAT16, small_network, clip=0.05)[0])
    assert not same_weights(module, looped("overflows")[0])


@pytest.mark.long
def test_the_network_is_compiled_for_training_steps() -> None:
    config, kinds = {"boost": OFF, "runtime": {"compile": "default"}}, []

    class Look(LitDigits):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            kinds.append(type(self.network).__name__)
            return super().training_step(batch, batch_idx)

    _, module = fitted(Boost(config), module=Look(small_network()), max_steps=2)
    assert kinds == ["OptimizedModule"] * 2
    assert isinstance(module.network, nn.Sequential)


def test_the_logger_gets_loss_scale_and_overflows(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    fitted(Boost(FLOAT16), logger=logger, log_every_n_steps=1)
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["boost/loss_scale"]]
    assert len(rows) == 20
    assert float(rows[-1]["boost/loss_scale"]) == looped("overflows")[1].loss_scale.item()
    overflows = [float(row["boost/overflows"]) for row in rows]
    assert overflows == sorted(overflows)
    assert overflows[-1] > 0


def test_validation_and_checkpoints_have_the_average_and_training_goes_on_without(tmp_path: Path) -> None:
    config = {"boost": OFF, "regularization": {"weight_average": "ema", "decay": 0.9, "label_smoothing": 0.1}}
    seen: dict[str, dict[str, torch.Tensor]] = {}

    class Look(Callback):
        def on_validation_batch_start(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
            seen["validation"] = {name: value.clone() for name, value in pl_module.state_dict().items()}

        def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
            seen["training"] = {name: value.clone() for name, value in pl_module.state_dict().items()}
            trainer.save_checkpoint(tmp_path / "end.ckpt")

    fit, module = fitted(Boost(config), Look())
    saved = torch.load(tmp_path / "end.ckpt", weights_only=True)["state_dict"]
    for name, value in module.state_dict().items():
        assert torch.equal(saved[name], value)
        assert torch.equal(seen["validation"][name], value)
        assert not torch.equal(seen["training"][name], value)
    validated = fit.callback_metrics["val_acc"]
    assert fit.validate(module, datamodule=Digits(), verbose=False)[0]["val_acc"] == pytest.approx(float(validated))


class _Manual(LitDigits):
    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        self.automatic_optimization = False


class _OwnBackward(LitDigits):
    def backward(self, loss: torch.Tensor, *_: Any) -> None:
        loss.backward()


def _plateau(optimizer: Any) -> Any:
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "val_loss"}}


@pytest.mark.parametrize(
    ("make", "config", "options", "sentence"),
    [
        (_Manual, {}, {}, "automatic_optimization = False; call workbench.apply"),
        (_OwnBackward, {}, {}, "has its own backward"),
        (LitDigits, {}, {"precision": "bf16-mixed"}, "leave out precision='bf16-mixed'"),
        (LitDigits, {}, {"accumulate_grad_batches": 2}, "leave out accumulate_grad_batches=2"),
        (lambda net: LitDigits(net, schedule=_plateau), {}, {}, "ReduceLROnPlateau follows a metric"),
        (LitDigits, {}, {"max_epochs": -1}, "how long is the training"),
        (LitDigits, SHORT, {"limit_train_batches": 0.5}, "got limit_train_batches=0.5"),
    ],
    ids=["manual", "backward", "precision", "accumulation", "plateau", "length", "part"],
)
def test_what_does_not_go_together_is_refused(make: Any, config: Any, options: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        fitted(Boost({"boost": OFF, **config}), module=make(small_network()), **options)


def test_a_criterion_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="must name an attribute of LitDigits, got 'lost'"):
        fitted(Boost({"boost": OFF}, criterion="lost"))


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    plain, _ = fitted(max_steps=1)
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(ValueError, match="made without Boost"):
        trainer(Boost({"boost": OFF})).fit(module_of(), datamodule=Digits(), ckpt_path=tmp_path / "plain.ckpt")


RANKS = """
import warnings
warnings.simplefilter("ignore")
import torch
from lightning.pytorch import Trainer, seed_everything
from tests.kit.lit_digits import Digits, LitDigits, small_network
from workbench.integrations.lightning import Boost

config = {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": True}, "grad_freeze": {"param_groups": 2},
          "schedule": {"length": 0.5}, "optimizer": {"lr": 0.05}}
seed_everything(0)
module = LitDigits(small_network())
trainer = Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, callbacks=[Boost(config)])
trainer.fit(module, datamodule=Digits(16, 320))
own = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
both = trainer.strategy.all_gather(own)
if trainer.is_global_zero:
    print("RANKS", len(both), torch.equal(both[0], both[1]), trainer.global_step)
"""


@pytest.mark.long
def test_two_ranks_train_one_model(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS, encoding="utf-8")
    command, own = [sys.executable, str(script)], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=240, check=False)
    assert "RANKS 2 True 10" in done.stdout, done.stderr[-3000:]


def test_a_task_of_a_module_trains_and_is_judged_as_lightning_does(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    task = from_lightning(lambda: LitDigits(small_network()), Digits(n_train=N_TRAIN), metric="val_acc", max_epochs=2)
    assert (task.name, task.metric_name, task.higher_is_better, task.epochs) == ("LitDigits", "val_acc", True, 2)
    result = workbench.train(task, steps=20, seed=0)
    fit, _ = fitted()
    assert result.metric == pytest.approx(float(fit.callback_metrics["val_acc"]), abs=1e-6)


def test_a_task_of_a_module_in_memory_leaves_it_as_it_is() -> None:
    module = module_of()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    task = from_lightning(module, Digits(n_train=N_TRAIN), metric="val_loss", max_steps=30)
    model = task.new_model()
    optimizer = task.new_optimizer(model)
    task.compute_loss(model, next(task.batches(0))).backward()
    optimizer.step()
    assert not task.higher_is_better
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert not any(torch.equal(a, b) for a, b in zip(model.parameters(), module.parameters(), strict=True))


@pytest.mark.long
def test_what_a_search_finds_runs_back_in_lightning(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    task = from_lightning(lambda: LitDigits(small_network()), Digits(), metric="val_acc", max_epochs=4)
    workbench.tune(task, minutes=0.5, allowed_drop=0.05)
    exported = next(tmp_path.rglob("boost_config.o1.json"))
    boost = Boost(exported)
    fit = trainer(boost, max_epochs=4)
    fit.fit(module_of(), datamodule=Digits())
    assert boost.boosted is not None
    assert boost.boosted.step_index == fit.global_step > 0
    plain = trainer(max_epochs=4)
    plain.fit(module_of(), datamodule=Digits())
    assert fit.callback_metrics["val_acc"] > plain.callback_metrics["val_acc"] - 0.1


def blocks() -> list[str]:
    page = (ROOT / "docs/guide/lightning.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_the_guides_examples_run_and_change_two_lines(tmp_path: Path, monkeypatch: Any) -> None:
    today, search, boosted, flags = blocks()
    own = [line for line in boosted.splitlines() if line not in today.splitlines()]
    assert len([line for line in own if line.strip()]) == 2, own
    monkeypatch.chdir(tmp_path)
    config = {"boost": OFF, "schedule": {"length": 0.5, "shape": "linear"}, "optimizer": {"name": "AdamW", "lr": 0.01}}
    workbench.BoostConfig.from_dict(config).save(tmp_path / "boost_config.o1.json")
    names: dict[str, Any] = {}
    quiet = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    names["quiet"] = quiet
    exec(today.replace("Trainer(", "Trainer(**quiet, "), names)
    accuracy = float(names["trainer"].callback_metrics["val_acc"])
    exec(search, names)
    assert names["task"].metric_name == "val_acc"
    exec(boosted.replace("Trainer(", "Trainer(**quiet, "), names)
    assert names["trainer"].global_step == 176
    assert float(names["trainer"].callback_metrics["val_acc"]) > accuracy - 0.03
    exec(flags.replace("Trainer(", "Trainer(**quiet, "), names)
    assert names["trainer"].precision == "bf16-mixed"
