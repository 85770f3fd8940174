"""Which parameters are scale and shift of a normalization: their type of module tells, torch's names do not.

MindSpore calls them ``gamma`` and ``beta`` and its optimizers leave parameters with such names undecayed; in torch they
are ``weight`` and ``bias`` like any other. The mark is an attribute on the parameter, so it outlives regrouping.
"""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["is_scale_or_shift", "mark_normalizations_"]

_NORMALIZATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_UNDECAYED_NAMES = ("beta", "gamma")


def mark_normalizations_(network: nn.Module) -> None:
    """Mark the parameters of every normalization of a network with ``is_normalization``.

    Args:
        network: Any module.
    """
    for module in network.modules():
        if isinstance(module, _NORMALIZATIONS):
            for parameter in module.parameters(recurse=False):
                parameter.is_normalization = True  # type: ignore[attr-defined]


def is_scale_or_shift(parameter: Tensor, name: str = "") -> bool:
    """Return whether a parameter is scale or shift of a normalization, by its mark or by MindSpore's names.

    Args:
        parameter: The parameter.
        name: Its name, when known.
    """
    return getattr(parameter, "is_normalization", False) or any(word in name for word in _UNDECAYED_NAMES)
