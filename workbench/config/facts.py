"""What decides beside a configuration which of its parameters are in effect: level, ranks, what the network offers.

The network's counts are taken from a fresh copy of it (``workbench.training.task_look``) or, when a network is
boosted, from what was done to it (``AutoBoost``). They stand here, without torch, so that plans can be resolved with
them where no network is at hand: in a study's storage, in a panel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from workbench.config.compatibility import CompatibilityConfig

if TYPE_CHECKING:
    from workbench.config.boost_config import BoostConfig

__all__ = ["Facts", "NetworkFacts", "cut_into"]


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """Counts, and reasons, that decide which methods find something to do.

    A *layer* is a run of parameters that freezing keeps together, see
    :func:`workbench.methods.parameter_groups.split_into_chunks`.
    """

    batch_norms: int
    removable: int  # those of them that LessBN removes
    layers: int  # of the network as it is built
    layers_left: int  # once LessBN has removed its BatchNorms
    removable_by_reference: int  # the same two with `compatibility.less_bn_match` = reference
    layers_left_by_reference: int
    no_smoothing: str = ""  # why the labels cannot be smoothed, after "because"; empty: they can, or not looked at
    no_resolution: str = ""  # why images cannot be smaller for a while, likewise
    no_sequence: str = ""  # why token sequences cannot be shorter for a while, likewise

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> NetworkFacts:
        """Return what `to_dict` wrote."""
        return cls(**{field.name: stored[field.name] for field in fields(cls) if field.name in stored})

    def to_dict(self) -> dict[str, int | str]:
        """Return counts and reasons by name."""
        return asdict(self)

    def less_bn_acts(self, config: BoostConfig) -> bool:
        """Return whether LessBN changes anything: BatchNorms, or a head where ``compatibility.fn_scope`` asks for it.

        The normalised head and gradient centralization go with removed BatchNorms; without any they would only slow
        training down. The wider scopes, the reference's among them, replace a head all the same.
        """
        asks_for_a_head = config.less_bn.fn_flag and config.compatibility.fn_scope != _USUAL_SCOPE
        by_reference = config.compatibility.less_bn_match == "reference"
        return asks_for_a_head or (self.removable_by_reference if by_reference else self.removable) > 0

    def layers_of(self, config: BoostConfig, *, less_bn: bool) -> int:
        """Return how many layers freezing finds, with LessBN in effect or not, by the rule that chooses BatchNorms."""
        by_reference = config.compatibility.less_bn_match == "reference"
        left = self.layers_left_by_reference if by_reference else self.layers_left
        return left if less_bn else self.layers

    def why_no_less_bn(self, config: BoostConfig) -> str:
        """Return the reason why LessBN is not in effect; empty when it acts."""
        if self.less_bn_acts(config):
            return ""
        if self.batch_norms:
            norms = "its only BatchNorm" if self.batch_norms == 1 else f"any of its {self.batch_norms} BatchNorms"
            return f"this network cannot spare {norms}"
        return "this network has no BatchNorm"

    def why_no_freezing(self, config: BoostConfig, *, less_bn: bool) -> str:
        """Return the reason why freezing is not in effect, with LessBN in effect or not; empty when it acts."""
        layers, groups = self.layers_of(config, less_bn=less_bn), config.grad_freeze.param_groups
        if layers >= groups:
            return ""
        less = "without its BatchNorms " if less_bn else ""
        if layers <= 1:
            return f"{less}{cut_into(layers)}"
        return f"{less}{cut_into(layers)}, fewer than `grad_freeze.param_groups` = {groups}; lower it"


def cut_into(layers: int) -> str:
    """Say into how many groups freezing can cut a network; not how many layers, which people count otherwise."""
    if layers <= 1:
        return "this network is too small to be cut into groups of layers"
    return f"this network can be cut into {layers} groups at most"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a configuration meets; where the network is not known every method is taken to find work."""

    level: str = "O0"
    world_size: int = 1
    network: NetworkFacts | None = None


_USUAL_SCOPE = CompatibilityConfig.model_fields["fn_scope"].default
