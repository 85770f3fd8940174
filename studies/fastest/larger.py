"""`topics-gpt` scaled up for an accelerator: 10.7 million parameters, windows of 256 bytes, 32 at a time.

workbench tune studies/fastest/larger.py:topics_gpt_large --minutes 5
"""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from workbench.tasks import Task
from workbench.tasks.batches import ShuffledBatches
from workbench.tasks.topics import ByteTransformer, load_text, topics_gpt, training_starts

CONTEXT, BATCH_SIZE, WIDTH, LAYERS, HEADS = 256, 32, 384, 6, 6


def topics_gpt_large() -> Task:
    """Return the task: the text, optimizer and schedule of `topics-gpt`, a rate for the wider network, 400 batches."""
    small = topics_gpt()
    return dataclasses.replace(
        small,
        name="topics-gpt-large",
        model=functools.partial(ByteTransformer, WIDTH, LAYERS, HEADS, CONTEXT),
        optimizer=functools.partial(torch.optim.AdamW, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True),
        train=_training,
        evaluate=_evaluation,
        description="byte-level transformer of 10.7 million parameters on the text of Python's help topics",
        steps=400,
    )


def _windows(held: tuple[Tensor, Tensor], indices: Tensor) -> tuple[Tensor, Tensor]:
    text, starts = held
    window = text[starts[indices].unsqueeze(1) + torch.arange(CONTEXT + 1, device=starts.device)].long()
    return window[:, :-1], window[:, 1:]


def _training(seed: int) -> ShuffledBatches:
    text = load_text()
    starts, (first, behind) = training_starts(len(text), seed)
    starts = starts[((starts + CONTEXT < first) | (starts >= behind)) & (starts + CONTEXT < len(text))]
    return ShuffledBatches(len(starts), BATCH_SIZE, seed, _windows, held=(text, starts))


def _evaluation(seed: int) -> list[tuple[Tensor, Tensor]]:
    text = load_text()
    _, (first, behind) = training_starts(len(text), seed)
    starts = torch.arange(first, behind - CONTEXT - 1, CONTEXT, device="cpu")
    return [_windows((text, starts), indices) for indices in torch.arange(len(starts), device="cpu").split(64)]
