"""Learning-rate schedules of the built-in tasks, relative to whatever rate the optimizer was given."""

from __future__ import annotations

import math
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def warmup_cosine_factor(step: int, total_steps: int, warmup_share: float, floor: float) -> float:
    """Return the factor on the base rate: a linear rise, then half a cosine down to ``floor``, where it stays.

    Loshchilov and Hutter, "SGDR", ICLR 2017, arXiv:1608.03983, equation 5, one cycle.
    """
    warmup_steps = round(warmup_share * total_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min((step - warmup_steps) / max(total_steps - warmup_steps, 1), 1.0)
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


def warmup_cosine(optimizer: Optimizer, total_steps: int, *, warmup_share: float = 0.1, floor: float = 0.0) -> LambdaLR:
    """Return a scheduler that rises linearly and falls as half a cosine.

    A factor on the optimizer's own rate rather than ``OneCycleLR``, whose ``max_lr`` would silently override a rate
    chosen in the configuration.
    """
    total = max(total_steps, 1)  # a partial, since a closure could not be pickled
    return LambdaLR(optimizer, partial(warmup_cosine_factor, total_steps=total, warmup_share=warmup_share, floor=floor))
