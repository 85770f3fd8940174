"""Label smoothing: part of each label is spread over all classes.

Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016, arXiv:1512.00567, section 7:
the target is ``(1 - s) * label + s / n_classes``. Torch's cross entropy has it built in; what is not torch's cross
entropy is left alone.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

from torch import nn
from torch.nn import functional as F

__all__ = ["smoothed", "why_no_smoothing"]


def why_no_smoothing(criterion: Any) -> str:
    """Return why a criterion's labels cannot be smoothed, to stand after "because"; empty where they can.

    Args:
        criterion: ``nn.CrossEntropyLoss`` or ``F.cross_entropy``, also under ``functools.partial``, can; None means
            that none is known.

    Example:
        >>> why_no_smoothing(nn.CrossEntropyLoss())
        ''
        >>> why_no_smoothing(nn.MSELoss())
        'MSELoss has no label smoothing'
    """
    if criterion is None:
        return "no criterion is known whose labels it could smooth; pass `criterion`"
    inner = criterion
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inner is F.cross_entropy:
        return ""
    if isinstance(inner, nn.CrossEntropyLoss):
        own = type(inner).forward is not nn.CrossEntropyLoss.forward
        return f"{type(inner).__name__} has a forward of its own" if own else ""
    if isinstance(inner, nn.Module) or getattr(F, getattr(inner, "__name__", ""), None) is inner:
        return f"{getattr(inner, '__name__', type(inner).__name__)} has no label smoothing"
    return "the loss is a function (model, batch), whose labels are its own; give the criterion alone to smooth them"


def smoothed(criterion: Any, smoothing: float) -> Any:
    """Return a criterion with smoothed labels; the given one stays as it is, and its class weights are shared.

    Args:
        criterion: One that `why_no_smoothing` has nothing against.
        smoothing: Share of a label that is spread, in [0, 1).

    Raises:
        ValueError: When the criterion has no label smoothing.
    """
    if reason := why_no_smoothing(criterion):
        raise ValueError(f"labels cannot be smoothed because {reason}")
    if isinstance(criterion, nn.Module):
        twin: Any = copy.copy(criterion)  # shallow: weights that are trained, or moved, are so in both
        twin.label_smoothing = smoothing
        return twin
    return functools.partial(criterion, label_smoothing=smoothing)
