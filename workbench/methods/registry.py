"""The methods in the order in which they act, each with the reason for its place.

The only file that sees every method. Descriptions alone are imported, so reading the list loads no torch. A new method
is a folder beside this file and a line below.
"""

from __future__ import annotations

from workbench.methods import (
    adasum,
    dim_reduce,
    grad_accumulation,
    grad_centralization,
    grad_freeze,
    less_bn,
    loss_scale_group,
)
from workbench.methods.protocol import Description

__all__ = ["METHODS", "method"]

METHODS: tuple[Description, ...] = (
    less_bn.DESCRIPTION,  # replaces modules and may create parameters: whatever lists parameters comes later
    grad_centralization.DESCRIPTION,  # splits the optimizer's groups, and freezing must find the final ones
    grad_freeze.DESCRIPTION,  # wraps the optimizer, so it needs the one that will really step
    grad_accumulation.DESCRIPTION,  # gradients add up before anything looks at them
    loss_scale_group.DESCRIPTION,  # unscales a window's gradients before an update sees them
    adasum.DESCRIPTION,  # combines what the servers' optimizers changed, so it comes after them
    dim_reduce.DESCRIPTION,  # replaces the optimizer, which the others would process in vain: it runs alone
)


def method(name: str) -> Description:
    """Return the method of that name.

    Args:
        name: For example ``"grad_freeze"``.

    Raises:
        KeyError: When there is no such method; the message lists those there are.

    Example:
        >>> method("grad_freeze").switch
        'boost.grad_freeze'
    """
    for entry in METHODS:
        if entry.name == name:
            return entry
    raise KeyError(f"no method is called {name!r}; there are {', '.join(entry.name for entry in METHODS)}")
