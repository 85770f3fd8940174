"""What the Trainer and a set-up would both do, so that one of them has to leave it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workbench.config import Plan
from workbench.integrations.carried import accumulates_twice

if TYPE_CHECKING:
    from transformers import TrainingArguments

_STEPS_IN_BACKWARD = ("lomo", "adalomo", "galore_adamw_layerwise", "galore_adamw_8bit_layerwise",
                      "galore_adafactor_layerwise", "apollo_adamw_layerwise")  # fmt: skip
_FOLLOW_EVALUATIONS = ("reduce_lr_on_plateau", "greedy")


def conflict(args: TrainingArguments, plan: Plan, scheduler: Any = None) -> str:
    """Return the first thing that would be done twice, or that a boosted step cannot do, and the way out; else empty.

    ``scheduler`` is the learning-rate scheduler that the Trainer was given as an object, if any.
    """
    return next(_conflicts(args, plan, scheduler), "")


def _conflicts(args: TrainingArguments, plan: Plan, scheduler: Any) -> Iterator[str]:
    config, effective = plan.config, plan.parameters_in_effect()
    amp, scheduled = config.amp, str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if args.fp16:
        yield "`fp16=True` scales the loss, as a set-up does; leave it out, and set amp.level O2 in the configuration"
    if args.bf16 and amp.level != "O0":
        yield f"`bf16=True` meets amp.level {amp.level} ({amp.dtype}) of the configuration; leave it out"
    if sentence := accumulates_twice(args.gradient_accumulation_steps):
        yield sentence
    if args.torch_compile and effective.get("runtime.compile", "off") != "off":
        yield "`torch_compile=True` meets runtime.compile of the configuration; leave it out"
    if args.label_smoothing_factor and effective.get("regularization.label_smoothing", 0.0):
        yield (
            "`label_smoothing_factor` meets regularization.label_smoothing of the configuration; leave it at 0, and "
            "only the training is smoothed"
        )
    if scheduler is not None:
        yield (
            "`optimizers` holds a learning-rate scheduler, but the set-up steps the schedule; give "
            "optimizers=(optimizer, None), and name the schedule of today in TrainingArguments(lr_scheduler_type=...) "
            "or in create_scheduler()"
        )
    if scheduled in _FOLLOW_EVALUATIONS:
        yield (
            f"`lr_scheduler_type` {scheduled} follows the evaluations, a set-up's schedule the updates; name another "
            "one, such as linear"
        )
    optimizer = str(getattr(args.optim, "value", args.optim))
    if optimizer in _STEPS_IN_BACKWARD:
        yield f"`optim` {optimizer} updates during the backward pass, before the set-up can act; name another optimizer"
    if args.max_grad_norm > 0 and effective.get("optimizer.name") == "adam_offload":
        yield (
            f"`max_grad_norm` is {args.max_grad_norm:g}, but adam_offload takes the gradients off the device one by "
            "one, before their norm is known; set it to 0"
        )
    if args.auto_find_batch_size:
        yield "`auto_find_batch_size` would change the batch that the set-up was measured with; leave it out"
    if args.deepspeed or args.fsdp:
        yield f"`{'deepspeed' if args.deepspeed else 'fsdp'}` shards what the set-up steps as a whole; leave it out"
    if args.n_gpu > 1:
        yield (
            f"{args.n_gpu} GPUs in one process would train as one DataParallel; start a process for each, with "
            "torchrun --nproc-per-node, or let the process see one (CUDA_VISIBLE_DEVICES)"
        )
