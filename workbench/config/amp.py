"""Section ``amp``: in which precision the network computes."""

from __future__ import annotations

from typing import Literal

from workbench.config.conditions import is_not
from workbench.config.section import Section, described

_MIXED = is_not("amp.level", "O0", "mixed precision is off (amp.level O0)")


class AmpConfig(Section, use_attribute_docstrings=True):
    """Section ``amp``."""

    level: Literal["O0", "O2", "O3", "auto"] = described(
        "O0",
        "Mixed precision",
        names={
            "O0": "O0: float32",
            "O2": "O2: mixed, weights in float32",
            "O3": "O3: weights in low precision, too",
            "auto": "auto: by the device",
        },
    )
    """O0: float32; O2: autocast, float32 master weights, BatchNorm in float32; O3: weights cast, BatchNorm too, no loss
    scale; auto: O2 on CUDA, O3 on NPU, O0 elsewhere.
    """

    dtype: Literal["float16", "bfloat16"] = described("float16", "Low precision type", when=_MIXED)
    """What O2 and O3 compute in."""

    keep_batchnorm_fp32: bool | None = described(
        None,
        "BatchNorm in float32",
        when=_MIXED,
        unset=lambda config: None if config.amp.level == "auto" else config.effective_keep_batchnorm_fp32(""),
    )
    """Keep BatchNorm in float32; unset means yes under O2 and no under O3."""
