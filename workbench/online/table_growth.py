"""How full the tables of a network have become."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import nn

__all__ = ["GrowingTable", "Occupancy", "table_figures"]


class Occupancy(Protocol):
    """How full a table is."""

    @property
    def rows_in_use(self) -> int:
        """Rows that belong to an id."""
        ...

    @property
    def evictions(self) -> int:
        """Rows that were taken from one id and given to another."""
        ...


@runtime_checkable
class GrowingTable(Protocol):
    """A module that hands out rows, such as ``workbench.optim.embeddings.EvictingEmbedding``."""

    def occupancy(self) -> Occupancy:
        """Return how full it is."""
        ...


def table_figures(network: nn.Module) -> dict[str, float]:
    """Return the figures of all growing tables of a network together, by column; empty when it has none.

    Args:
        network: Searched with all its modules.
    """
    tables = [module.occupancy() for module in network.modules() if isinstance(module, GrowingTable)]
    if not tables:
        return {}
    return {
        "online.table_rows": float(sum(table.rows_in_use for table in tables)),
        "online.table_evictions": float(sum(table.evictions for table in tables)),
    }
