"""Accelerate's loop: its own arguments for what they carry, and the boosted step for the rest.

Accelerate places model and batches, shares them out between ranks and gathers metrics; precision, loss scale,
accumulation, averaging over ranks and the update are the boosted step's. So `prepare` hands it no optimizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from workbench.config import BoostConfig, ConfigLike, read_config
from workbench.core import distributed as ranks
from workbench.integrations.carried import ACCUMULATION, FORMATS, Carried, Sorting, accumulates_twice
from workbench.training.apply import apply
from workbench.training.boosted import Boosted

if TYPE_CHECKING:
    from accelerate import Accelerator


def carried(config: ConfigLike, *, level: str = "O1") -> Carried:
    """Say which choices of a configuration the arguments of ``Accelerator`` carry, and why it cannot carry the others.

    Configuration and level are those of `workbench.apply`.

    Example:
        >>> dict(carried({"amp": {"level": "O2", "dtype": "bfloat16"}}, level="O0").arguments)
        {'mixed_precision': 'bf16'}
    """
    settings = read_config(config)
    sorting = Sorting("Accelerate", settings.resolve(level))
    amp = settings.amp
    if amp.level == "O2" and amp.keep_batchnorm_fp32 is not False:
        if amp.dtype == "bfloat16":
            sorting.carry(*FORMATS, mixed_precision="bf16")
        elif sorting.scales_as_torch:
            sorting.carry(*FORMATS, "loss_scale.kind", mixed_precision="fp16")
    sorting.leave("Accelerate has autocast with torch's own loss scale, and no other precision", "amp", "loss_scale")
    micro_batches, switch = ACCUMULATION
    sorting.take(micro_batches, lambda n: {"gradient_accumulation_steps": n}, switch)
    if sorting.value("runtime.compile") == "default":
        sorting.carry("runtime.compile", dynamo_backend="inductor")
    yours = "it belongs to your loop: optimizer, scheduler and data loader are made there"
    sorting.leave(yours, "optimizer", "schedule", "batch")
    return sorting.done()


def accelerator_arguments(config: ConfigLike, *, level: str = "O1") -> dict[str, Any]:
    """Return the keyword arguments of ``Accelerator`` that carry what they can; `carried` says what they leave.

    They are for a loop without `prepare`, which refuses what both would do.
    """
    return dict(carried(config, level=level).arguments)


def prepare(
    accelerator: Accelerator,
    config: ConfigLike,
    model: nn.Module,
    optimizer: Optimizer,
    loader: Any,
    *,
    epochs: int,
    **options: Any,
) -> tuple[Boosted, Any]:
    """Let Accelerate place a model and share out its batches, and a set-up train it; in place of both's own calls.

    Then ``for batch in boosted.batches(loader, epochs)``, with ``boosted.backward(loss)`` and ``boosted.step()``; the
    loader for evaluations goes through ``accelerator.prepare`` as before. ``accelerator.save_state`` keeps the boosted
    state, too; after ``load_state`` the batches begin at ``start=boosted.step_index``.

    Args:
        accelerator: Without a precision or an accumulation of its own, where the set-up has one.
        config: Configuration, dictionary, or path of a ``boost_config.json``.
        model: The model, not prepared yet.
        optimizer: Its optimizer, not prepared yet.
        loader: Today's batches, not prepared yet; they must have a length.
        epochs: Epochs that the model is trained for today.
        options: As for ``workbench.apply``: ``level``, ``seed``, ``criterion`` (train with ``boosted.criterion``),
            ``example_inputs``, ``scheduler``, ``max_grad_norm``.

    Returns:
        What ``apply`` returns, and the loader as this rank reads it.

    Raises:
        ConfigError: When the configuration is not valid.
        ValueError: When the accelerator and the set-up would both do the same, or it shards the model.
    """
    settings = read_config(config)
    if sentence := _conflict(accelerator, settings):
        raise ValueError(sentence)
    placed = accelerator.prepare_model(model, evaluation_mode=True)  # its averaging of gradients is left to ours
    shared = accelerator.prepare_data_loader(loader)
    boosted = apply(settings, placed, optimizer, epochs * len(shared), **options)
    if ranks.world_size() > 1:
        boosted.distribute()
    accelerator.register_for_checkpointing(boosted)
    return boosted, shared


def _conflict(accelerator: Accelerator, config: BoostConfig) -> str:
    precision, level = accelerator.mixed_precision, config.amp.level
    if precision == "fp16" or (precision != "no" and level != "O0"):
        return (
            f"`mixed_precision` is {precision!r}, but precision and loss scale are the set-up's (amp.level {level}); "
            "leave it out"
        )
    if sentence := accumulates_twice(accelerator.gradient_accumulation_steps):
        return sentence
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP"):
        return f"{kind} shards what the set-up steps as a whole; train with one process per device instead"
    return ""
