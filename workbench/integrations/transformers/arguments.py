"""What of a set-up the arguments of Hugging Face's Trainer carry (transformers 5), and their values.

Where the Trainer's arithmetic differs from ours: its warm-up begins at a rate of zero where ours begins with the first
step of the rise, so that its course lags ours by one update; it leaves biases and the weights of normalizations out of
the weight decay; and it smooths labels in its evaluation loss, too.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from workbench.config import BoostConfig, ConfigLike, read_config
from workbench.core.warning import warn
from workbench.integrations.carried import ACCUMULATION, FORMATS, RATES, Carried, Sorting, learning_rate
from workbench.methods.batch.section import BatchSection
from workbench.methods.in_effect import MethodsInEffect
from workbench.methods.registry import METHODS

if TYPE_CHECKING:
    from transformers import TrainingArguments

_FRAMEWORK = "the Trainer"
_OPTIMIZERS = {"AdamW": "adamw_torch_fused", "SGD": "sgd", "RMSprop": "rmsprop", "Adagrad": "adagrad"}
# What goes into `optim_args`, a text of the form "momentum=0.9,nesterov=true".
_OPTIMIZER_TEXT = {"SGD": ("momentum", "nesterov"), "RMSprop": ("momentum", "eps"), "Adagrad": ("eps",)}
_GROUP_SCALES = tuple(method.switch for method in METHODS if method.section == "loss_scale")
_WSD_DECAY = 0.4  # as `workbench.methods.schedule.method`
_FLOOR = {"cosine": "cosine_with_min_lr", "linear": "polynomial"}  # with a final rate above zero


def carried(config: ConfigLike, *, level: str = "O1", total_steps: int | None = None) -> Carried:
    """Say which choices of a configuration ``TrainingArguments`` carries, and why it cannot carry the others.

    Configuration and level are those of `workbench.apply`. Every choice is in ``carriers`` or in ``left``.
    ``arguments`` holds the values that do not depend on how the training is set up today; a carrier that is not among
    them (the batch size, the number of epochs, a rate that follows the batch, ...) is what :func:`training_arguments`
    computes from today's. ``total_steps`` are the batches of the data loader today, where the training is a whole new
    one with today's optimizer: arguments that count updates are then known, too.

    Example:
        >>> set_up = carried({"amp": {"level": "O2", "dtype": "bfloat16"}, "batch": {"factor": 4.0}}, level="O0")
        >>> dict(set_up.arguments), set_up.is_whole
        ({'bf16': True}, True)
        >>> set_up.carriers["batch.factor"]
        ('per_device_train_batch_size',)
    """
    return _Sorted(read_config(config), level, {}, total_steps).answer()


def training_arguments(
    config: ConfigLike, *, level: str = "O1", today: TrainingArguments | None = None, total_steps: int | None = None
) -> dict[str, Any]:
    """Return the keyword arguments of ``TrainingArguments`` that carry a set-up.

    ``dataclasses.replace(args, **training_arguments(config, today=args))`` are today's arguments with the set-up.
    What they cannot carry is named in one warning: ``BoostedTrainer(..., boost=config)`` takes all of it.

    Args:
        config: Configuration, dictionary, or path of a ``boost_config.json``.
        level: Boost level, as for ``apply``.
        today: The arguments that the model is trained with today; None stands for the Trainer's defaults.
        total_steps: Batches of the data loader that the model is trained for today, for arguments that count updates.
            Without it they are counted where ``today.max_steps`` says so, else in epochs.

    Returns:
        Names and values; empty for a configuration that changes nothing.

    Raises:
        ConfigError: When the configuration is not valid.
        ValueError: When today's batch cannot be cut into as many equal parts as the set-up asks for, or its schedule
            (``warmup_stable_decay``) counts updates and nothing says how many there are.
    """
    if today is None:
        from transformers import TrainingArguments  # only where its defaults are asked for

        given = {one.name: one.default for one in dataclasses.fields(TrainingArguments)}
    else:
        given = {one.name: getattr(today, one.name) for one in dataclasses.fields(today)}
    found = _Sorted(read_config(config), level, given, total_steps).answer()
    if found.left:
        listed = "; ".join(f"{paths} ({why})" for why, paths in found.left_by_reason.items())
        warn(f"these arguments are not the whole set-up; BoostedTrainer(..., boost=config) also takes {listed}")
    return dict(found.arguments)


class _Sorted:
    """A configuration on its way into the Trainer's arguments; those of today are empty where they are not known."""

    def __init__(self, config: BoostConfig, level: str, today: Mapping[str, Any], total_steps: int | None) -> None:
        self.config, self.today = config, today
        self.plan = config.resolve(level)
        self.sorting = Sorting(_FRAMEWORK, self.plan)
        methods = MethodsInEffect(self.plan)
        if total_steps is None and today.get("max_steps", 0) > 0:
            total_steps = today["max_steps"]
        self.total_steps = total_steps
        self.rate: float | None = None  # the one that the arguments set
        self.updates = None if total_steps is None else max(1, methods.passes(total_steps) // methods.n_micro())

    def answer(self) -> Carried:
        """Return where every choice goes."""
        self._precision()
        self._optimizer()
        self._length()
        self._shape()
        self._runtime()
        micro_batches, switch = ACCUMULATION
        self.sorting.take(micro_batches, lambda n: {"gradient_accumulation_steps": n}, switch)
        self.sorting.take("regularization.label_smoothing", lambda share: {"label_smoothing_factor": share})
        found = self.sorting.done()
        known = {name: value for name, value in found.arguments.items() if value is not None}
        return dataclasses.replace(found, arguments=known)

    def _precision(self) -> None:
        sorting, amp = self.sorting, self.config.amp
        if amp.level == "O3":
            sorting.leave("the Trainer casts no weights", "amp")
        if amp.level == "auto":
            sorting.leave("the level depends on the device; name one", "amp")
        if amp.level != "O2":
            return
        if amp.keep_batchnorm_fp32 is False:
            sorting.leave("under autocast the Trainer keeps every weight in float32", "amp")
            return
        if amp.dtype == "bfloat16":
            sorting.carry(*FORMATS, bf16=True)
        elif sorting.scales_as_torch and not sorting.is_chosen(*_GROUP_SCALES):
            sorting.carry(*FORMATS, "loss_scale.kind", fp16=True)
        else:
            scaler = "fp16=True brings torch's dynamic loss scale with its defaults, and no argument changes it"
            sorting.leave(scaler, "amp", "loss_scale", *_GROUP_SCALES)

    def _optimizer(self) -> None:
        section = self.config.optimizer
        if section is None or section.name is None:
            self._own_optimizer()
            return
        name = section.name
        if name not in _OPTIMIZERS:
            self.sorting.leave(f"the Trainer has no optimizer {name}", "optimizer", *RATES)
            return
        # What the section leaves out is torch's own default, and the Trainer's arguments have others.
        usual = inspect.signature(getattr(torch.optim, name)).parameters
        values = {one: usual[one].default for one in ("lr", "weight_decay", "betas", "eps", "momentum") if one in usual}
        values |= section.hyper_parameters()
        self.rate = learning_rate(self.config, values["lr"])
        carry = self.sorting.carry
        carry("optimizer.name", optim=_OPTIMIZERS[name])
        carry(*RATES, learning_rate=self.rate)
        carry("optimizer.weight_decay", weight_decay=float(values["weight_decay"]))
        if name == "AdamW":
            carry("optimizer.betas", adam_beta1=values["betas"][0], adam_beta2=values["betas"][1])
            carry("optimizer.eps", adam_epsilon=values["eps"])
        else:
            text = {one: values[one] for one in _OPTIMIZER_TEXT[name] if one in values}
            written = ",".join(f"{one}={str(value).lower()}" for one, value in text.items())
            carry(*(f"optimizer.{one}" for one in text), optim_args=written)

    def _own_optimizer(self) -> None:
        """Change the arguments of the current optimizer."""
        section = self.config.optimizer
        if self.sorting.is_chosen(*RATES):
            self.rate = learning_rate(self.config, self.today.get("learning_rate"))
            self.sorting.carry(*RATES, learning_rate=self.rate)
        if section is None:
            return
        self.sorting.take("optimizer.weight_decay", lambda decay: {"weight_decay": decay})
        optim = self.today.get("optim", "adam")
        is_adam = "adam" in str(getattr(optim, "value", optim))
        if is_adam and section.betas is not None:
            self.sorting.carry("optimizer.betas", adam_beta1=section.betas[0], adam_beta2=section.betas[1])
        if is_adam and section.eps is not None:
            self.sorting.carry("optimizer.eps", adam_epsilon=section.eps)
        self.sorting.leave("the Trainer takes it with a named optimizer only", "optimizer")

    def _length(self) -> None:
        sorting, factor = self.sorting, self.config.part(BatchSection).factor
        if sorting.is_chosen("batch.factor"):
            batch, size = self.today.get("per_device_train_batch_size"), None
            if batch is not None:
                size = batch * factor
                if size < 1 or size != round(size):
                    raise ValueError(
                        f"`batch.factor` of {factor:g} cuts each batch into {round(1 / factor)} equal parts, which a "
                        f"`per_device_train_batch_size` of {batch} does not allow"
                    )
            sorting.carry("batch.factor", per_device_train_batch_size=None if size is None else int(size))
        shorter, counted = sorting.is_chosen("schedule.length"), self.today.get("max_steps", 0) > 0
        if self.updates is not None and (shorter or counted) and self.updates != self.total_steps:
            sorting.carry("schedule.length", max_steps=self.updates)
        elif shorter:
            epochs = self.today.get("num_train_epochs")
            length = float(sorting.value("schedule.length"))
            sorting.carry("schedule.length", num_train_epochs=None if epochs is None else round(epochs * length, 9))

    def _shape(self) -> None:
        sorting, shape = self.sorting, self.sorting.value("schedule.shape")
        if shape == "task":
            self._stretch_warmup()
            return
        warmup, final = float(sorting.value("schedule.warmup")), float(sorting.value("schedule.final"))
        kind = str(shape)
        # Those of today are its shape's.
        options: dict[str, Any] | None = {} if self.today.get("lr_scheduler_kwargs") else None
        if shape == "constant":
            kind = "constant_with_warmup" if warmup > 0 else "constant"
        elif shape == "warmup_stable_decay":
            options = self._stable_decay(warmup, final)
        elif final > 0 and shape == "linear" and self.rate is None and not self.today and self.total_steps is not None:
            sorting.leave(
                "the Trainer's linear schedule ends at a fixed rate, and today's optimizer has rates of its own",
                "schedule",
            )
            return
        elif final > 0:
            kind, options = _FLOOR[shape], self._floor(shape, final)
        sorting.carry("schedule.warmup", warmup_steps=warmup)
        sorting.carry("schedule.shape", "schedule.final", lr_scheduler_type=kind, lr_scheduler_kwargs=options)

    def _floor(self, shape: str, final: float) -> dict[str, Any] | None:
        if shape == "cosine":
            return {"min_lr_rate": final}
        highest = self.rate or self.today.get("learning_rate")
        return None if highest is None else {"lr_end": final * highest, "power": 1.0}

    def _stable_decay(self, warmup: float, final: float) -> dict[str, Any] | None:
        if self.updates is None:
            if not self.today:
                return None
            raise ValueError(
                "the schedule warmup_stable_decay counts its last updates; give training_arguments() `total_steps`, "
                "today's epochs times batches per epoch"
            )
        rise = math.ceil(self.updates * warmup)
        return {
            "num_decay_steps": max(1, round(_WSD_DECAY * (self.updates - rise))),
            "decay_type": "linear",
            "min_lr_ratio": final,
        }

    def _stretch_warmup(self) -> None:
        """Let a warm-up that is counted in updates take the same share of another number of them."""
        warmup = self.today.get("warmup_steps")
        if warmup is not None and warmup >= 1 and self.updates != self.total_steps and self.total_steps is not None:
            assert self.updates is not None
            self.sorting.carry(warmup_steps=max(1, round(warmup * self.updates / self.total_steps)))

    def _runtime(self) -> None:
        sorting = self.sorting
        if sorting.is_chosen("runtime.compile"):
            mode = sorting.value("runtime.compile")
            named = {} if mode == "default" else {"torch_compile_mode": mode}
            sorting.carry("runtime.compile", torch_compile=True, **named)
        if sorting.value("runtime.matmul_precision") == "high":
            sorting.carry("runtime.matmul_precision", tf32=True)
        if sorting.value("runtime.data") == "prefetch":
            sorting.carry("runtime.data", dataloader_num_workers=max(1, self.today.get("dataloader_num_workers") or 0))
        sorting.leave("it is a setting of torch's; make it before the training", "runtime.cudnn_benchmark")
        sorting.leave("it is a setting of torch's: torch.set_num_threads()", "runtime.threads")
        sorting.leave("the Trainer leaves the model as it is: model.to(memory_format=...)", "runtime.memory_format")
