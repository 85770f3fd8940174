"""Section ``loss_scale``: how the backward pass is scaled so that float16 gradients neither vanish nor overflow.

Micikevicius et al., "Mixed Precision Training", ICLR 2018, arXiv:1710.03740, section 3.2.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from workbench.config.conditions import is_not, loss_scale_is, method_on
from workbench.config.errors import shown
from workbench.config.section import Section, described

_LARGEST = 2.0**127  # the scale lives in float32 on the device; the largest power of two it can hold

_DYNAMIC = loss_scale_is("dynamic")
_SCALED = loss_scale_is("fixed", "dynamic")


class LossScaleConfig(Section, use_attribute_docstrings=True):
    """Section ``loss_scale``."""

    kind: Literal["none", "fixed", "dynamic"] | None = described(None, "Kind")
    """none, fixed or dynamic; unset means dynamic under amp O2 with float16, else none."""

    init: float = described(65536.0, "Initial scale", low=16.0, high=2.0**24, log=True, gt=0, le=_LARGEST, when=_SCALED)
    """Scale of the first step (the only one when fixed)."""

    factor: float = described(2.0, "Factor", low=1.1, high=8.0, log=True, gt=1, when=_DYNAMIC)
    """The scale is divided by it after an overflow and multiplied by it when it grows."""

    window: int = described(2000, "Window", unit="steps", low=10, high=5000, log=True, ge=1, when=_DYNAMIC)
    """Finite steps after which the scale grows."""

    minimum: float = described(1.0, "Smallest scale", low=2.0**-10, high=1.0, log=True, gt=0, when=_DYNAMIC)
    """The scale never falls below it."""

    maximum: float | None = described(
        None, "Largest scale", low=2.0**24, high=2.0**40, log=True, gt=0, le=_LARGEST, when=_DYNAMIC
    )
    """The scale never grows beyond it; unset means the largest finite float32."""

    drop_overflow_update: bool = described(
        True, "Skip overflowed updates", when=loss_scale_is("fixed", why_not="a dynamic loss scale always skips them")
    )
    """Whether a fixed scale skips the update of an overflowed step (a dynamic one always does)."""

    collapse_after: int = described(
        1000,
        "Give up after",
        unit="steps",
        ge=1,
        when=_SCALED & (_DYNAMIC | is_not("loss_scale.drop_overflow_update", False, "overflows are not looked for")),
    )
    """So many overflowed updates in a row at the smallest scale end the run."""

    groups: int = described(2, "Scale groups", unit="groups", low=2, high=8, ge=1, when=method_on("loss_scale_group"))
    """Number of parameter groups with a scale of their own; counts when boost.loss_scale_group is on."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        came = f"got {shown(self.init)}"
        if self.init < self.minimum:
            raise ValueError(f"`loss_scale.init` must be at least `loss_scale.minimum` ({shown(self.minimum)}), {came}")
        if self.maximum is not None and self.init > self.maximum:
            raise ValueError(f"`loss_scale.init` must be at most `loss_scale.maximum` ({shown(self.maximum)}), {came}")
        return self
