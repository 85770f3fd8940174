"""The callback Boost: Lightning's own loop trains as a loop with `apply` does, to the last bit."""

from __future__ import annotations

import functools
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from torch import nn
from torch.optim.lr_scheduler import StepLR

from tests.kit.lit_digits import Digits, LitDigits, residual_network, small_network
from workbench import apply
from workbench.integrations.lightning import Boost
from workbench.training import Boosted

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning"),  # Lightning 2.6 and torch 2.13
    pytest.mark.filterwarnings("ignore:.*prefetch has no effect. a _Resuming reads here:UserWarning"),  # as it should
]

EPOCHS, N_TRAIN = 2, 320  # ten batches each
OFF = {"mode": "manual", "less_bn": False, "grad_freeze": False}
SET_UPS: dict[str, tuple[dict[str, Any], Any]] = {  # switches that are not named are off
    "nothing": ({}, small_network),
    "bfloat16": ({"amp": {"level": "O2", "dtype": "bfloat16"}}, small_network),
    "weights cast": ({"amp": {"level": "O3", "dtype": "bfloat16"}}, small_network),
    "overflows": (
        {"amp": {"level": "O2", "dtype": "float16"}, "loss_scale": {"init": 2.0**24, "window": 4}},
        small_network,
    ),
    "accumulation": (
        {"boost": {**OFF, "grad_accumulation": True}, "grad_accumulation": {"grad_accumulation_step": 4}},
        small_network,
    ),
    "short run of merged batches": (
        {
            "schedule": {"length": 0.7, "shape": "cosine"},
            "batch": {"factor": 2.0, "lr_rule": "sqrt"},
            "optimizer": {"name": "AdamW", "lr": 0.01},
        },
        small_network,
    ),
    "batches in parts": ({"batch": {"factor": 0.5}, "schedule": {"length": 0.5}}, small_network),
    "growing images": ({"curriculum": {"kind": "resolution", "start": 0.5}}, residual_network),
    "batches read ahead": ({"runtime": {"data": "prefetch"}}, small_network),
    "average": ({"regularization": {"weight_average": "ema", "label_smoothing": 0.1}}, small_network),
    "schedule-free": ({"optimizer": {"name": "ScheduleFreeAdamW", "lr": 0.01}}, small_network),
    "layers frozen, norms gone": (
        {"boost": {**OFF, "less_bn": True, "grad_freeze": True}, "grad_freeze": {"param_groups": 4, "freeze_p": 0.4}},
        residual_network,
    ),
}


SET_UPS = {name: ({"boost": OFF, **config}, network) for name, (config, network) in SET_UPS.items()}


