"""Section ``toy``."""

from __future__ import annotations

from workbench.config.conditions import is_not
from workbench.config.section import Section, described

__all__ = ["ToySection"]


class ToySection(Section):
    """Section ``toy``."""

    enabled: bool = described(False, "Toy", "Whether the toy acts.")
    decay: float = described(
        0.5,
        "Decay",
        "Share of the running mean that an update keeps.",
        ge=0.0,
        lt=1.0,
        low=0.1,
        high=0.9,
        when=is_not("toy.enabled", False, "the toy is off"),
    )
