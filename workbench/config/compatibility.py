"""Section ``compatibility``: where the reference is defective or accidental, which of both behaviours is wanted.

The first choice of every option is what we hold to be right, the second is what MindSpore 2.7 does; further ones lie
between. The word ``"mindspore-2.7"`` in place of the section means the second choice everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import model_validator

from workbench.config.conditions import is_not, loss_scale_is, method_on
from workbench.config.errors import did_you_mean, shown
from workbench.config.optimizer import optimizer_is
from workbench.config.section import Section, described
from workbench.core.warning import warn

PRESETS = ("mindspore-2.7",)
"""Words that may stand in place of the section."""
RETIRED = "loss_scale_reciprocal"
"""An option without effect, which files written up to November 2026 name."""
_NO_EFFECT = (
    f"`compatibility.{RETIRED}` is no longer there and has no effect: at which tensor size the original's CPU kernels "
    "flush denormal numbers depends on the machine"
)


_LESS_BN = method_on("less_bn")
_CENTRALIZED = _LESS_BN & is_not("less_bn.gc_flag", False, "gradient centralization is off (less_bn.gc_flag)")
_FN_HEAD = _LESS_BN & is_not("less_bn.fn_flag", False, "the FN head is off (less_bn.fn_flag)")


class CompatibilityConfig(Section, use_attribute_docstrings=True):
    """Section ``compatibility``."""

    freeze_state: Literal["shared", "per_group"] = described(
        "shared", "Optimizer state when freezing", when=method_on("grad_freeze")
    )
    """shared: one momentum per parameter; per_group: one per freezing group."""

    less_bn_match: Literal["structure", "reference"] = described("structure", "LessBN search", when=_LESS_BN)
    """structure: BatchNorms found by the graph; reference: by the original's name and order rules."""

    fn_scope: Literal["classifier", "every_module", "head"] = described("classifier", "FN head scope", when=_FN_HEAD)
    """classifier: the dense layer that alone feeds the output, where BatchNorms were removed and the criterion is a
    cross entropy; every_module: the last one of every module; head: as classifier, whatever the criterion.
    """

    fn_bias: Literal["keep", "drop"] = described("keep", "FN head bias", when=_FN_HEAD)
    """keep or drop the bias of the replaced layer."""

    grad_centralization: Literal["every_weight", "multiple_of_16"] = described(
        "every_weight", "Centralized weights", when=_CENTRALIZED
    )
    """every_weight, or only those whose second dimension is a multiple of 16, with or without a BatchNorm to spare."""

    loss_scale_ceiling: Literal["finite", "none"] = described(
        "finite", "Loss scale ceiling", when=loss_scale_is("dynamic")
    )
    """finite: growth stops at the largest finite float32; none: it may reach inf."""

    adasum_servers: Literal["device_number", "eight"] = described(
        "device_number", "AdaSum servers", when=method_on("adasum")
    )
    """Ranks per server: common.device_number, or eight whatever it says."""

    dim_reduce: Literal["corrected", "reference"] = described(
        "corrected", "DimReduce step", when=method_on("dim_reduce")
    )
    """corrected: unscaled gradients and exact losses; reference: the original's mixture."""

    group_loss_scale: Literal["used", "updated"] = described(
        "used", "Group unscaling", when=method_on("loss_scale_group")
    )
    """Divide gradients by the scale that was used, or by the one after its update."""

    thor_factors: Literal["default", "mindspore"] = described("default", "THOR factors", when=optimizer_is("thor"))
    """Covariance factors averaged over the batch, or as the original forms them."""

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            if value.get(RETIRED) == "flushed":
                warn(_NO_EFFECT)
            return {name: option for name, option in value.items() if name != RETIRED}
        if not isinstance(value, str):
            return value
        if value not in PRESETS:
            names = ", ".join(shown(preset) for preset in PRESETS)
            raise ValueError(
                f"`compatibility` must be an object of options or the preset {names}, got {shown(value)}"
                + did_you_mean(value, PRESETS)
            )
        return {name: get_args(field.annotation)[1] for name, field in cls.model_fields.items()}
