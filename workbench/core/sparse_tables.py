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


def values_of(gradient: Tensor) -> Tensor:
    """Return the values of a gradient; of a sparse one those of its rows, with what came for the same row added up."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def why_not_at_rest(network: nn.Module) -> str:
    """Return why a network cannot be frozen in part under DistributedDataParallel; empty where it can."""
    table = next(iter(sparse_tables(network)), None)
    if table is None:
        return ""
    return (
        f"DistributedDataParallel needs a gradient of {table} in every step, since it is sparse, also where gradient "
        "freezing lets it rest; apply() to the plain model and call boosted.distribute() without ddp=True, or take an "
        "nn.Embedding with sparse=False"
    )
