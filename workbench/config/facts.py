"""What decides, together with a configuration, which parameters are in effect: level, ranks, and the network's facts.

The network's counts are taken from a fresh copy of it (``workbench.training.task_look``) or, when a network is
boosted, from what was done to it (``AutoBoost``). They are kept here, without torch, so that plans can be resolved
where there is no network: in a study's storage, in a panel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """Counts, and reasons, that decide which methods find something to do.

    A *layer* is a run of parameters that a schedule of groups keeps together, see
    :func:`workbench.methods.parameter_groups.split_into_chunks`.
    """

    batch_norms: int
    removable: int  # those of them that training can spare
    layers: int  # of the network as it is built
    layers_left: int  # once the removable BatchNorms are gone
    removable_by_reference: int  # the same two by the reference's rule of which may go
    layers_left_by_reference: int
    no_smoothing: str = ""  # why the labels cannot be smoothed, after "because"; empty: they can, or not looked at
    no_resolution: str = ""  # why images cannot be smaller for a while, likewise
    no_sequence: str = ""  # why token sequences cannot be shorter for a while, likewise
    no_merging: str = ""  # why batches cannot be concatenated or cut, likewise

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> NetworkFacts:
        """Return what `to_dict` wrote."""
        return cls(**{field.name: stored[field.name] for field in fields(cls) if field.name in stored})

    def to_dict(self) -> dict[str, int | str]:
        """Return counts and reasons by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a configuration meets; where the network is not known every method is taken to find work."""

    level: str = "O0"
    world_size: int = 1
    network: NetworkFacts | None = None