def trainer(*callbacks: Callback, **options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    settings = {"max_epochs": EPOCHS, "accelerator": "cpu", "enable_checkpointing": False, **quiet, **options}
    return Trainer(callbacks=list(callbacks), **settings)


def module_of(network: Any = small_network, **options: Any) -> LitDigits:
    seed_everything(0, verbose=False)
    return LitDigits(network(), **options)


def fitted(*callbacks: Callback, module: Any = None, **options: Any) -> tuple[Trainer, LitDigits]:
    """Train a module, a small network's where none is given, by a trainer with these callbacks and options."""
    made, module = trainer(*callbacks, **options), module_of() if module is None else module
    made.fit(module, datamodule=Digits(n_train=N_TRAIN))
    return made, module


def plain_loop(config: dict[str, Any], network: Any, *, clip: float = 0.0) -> tuple[LitDigits, Boosted]:
    """Train as `workbench.apply` says, without Lightning, and put the weights to use in place."""
    module, data = module_of(network), Digits(n_train=N_TRAIN)
    data.setup("fit")
    loader = data.train_dataloader()
    boosted = apply(
        config,
        module.network,
        module.configure_optimizers(),
        EPOCHS * len(loader),
        criterion=module.criterion,
        example_inputs=next(iter(loader))[0],
        max_grad_norm=clip or None,
    )
    module.train()
    for images, targets in boosted.batches(loader):
        with boosted.autocast():
            loss = boosted.criterion(boosted.model(images), targets)
        boosted.backward(loss)
        boosted.step()
    boosted.finish()
    with boosted.evaluating():
        weights = {name: value.clone() for name, value in module.state_dict().items()}
    module.load_state_dict(weights)
    return module, boosted


@functools.cache
def looped(name: str) -> tuple[LitDigits, Boosted]:
    """Train a set-up so once; for reading only."""
    return plain_loop(*SET_UPS[name])


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_without_a_choice_nothing_changes() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return [optimizer], [StepLR(optimizer, 1, 0.5)]

    _, plain = fitted(module=module_of(residual_network, schedule=schedule))
    _, boosted = fitted(Boost({}, level="O0"), module=module_of(residual_network, schedule=schedule))
    assert same_weights(plain, boosted)


class _LeavesOut(LitDigits):
    """Leaves out every fourth batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx % 4 == 1 else super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:.*returned `None`:UserWarning")
def test_batches_that_a_module_leaves_out_are_steps_of_the_schedule() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": StepLR(optimizer, 4, 0.5), "interval": "step"}}

    weights = []
    for callbacks in ([], [Boost({}, level="O0")]):
        seed_everything(0, verbose=False)
        weights.append(fitted(*callbacks, module=_LeavesOut(small_network(), schedule=schedule))[1])
    assert same_weights(*weights)


@pytest.mark.filterwarnings("ignore:.*returned `None`:UserWarning")
def test_a_module_without_an_optimizer_is_refused() -> None:
    def none(optimizer: torch.optim.Optimizer) -> None:
        del optimizer

    with pytest.raises(ValueError, match="Boost needs an optimizer, and configure_optimizers returns none"):
        fitted(Boost({"boost": OFF}), module=module_of(schedule=none))


class _Save(Callback):
    """Saves a checkpoint after so many batches."""

    def __init__(self, after: int, path: Path) -> None:
        self.after, self.path = after, path

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.after:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize(
    "after", [pytest.param(4, marks=pytest.mark.long), 7, pytest.param(13, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", SET_UPS)
def test_lightning_trains_as_a_loop_of_ones_own_and_goes_on_with_the_same_bits(
    name: str, after: int, tmp_path: Path
) -> None:
    config, network = SET_UPS[name]
    after = min(after, 5) if "optimizer" in config else after  # that run has seven passes
    expected, boosted = looped(name)
    boost, path = Boost(config), tmp_path / "middle.ckpt"
    _, module = fitted(boost, _Save(after, path), module=module_of(network), val_check_interval=5)
    assert boost.boosted is not None
    assert boost.boosted.step_index == boosted.step_index
    assert boost.boosted.plan == boosted.plan
    assert same_weights(module, expected)

    resumed, data = module_of(network), _Rest(n_train=N_TRAIN)
    nn.init.zeros_(next(resumed.parameters()))  # what it begins with does not count
    there = _At(data, 0 if feeds(config) else after)
    trainer(Boost(config), there).fit(resumed, datamodule=data, ckpt_path=path)
    assert same_weights(resumed, expected)


def test_after_an_exception_every_parameter_requires_gradients_again() -> None:
    class Fails(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
            if not next(pl_module.parameters()).requires_grad:
                raise InterruptedError

    config = {"boost": {**OFF, "grad_freeze": True}, "grad_freeze": {"param_groups": 2, "freeze_p": 0.9}}
    module = module_of()
    with pytest.raises(InterruptedError):
        fitted(Boost(config), Fails(), module=module)
    assert all(parameter.requires_grad for parameter in module.parameters())


def feeds(config: dict[str, Any]) -> bool:
    """Whether the set-up reads the loader itself, and so knows where to go on."""
    return bool({"batch", "schedule", "curriculum", "runtime"} & config.keys())


class _Rest(Digits):
    """Data whose loader goes on in the middle of an epoch, as a stateful one would."""

    def train_dataloader(self) -> Any:
        self.loader = _Resuming(super().train_dataloader())
        return self.loader


class _Resuming:
    def __init__(self, loader: Any) -> None:
        self.loader, self.seen = loader, 0

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        seen, self.seen = self.seen, 0
        yield from islice(self.loader, seen, None)


class _At(Callback):
    def __init__(self, data: _Rest, seen: int) -> None:
        self.data, self.seen = data, seen

    def on_train_start(self, *_: Any) -> None:
        self.data.loader.seen = self.seen % len(self.data.loader)
