"""Which tables of a network give sparse gradients: rows that were looked up, and nothing of the others."""

from __future__ import annotations

from torch import Tensor, nn


def sparse_tables(network: nn.Module) -> dict[str, Tensor]:
    """Return the trained weights of modules with ``sparse=True``, as embeddings have it, by name."""
    return {
        f"{name}.{own}" if name else own: weight
        for name, module in network.named_modules()
        if getattr(module, "sparse", False) is True
        for own, weight in module.named_parameters(recurse=False)
        if weight.requires_grad
    }
