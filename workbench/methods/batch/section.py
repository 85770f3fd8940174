"""Section ``batch``: how many samples go into one forward pass, relative to the loader's batches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from workbench.config.boost import OPTIMIZER_STEPS
from workbench.config.conditions import Condition, is_not
from workbench.config.section import MethodSection, described, one_of_numbers

if TYPE_CHECKING:
    Factor = float  # a choice of floats is fine for a section, but no type
else:
    Factor = one_of_numbers(0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)


class BatchSection(MethodSection):
    """Section ``batch``."""

    needs: ClassVar[Condition] = OPTIMIZER_STEPS

    factor: Factor = described(
        1.0,
        "Batch factor",
        "Loader batches per forward pass and update: above 1 whole batches are concatenated, below 1 each is cut into "
        "equal parts.",
        unit="loader batches",
        when=OPTIMIZER_STEPS,
    )
    lr_rule: Literal["none", "sqrt", "linear"] = described(
        "none",
        "Rule for the rate",
        "How the learning rate follows the factor: not at all, with its root (Adam) or in proportion (SGD).",
        step_time=False,
        when=OPTIMIZER_STEPS & is_not("batch.factor", 1.0, "the batches are the loader's own"),
    )

    @property
    def enabled(self) -> bool:
        """Whether a pass has another size than the loader's batches."""
        return self.factor != 1.0

    def rate_factor(self) -> float:
        """Return what the rule multiplies learning rates by."""
        return {"none": 1.0, "sqrt": math.sqrt(self.factor), "linear": self.factor}[self.lr_rule]

    def summary(self) -> str:
        """Return the factor in a few words."""
        return f"batch x {self.factor:g}"
