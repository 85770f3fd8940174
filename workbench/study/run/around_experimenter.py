"""What the experimenters that stand around another one have in common: they ask it about the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.config import NetworkFacts
    from workbench.study.run.experimenter import Experimenter

__all__ = ["AroundExperimenter"]


class AroundExperimenter:
    """An experimenter around another one; what is known of the task is handed through.

    Args:
        inner: Who trains.
    """

    def __init__(self, inner: Experimenter) -> None:
        self._inner = inner

    @property
    def metric_name(self) -> str:
        """Name of the task's metric."""
        return self._inner.metric_name

    @property
    def higher_is_better(self) -> bool:
        """Direction of the metric."""
        return self._inner.higher_is_better

    @property
    def data_hash(self) -> str:
        """Hash of the training data; empty when unknown."""
        return self._inner.data_hash

    def environment(self) -> dict[str, Any]:
        """Return versions, hardware and data as plain values."""
        return self._inner.environment()

    def network_facts(self) -> NetworkFacts | None:
        """Return what the task's network offers to the methods."""
        return self._inner.network_facts()
