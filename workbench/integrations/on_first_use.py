"""Names of a package that load their framework when they are first used, so that its other names work without."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def on_first_use(package: str, homes: Mapping[str, str], extra: str) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` for names with a module of the package each, and an extra that they need."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "workbench":
                raise
            needed = f'{name} needs {error.name}: pip install "boost-workbench[{extra}]"'
            raise ModuleNotFoundError(needed, name=error.name) from error

    return load
