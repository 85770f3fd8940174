"""Models inside wrappers: torch.compile and DistributedDataParallel keep the given module inside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.core.torch_internals import COMPILED

_GRAPHS_BESIDE_TRAINING = 8  # torch's own default limit: room for evaluation, last batches and the like


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside any number of wrappers; the module itself when there is none."""
    while True:
        inner = model.module if isinstance(model, DistributedDataParallel) else getattr(model, COMPILED, None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def is_compiled(model: nn.Module) -> bool:
    """Return whether torch.compile has wrapped a model, or the one inside a DistributedDataParallel."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return isinstance(getattr(inner, COMPILED, None), nn.Module)


def plain_name(name: str) -> str:
    """Return a parameter's name as the user wrote the network, without the prefixes of DDP and ``torch.compile``."""
    name = name.replace(f"{COMPILED}.", "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def by_plain_names(named: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return tensors by the model's own names; older checkpoints of wrapped models have the wrappers' in front."""
    own = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    return {name if name in own else plain_name(name): value for name, value in named.items()}


def allow_one_graph_per_group(n_groups: int) -> None:
    """Raise ``torch.compile``'s recompile limit so that every group can keep its compiled step; never lower it.

    A compiled graph depends on ``requires_grad``; past the limit torch would silently fall back to eager execution.
    """
    import torch.compiler.config as settings

    # Two graphs per group: training mode and evaluation mode of the same module.
    settings.recompile_limit = max(settings.recompile_limit, 2 * n_groups + _GRAPHS_BESIDE_TRAINING)
    settings.accumulated_recompile_limit = max(settings.accumulated_recompile_limit, 32 * settings.recompile_limit)
