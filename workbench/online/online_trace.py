"""The trace of an online run: what every step records, and the figures of online training beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from torch import nn

from workbench.core.records import Event, StepRecord
from workbench.training.boosted import Boosted
from workbench.training.outcome import StepOutcome
from workbench.training.trace_buffer import TraceBuffer


class StepSink(Protocol):
    """What keeps a run, for example a ``workbench.runs.RunRecorder``."""

    def write(self, records: Iterable[StepRecord], events: Iterable[Event] = ()) -> None:
        """Keep a block of steps and the events among them."""
        ...


class OnlineTrace(TraceBuffer):
    """A trace buffer whose rows carry the figures of online training, and whose blocks go to a sink.

    Norm and maximum of the gradients are recorded if asked for: on a large table they cost as much as a step.
    """

    def __init__(
        self,
        boosted: Boosted,
        sink: StepSink,
        figures: Callable[[StepOutcome], Mapping[str, float]],
        *,
        gradients: bool,
    ) -> None:
        super().__init__(boosted, gradients=gradients)
        self._sink = sink
        self._figures = figures

    def record(self, outcome: StepOutcome, samples: int, columns: Mapping[str, float] | None = None) -> None:
        """Add one step with its figures; no host synchronisation beyond that of the figures."""
        super().record(outcome, samples, {**(columns or {}), **self._figures(outcome)})

    def write(self) -> None:
        """Hand all rows and events to the sink."""
        records, events = self.drain()
        if records or events:
            self._sink.write(records, events)


def table_figures(network: nn.Module) -> dict[str, float]:
    """Return the figures of all growing tables of a network together, by column; empty when it has none.

    A growing table says how full it is by ``occupancy()``, such as ``workbench.optim.embeddings.EvictingEmbedding``.
    """
    asked = (getattr(module, "occupancy", None) for module in network.modules())
    tables = [occupancy() for occupancy in asked if callable(occupancy)]
    if not tables:
        return {}
    return {
        "online.table_rows": float(sum(table.rows_in_use for table in tables)),
        "online.table_evictions": float(sum(table.evictions for table in tables)),
    }
