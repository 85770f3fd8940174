"""What these tests need before they import anybody else's networks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import types
from pathlib import Path


def _let_torchvision_load() -> None:
    """Let torchvision be imported beside torch's CPU build; timm, transformers and torchmetrics import it.

    The wheels on PyPI are built for CUDA. Beside torch's CPU build their operators do not load, and the import fails in
    the module that registers shapes for them ("operator torchvision::nms does not exist"); no test of ours needs it.
    """
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or "+cpu" not in importlib.metadata.version("torch"):
        return
    if "+cu" in Path(found.origin).with_name("version.py").read_text(encoding="utf-8"):
        sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")


_let_torchvision_load()
