"""Names of a package whose modules are loaded when they are first used, so that importing the package stays light."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str], extra: str = "") -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` for names with the module each of them is defined in.

    Where a module needs a package that is not installed, the error names the ``extra`` of ours that brings it.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(importlib.import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            if not extra or error.name is None or error.name.partition(".")[0] == "workbench":
                raise
            needed = f'{name} needs {error.name}: pip install "boost-workbench[{extra}]"'
            raise ModuleNotFoundError(needed, name=error.name) from error
        setattr(sys.modules[package], name, value)
        return value

    return load
