"""Section ``curriculum``: the size of the inputs over the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from workbench.config.boost import OPTIMIZER_STEPS
from workbench.config.conditions import Condition, is_not
from workbench.config.section import MethodSection, described

if TYPE_CHECKING:
    from workbench.config.boost_config import BoostConfig
    from workbench.config.facts import Facts

_RESIZES = Condition(
    lambda _config, facts: "" if facts.network is None else facts.network.no_resolution, "images may be smaller"
)
_SHORTENS = Condition(
    lambda _config, facts: "" if facts.network is None else facts.network.no_sequence, "sequences may be shorter"
)
_POSSIBLE = OPTIMIZER_STEPS & (_SHORTENS | _RESIZES)
_ACTS = Condition(
    lambda config, facts: config.part(CurriculumSection).why_not(config, facts),
    "inputs of that kind may be smaller",
    frozenset({"curriculum.kind"}),
)
_ON = OPTIMIZER_STEPS & is_not("curriculum.kind", "none", "inputs have their full size all along") & _ACTS


class CurriculumSection(MethodSection):
    """Section ``curriculum``: smaller inputs at the beginning of a run."""

    kind: Literal["none", "resolution", "sequence"] = described(
        "none",
        "What grows",
        "resolution: height and width of images (4-D inputs); sequence: the length of token sequences (2-D integers). "
        "Evaluations are at full size.",
        when=_POSSIBLE,
    )
    start: float = described(
        0.5,
        "First size",
        "Size of the first inputs, as a share of the full height and width, or length.",
        low=0.4,
        high=0.8,
        gt=0,
        lt=1,
        when=_ON,
    )
    until: float = described(
        0.5,
        "Until",
        "Share of the updates with smaller inputs; the rest has full size. With 1 no update has.",
        low=0.2,
        high=0.8,
        gt=0,
        le=1,
        step_time=False,
        when=_ON,
    )
    stages: int = described(
        2,
        "Stages",
        "Sizes below the full one, equally far apart and equally long.",
        unit="sizes",
        low=1,
        high=3,
        ge=1,
        step_time=False,
        when=_ON,
    )

    @property
    def enabled(self) -> bool:
        """Whether inputs begin smaller."""
        return self.kind != "none"

    def why_not(self, config: BoostConfig, facts: Facts) -> str:
        """Return why inputs keep their full size."""
        if reason := OPTIMIZER_STEPS.why_not(config, facts):
            return reason
        if self.kind == "none":
            return ""
        return (_RESIZES if self.kind == "resolution" else _SHORTENS).why_not(config, facts)

    def summary(self) -> str:
        """Return sizes and stages in a few words."""
        word = "stage" if self.stages == 1 else "stages"
        return f"{self.kind} from {self.start:.3g} in {self.stages} {word} until {self.until:.3g}"
