"""Names that need a framework say which extra brings it, and say nothing where the mistake is another."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from workbench.core.lazy_names import lazy_names

PACKAGE = "workbench.integrations.lightning"


def test_a_missing_framework_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith((f"{PACKAGE}.searched", "lightning"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(ModuleNotFoundError, match=r'from_lightning needs lightning.*"boost-workbench\[lightning\]"'):
        lazy_names(PACKAGE, {"from_lightning": f"{PACKAGE}.searched"}, "lightning")("from_lightning")


def test_a_module_of_ours_that_is_missing_is_no_missing_extra() -> None:
    assert importlib.util.find_spec(f"{PACKAGE}.nowhere") is None
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'workbench\.integrations\.lightning\.nowhere'"):
        lazy_names(PACKAGE, {"Boost": f"{PACKAGE}.nowhere"}, "lightning")("Boost")


def test_other_names_are_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Bost'"):
        lazy_names(PACKAGE, {"Boost": f"{PACKAGE}.boost"}, "lightning")("Bost")
