"""The callback that trains a LightningModule under a set-up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden

from workbench.config import ConfigLike, read_config
from workbench.integrations.carried import ACCUMULATION
from workbench.integrations.lightning.batches import RunBatches, changes_batches, count_, feed_
from workbench.integrations.lightning.precision import BoostPrecision, is_plain
from workbench.methods.protocol import GroupSchedule
from workbench.training import Boosted

_STATE = BoostPrecision.__qualname__  # where Lightning keeps the plugin's state in a checkpoint


class Boost(Callback):
    """Train a LightningModule under a set-up, with Lightning's own loop, loggers and checkpoints.

    One line is added: the callback. When the module's ``configure_optimizers`` has made its optimizer, the set-up is
    applied to it and to the module's network, and from then on it decides about precision, loss scale, update, schedule
    and batches. Validation, test and prediction run with averaged weights, where there are any; checkpoints hold these
    under ``state_dict``, and everything else that resumption needs next to it; after the training the module has them.

    The learning rate follows the set-up's schedule, else that of the module's schedulers, stretched to the length of
    the run; Lightning steps none. ``trainer.global_step`` counts forward passes, ``max_epochs`` and ``max_steps`` say
    how long the module is trained today. On several ranks (``strategy="ddp"``) the gradients are averaged by us.

    Args:
        config: Configuration, dictionary, or path of a ``boost_config.json``.
        level: Boost level; decides about the methods that the configuration does not switch on or off itself.
        seed: Seed of the freezing schedule.
        criterion: The attribute of the module that holds its criterion, whose labels the set-up may smooth; None takes
            its one attribute that is a loss of ``torch.nn``.
        scheduler: Today's schedule as `workbench.apply` takes it; None for the schedulers of the module.

    Raises:
        ConfigError: When the configuration is not valid.
        ValueError: When the training begins, and the Trainer or the module does by itself what the set-up decides, or
            does something that does not go together with it; the sentence says what and how.

    Example::

        trainer = Trainer(max_epochs=10, callbacks=[Boost("boost_config.o1.json")])
        trainer.fit(module, datamodule)
    """

    def __init__(
        self,
        config: ConfigLike,
        *,
        level: str = "O1",
        seed: int = 0,
        criterion: str | None = None,
        scheduler: Callable[[Any, int], Any] | None = None,
    ) -> None:
        self.config = read_config(config)
        self.level, self.seed, self.criterion, self.scheduler = level, seed, criterion, scheduler
        self.config.resolve(level)  # so that a level that is none shows here
        self._plugin: BoostPrecision | None = None
        self._batches: RunBatches | None = None
        self._overflows = torch.zeros(())
        self._limits: tuple[int | None, int] | None = None  # today's epochs and steps
        self._settings = contextlib.ExitStack()  # of the process, while it trains
        self._average = contextlib.ExitStack()  # in the weights' place, while it evaluates

    @property
    def boosted(self) -> Boosted | None:
        """The boosted pair; None until the training has begun."""
        return None if self._plugin is None else self._plugin.boosted

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what does not go together, and take the place where Lightning asks for a step."""
        if stage != "fit":
            return
        refuse(trainer, pl_module)
        self._plugin = BoostPrecision(self, trainer)
        trainer.strategy.precision_plugin = self._plugin
        self._loading = pl_module.register_load_state_dict_pre_hook(_load_later)  # type: ignore[no-untyped-call]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuse to resume a different training."""
        is_over = self.boosted is not None and self.boosted.has_weights_to_use
        if self._plugin is not None and not is_over and _STATE not in checkpoint:
            raise ValueError(
                "the checkpoint was made without Boost, so that the training cannot be resumed from it; load its "
                "weights into the module, and fit without ckpt_path"
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let weights be loaded as usual again: the network has its form."""
        self._loading.remove()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the batches of the run in the place of the loader's, where they differ."""
        boosted = self._now
        self._overflows = torch.zeros((), device=boosted.device)
        tries = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]  # set by a function of Lightning's
        if tries or not changes_batches(boosted):
            self._settings.enter_context(boosted.methods.running())
            return
        self._limits = trainer.max_epochs, trainer.max_steps
        self._batches = feed_(trainer, boosted)
        self._settings.callback(self._batches.close)
        count_(trainer, self._batches)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the trainer how long this epoch is."""
        if self._batches is not None:
            count_(trainer, self._batches)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log loss scale, overflows so far and frozen groups, where there are any."""
        outcome = self._plugin.outcome if self._plugin is not None else None
        if outcome is None or not trainer.loggers:
            return
        boosted, columns = self._now, {}
        if not boosted.loss_scaling.is_unit:
            self._overflows = self._overflows + outcome.overflow
            columns = {"boost/loss_scale": outcome.loss_scale.mean(), "boost/overflows": self._overflows}
        if isinstance(boosted.optimizer, GroupSchedule):
            columns["boost/frozen_groups"] = torch.tensor(float(outcome.frozen_groups))
        for name, value in columns.items():
            pl_module.log(name, value, on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let every parameter require gradients again, and settings be what they were."""
        self._settings.close()
        self._now.finish()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put back what belongs to the process or the module."""
        self._average.close()
        self._settings.close()
        if self.boosted is not None:
            self.boosted.unfreeze()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the module with the weights to use, and the trainer with its own limits."""
        if stage != "fit" or self.boosted is None:
            return
        self.boosted.leave_weights_to_use(pl_module)
        if self._limits is not None:
            trainer.fit_loop.max_epochs, trainer.fit_loop.epoch_loop.max_steps = self._limits
        self._batches = self._limits = None

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the weights to use; those to train on with are in the plugin's state."""
        if self.boosted is not None:
            checkpoint["state_dict"] = self.boosted.weights_to_use(pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put averaged weights in place."""
        if self.boosted is not None:
            self._average.enter_context(self.boosted.evaluating())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the weights back, before a checkpoint is saved."""
        self._average.close()

    @property
    def _now(self) -> Boosted:
        if self.boosted is None:
            raise RuntimeError("Boost has not begun; give it to the Trainer as a callback")
        return self.boosted


def refuse(trainer: Trainer, module: LightningModule) -> None:
    """Raise ValueError where a trainer or a module does by itself what a set-up decides."""
    name = type(module).__name__
    if not module.automatic_optimization:
        raise ValueError(
            f"Boost needs automatic optimization, and {name} has automatic_optimization = False; call workbench.apply "
            "in its training_step instead"
        )
    if type(trainer.strategy) not in (SingleDeviceStrategy, DDPStrategy):
        raise ValueError(f"Boost trains on one device or with strategy='ddp', got {type(trainer.strategy).__name__}")
    if not is_plain(trainer.precision_plugin):
        raise ValueError(
            f"the set-up says in which precision to train; leave out precision={trainer.precision!r}, or say it as "
            '{"amp": {"level": "O2", "dtype": "bfloat16"}}'
        )
    if trainer.accumulate_grad_batches != 1:
        raise ValueError(
            "the set-up says after how many batches to update; leave out "
            f"accumulate_grad_batches={trainer.accumulate_grad_batches}, or say it as {ACCUMULATION[0]}"
        )
    if is_overridden("backward", module):
        raise ValueError(f"Boost runs the backward pass, and {name} has its own backward(); leave it out")


def _load_later(module: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let a module keep its weights when those of a network in another form are loaded: they come with the set-up."""
    own = module.state_dict()
    if own.keys() != state_dict.keys():
        state_dict.clear()
        state_dict.update(own)
