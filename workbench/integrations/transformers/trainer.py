"""Hugging Face's Trainer with the whole of a set-up: every method, the loss scale, the schedule, the batches.

Who does what::

    the Trainer                              the boosted step
    -----------------------------------      --------------------------------------------------------------
    compute_loss, under                      autocast, label smoothing
    training_step                            backward(loss): scaled, divided by the window
    optimizer.step() after the callbacks     average over ranks, unscale, clip, update or skip, adapt, schedule
    data loader, epochs, max_steps           today's length; merged, cut and shortened batches, as many as are left
    evaluation_loop, save_model, under       evaluating(): with the averaged weights, where there are any
    checkpoint: optimizer.pt                 the boosted state with the weights as they are in training

Where we act there is a method to override, most of them public; `_load_from_checkpoint`, `_load_best_model` and the two
that take the norm of the gradients are the Trainer's own (transformers 5): at their place gradients are still scaled,
and the model may have other modules than the one that was saved.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments
from transformers.trainer_pt_utils import LabelSmoother

from workbench.config import ConfigLike, read_config
from workbench.core import distributed as ranks
from workbench.core.batch import move_batch
from workbench.core.loader import handing_on
from workbench.core.warning import warn
from workbench.core.wrapped_model import unwrapped
from workbench.integrations.transformers.batches import Passes, joining
from workbench.integrations.transformers.conflicts import conflict
from workbench.methods.in_effect import MethodsInEffect
from workbench.methods.protocol import FirstBatch
from workbench.training.apply import apply
from workbench.training.boosted import Boosted
from workbench.training.gradient_reduction import broadcast_from_first

_SMOOTHING = "regularization.label_smoothing"
_OPTIMIZER_FILE = "optimizer.pt"
_MADE_BY_THE_SET_UP = ("create_optimizer", "create_scheduler")


class BoostedTrainer(Trainer):
    """A Trainer that trains by a set-up; everything but ``boost`` is as for ``transformers.Trainer``.

    The ``TrainingArguments`` say how the model is trained *today*: how long, with which optimizer, rate and schedule.
    The set-up changes what it names. ``trainer.boosted`` is what ``workbench.apply`` returns, once training has begun;
    ``print(trainer.boosted)`` says what is in effect. ``state.global_step`` counts updates, so ``logging_steps``,
    ``eval_steps`` and ``save_steps`` do, too. A Trainer of your own joins in as a second base:
    ``class Mine(BoostedTrainer, Seq2SeqTrainer)``.

    Args:
        args: As for ``Trainer``.
        boost: Configuration, dictionary, or path of a ``boost_config.json``.
        boost_level: Boost level; decides about the algorithms that the configuration does not switch on or off itself.
        options: As for ``Trainer``.

    Raises:
        ConfigError: When the configuration is not valid.
        ValueError: When the arguments and the set-up would both do the same, in the words of `conflict`.
    """

    def __init__(self, *args: Any, boost: ConfigLike, boost_level: str = "O1", **options: Any) -> None:
        self.boost_config, self.boost_level = read_config(boost), boost_level
        self.boosted: Boosted | None = None
        super().__init__(*args, **options)
        plan = self.boost_config.resolve(boost_level, world_size=ranks.world_size())
        if sentence := conflict(self.args, plan, self.lr_scheduler):
            raise ValueError(sentence)
        self._smoothing = float(plan.parameters_in_effect().get(_SMOOTHING, 0.0))
        if self._smoothing and self.compute_loss_func is not None:
            raise ValueError(
                f"`{_SMOOTHING}` acts on the model's own loss, and `compute_loss_func` takes its place; smooth the "
                "labels there, and set it to 0"
            )
        self._methods = MethodsInEffect(plan)
        if self._methods.reading() == "prefetch":
            warn("`runtime.data` = prefetch has no effect in the Trainer; set `dataloader_num_workers`")
        self.args = copy.copy(self.args)  # the caller's stay as they are
        self.args.gradient_accumulation_steps = self._methods.n_micro()
        self._passes: Passes | None = None
        self._closure: Callable[[], Tensor] | None = None
        self._grad_norm = torch.zeros((), device=self.args.device)
        self._overflows = torch.zeros((), dtype=torch.int64, device=self.args.device)

    # The run: today's length, and what the set-up makes of it.

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the batches of the set-up, in one of the Trainer's epochs each time."""
        are_joined = self._methods.passes(1000) < self._methods.length(1000)
        with joining(self) if are_joined else contextlib.nullcontext():
            loader = super().get_train_dataloader()
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return handing_on(Passes(loader, self._methods, seed, lambda: self.state.global_step))

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Return the number of samples in a data loader."""
        passes = getattr(dataloader, "dataset", None)
        return int(super().num_examples(passes.loader if isinstance(passes, Passes) else dataloader))

    def set_initial_training_values(self, args: TrainingArguments, dataloader: DataLoader[Any]) -> Any:
        """Let the set-up turn today's training into its own run, and return that run's numbers."""
        passes = dataloader.dataset
        if not isinstance(passes, Passes):
            raise TypeError("get_train_dataloader() was overridden below BoostedTrainer; override it in a second base")
        todays = copy.copy(args)
        todays.gradient_accumulation_steps = 1
        *_, n_examples, _, batch_size, _, total_steps = super().set_initial_training_values(todays, passes.loader)
        self._passes = passes
        updates = self._apply(passes, int(total_steps)).updates or 1
        per_epoch = passes.updates_per_epoch or updates
        per_update = round(batch_size * passes.batches_per_pass * passes.n_micro)
        epochs = math.ceil(updates / per_epoch)
        return epochs, per_epoch, n_examples, updates * per_update, per_update, per_epoch * passes.n_micro, updates

    def _apply(self, passes: Passes, total_steps: int) -> Boosted:
        if self.boosted is not None and self.model_init is None:
            raise RuntimeError(
                "train() was called before, and its set-up has come to its end; make a new BoostedTrainer, or give it "
                "`model_init`"
            )
        for name in _MADE_BY_THE_SET_UP:
            vars(self).pop(name, None)
        theirs: Any = self.create_optimizer() or self.optimizer  # an override may set it only
        # Places the model; a precision or a compiler that the arguments name act inside of what the set-up does.
        prepared = self.accelerator.prepare_model(self.model, evaluation_mode=True)
        config = self.boost_config.with_values({_SMOOTHING: 0.0}) if self._smoothing else self.boost_config
        self.boosted = boosted = apply(
            config,
            prepared,
            theirs,
            total_steps,
            level=self.boost_level,
            seed=self.args.seed,
            example_inputs=FirstBatch(self._plain_loss, lambda: move_batch(passes.first(), self.args.device)),
            scheduler=functools.partial(todays_schedule, self),
        )
        if ranks.world_size() > 1:
            boosted.distribute()
        boosted.observer = self._clip
        passes.boosted = boosted
        self.optimizer, self.lr_scheduler = _BoostedOptimizer(self, boosted, total_steps), None
        # Whatever class makes today's, what the Trainer asks for from here on is the set-up's.
        vars(self).update(create_optimizer=lambda *_: self.optimizer, create_scheduler=self._report_rates)
        # A model that is not the Trainer's own is one that it takes for wrapped, and wraps in nothing.
        self.model_wrapped = _Called(boosted.model) if boosted.model is self.model else boosted.model
        return boosted

    @property
    def _running(self) -> Boosted:
        assert self.boosted is not None  # the Trainer asks for steps when the run has begun
        return self.boosted

    def _plain_loss(self, network: nn.Module, batch: Any) -> Tensor:
        return self.compute_loss(network, dict(batch))  # type: ignore[return-value]  # no outputs are asked for

    def _report_rates(self, *_: Any, **__: Any) -> Any:
        """Return what the Trainer reads the rates from; the boosted step advances the schedule."""
        if not isinstance(self.lr_scheduler, _Rates):
            self.lr_scheduler = _Rates(self._running)  # type: ignore[assignment]  # as much of one as the Trainer uses
        return self.lr_scheduler

    def train(self, *args: Any, **options: Any) -> Any:
        """Train, and leave the weights to use in the model: the average, where the set-up keeps one."""
        try:
            result = super().train(*args, **options)
        finally:
            if self._passes is not None:
                self._passes.close()
            if self.boosted is not None:
                self.boosted.unfreeze()
        self._running.leave_weights_to_use(unwrapped(self._running.model))
        self._running.finish()
        return result

    # One step.

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run the forward and the backward pass of one micro-batch."""
        boosted = self._running
        boosted.model.train()
        inputs = self._prepare_inputs(inputs)
        n_micro = boosted.window.n_steps
        # A count of items is for losses that are sums over it. Most models ignore it, and the Trainer multiplies their
        # loss by the ranks all the same; without it every batch has its mean, as when the set-up was measured.
        counted = num_items_in_batch if n_micro == 1 and self.compute_loss_func is not None else None
        evaluate = functools.partial(self._training_loss, inputs, counted)
        with boosted.autocast():
            loss = evaluate()
        boosted.backward(loss)
        if self.accelerator.sync_gradients:
            self._closure = evaluate
        else:
            boosted.step()
        return loss.detach() / n_micro

    def _training_loss(self, inputs: Any, num_items_in_batch: Any) -> Tensor:
        usual, inputs = self.label_smoother, dict(inputs)
        if self._smoothing:
            self.label_smoother = LabelSmoother(epsilon=self._smoothing)
            shifted = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
            if shifted is not None and "labels" in inputs:  # or a T5 would have nothing to decode
                inputs.setdefault("decoder_input_ids", shifted(labels=inputs["labels"]))
        try:  # a smoother takes the labels out of the dictionary
            loss = self.compute_loss(self._running.model, inputs, num_items_in_batch=num_items_in_batch)
        finally:
            self.label_smoother = usual
        return loss  # type: ignore[return-value]  # a pair only where the outputs are asked for

    def _update(self) -> None:
        """Step, for the optimizer that the Trainer sees."""
        if isinstance(self.lr_scheduler, _Rates):
            self.lr_scheduler.keep()
        closure, self._closure = self._closure, None
        self._overflows += self._running.step(closure).overflow

    def _clip(self, parameters: list[nn.Parameter]) -> None:
        """Clip unscaled gradients, between the backward pass and the update."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.args.max_grad_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.args.max_grad_norm, norm)
        self._grad_norm.copy_(norm)

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        return self._grad_norm  # the step fills it in, before the Trainer reads it

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Tensor:
        return self._grad_norm

    # What is seen of it.

    def evaluation_loop(self, *args: Any, **options: Any) -> Any:
        """Evaluate with the weights to use."""
        if self.boosted is None:
            return super().evaluation_loop(*args, **options)
        if ranks.world_size() > 1:
            broadcast_from_first(self.boosted.model.buffers())  # every rank evaluates with the same statistics
        with self._evaluating(), self.boosted.autocast():
            return super().evaluation_loop(*args, **options)

    def save_model(self, *args: Any, **options: Any) -> None:
        """Save the weights to use."""
        with self._evaluating():
            super().save_model(*args, **options)

    def _evaluating(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.boosted is None else self.boosted.evaluating()

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Log, with the loss scale and the number of overflows where the loss is scaled."""
        boosted = self.boosted
        if boosted is not None and "loss" in logs and not boosted.loss_scaling.is_unit:
            logs["loss_scale"] = float(boosted.loss_scale)
            logs["overflows"] = int(self._overflows)
        super().log(logs, *args, **options)

    # Going on from a checkpoint.

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if not (Path(resume_from_checkpoint) / _OPTIMIZER_FILE).is_file():
            raise ValueError(
                f"{resume_from_checkpoint} holds no {_OPTIMIZER_FILE}, so that training cannot go on from it (was it "
                "saved with save_only_model?); to begin with its weights, give the Trainer the model with them"
            )
        # The weights are loaded with the rest of the state, once the model has been made ready for them.

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.boosted is not None:
            self.boosted.has_weights_to_use = True  # they are what was saved


