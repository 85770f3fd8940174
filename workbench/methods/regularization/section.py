"""Section ``regularization``: what keeps a short run from fitting noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from workbench.config.boost import OPTIMIZER_STEPS
from workbench.config.conditions import Condition, is_not
from workbench.config.section import MethodSection, described

if TYPE_CHECKING:
    from workbench.config.boost_config import BoostConfig
    from workbench.config.facts import Facts

_SMOOTHS = Condition(
    lambda _config, facts: "" if facts.network is None else facts.network.no_smoothing,
    "the criterion has label smoothing",
)


class RegularizationSection(MethodSection):
    """Section ``regularization``."""

    label_smoothing: float = described(
        0.0,
        "Label smoothing",
        "Share of each label that is spread over all classes in training; 0 leaves the criterion as it is. Evaluations "
        "use the task's own criterion.",
        low=0.0,
        high=0.2,
        ge=0,
        lt=1,
        step_time=False,
        when=OPTIMIZER_STEPS & _SMOOTHS,
    )
    weight_average: Literal["none", "ema"] = described(
        "none",
        "Average of the weights",
        "ema evaluates with an exponential moving average of the weights, taken after every applied update.",
        when=OPTIMIZER_STEPS,
    )
    decay: float = described(
        0.99,
        "Decay",
        "Share of the average that an update leaves; less in the first updates, (1 + t) / (10 + t).",
        low=0.9,
        high=0.999,
        ge=0,
        lt=1,
        step_time=False,
        when=OPTIMIZER_STEPS & is_not("regularization.weight_average", "none", "no average is taken"),
    )

    @property
    def enabled(self) -> bool:
        """Whether labels are smoothed or weights averaged."""
        return self.label_smoothing > 0 or self.weight_average != "none"

    def why_not(self, config: BoostConfig, facts: Facts) -> str:
        """Return why nothing here acts."""
        only_labels = self.weight_average == "none"
        return OPTIMIZER_STEPS.why_not(config, facts) or (_SMOOTHS.why_not(config, facts) if only_labels else "")

    def left_out(self, config: BoostConfig, facts: Facts) -> Mapping[str, str]:
        """Return why labels are not smoothed although weights are averaged."""
        reason = _SMOOTHS.why_not(config, facts) if self.label_smoothing > 0 else ""
        return {"label_smoothing": reason} if reason else {}

    def summary(self) -> str:
        """Return what acts in a few words."""
        labels = f"label smoothing {self.label_smoothing:.3g}" if self.label_smoothing > 0 else ""
        weights = f"weight average {self.decay:.3g}" if self.weight_average != "none" else ""
        return ", ".join(part for part in (labels, weights) if part)
