"""Call modules as in an evaluation, and leave no trace on their training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from workbench.core.own_generators import kept_generators


@contextlib.contextmanager
def evaluation_mode(modules: Sequence[nn.Module], *devices: torch.device) -> Iterator[None]:
    """Put modules into evaluation mode, without gradients; afterwards restore modes and generators."""
    was_training = [child for module in modules for child in module.modules() if child.training]
    for module in modules:
        module.eval()
    try:
        with kept_generators(*devices), torch.no_grad():
            yield
    finally:
        for child in was_training:
            child.training = True