def todays_schedule(trainer: Trainer, optimizer: Optimizer, updates: int) -> Any:
    """Return the scheduler that a Trainer makes, and leave it with none."""
    trainer.lr_scheduler = None
    made = trainer.create_scheduler(updates, optimizer)
    trainer.lr_scheduler = None
    return made


class _BoostedOptimizer(Optimizer):
    """What the Trainer takes for its optimizer; all that it remembers is the boosted step's."""

    def __init__(self, trainer: BoostedTrainer, boosted: Boosted, total_steps: int) -> None:
        self._trainer, self._boosted, self._total_steps = trainer, boosted, total_steps
        self.defaults: dict[str, Any] = {}
        self.state = {}  # type: ignore[assignment]  # torch's is a defaultdict

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self._boosted.optimizer.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self._trainer._update()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Leave the gradients: the step clears them at the end of a window."""

    def _identity(self) -> dict[str, Any]:
        config = self._trainer.boost_config.to_dict()
        config.pop("provenance", None)
        return {"config": config, "batches": self._total_steps, "ranks": ranks.world_size()}

    def state_dict(self) -> dict[str, Any]:
        overflows = int(self._trainer._overflows)
        return {"boosted": self._boosted.state_dict(), "run": self._identity(), "overflows": overflows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "boosted" not in state:
            raise ValueError(
                "the checkpoint was written by a Trainer without a set-up, and cannot be gone on from with one; to "
                "begin with its weights, give the BoostedTrainer the model with them"
            )
        differs = [name for name, value in self._identity().items() if state["run"].get(name) != value]
        if differs:
            differences = ", ".join(
                "another configuration" if name == "config" else f"{state['run'].get(name)} {name}" for name in differs
            )
            raise ValueError(
                f"the checkpoint belongs to another run: {differences}; resume with the same, or start over"
            )
        self._boosted.load_state_dict(state["boosted"])
        self._trainer._overflows.fill_(state["overflows"])


class _Rates:
    """What the Trainer takes for its scheduler: it reports the rates of the last update, and its steps do nothing."""

    def __init__(self, boosted: Boosted) -> None:
        self._boosted = boosted
        self._kept: list[float | Tensor] = []  # none before they are asked for

    def keep(self) -> None:
        """Remember the rates of the coming update, before the schedule advances."""
        rates = [group["lr"] for group in self._boosted.optimizer.param_groups]
        self._kept = [rate.detach().clone() if isinstance(rate, Tensor) else rate for rate in rates]

    def get_last_lr(self) -> list[float | Tensor]:
        if not self._kept:
            self.keep()
        return self._kept

    def step(self, *_: Any) -> None:
        """Leave it: the boosted step advances the schedule."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state
        self._kept = []


class _Called(nn.Module):
    """The model, under another identity."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **options: Any) -> Any:
        return self.model(*args, **options)
