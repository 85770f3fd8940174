"""Names of version 0.6; everything is defined in :mod:`workbench.core.devices`."""

from workbench.core.devices import select_device

__all__ = ["select_device"]
