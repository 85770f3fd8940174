"""Models inside wrappers: torch.compile and DistributedDataParallel keep the given module inside them."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.core.torch_internals import COMPILED


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
