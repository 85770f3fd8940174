"""The names of ``mindspore_rec``; everything is defined elsewhere."""

from workbench.online.rec_model import RecModel

__all__ = ["RecModel"]
