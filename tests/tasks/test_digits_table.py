"""The digits are scikit-learn's, however they are read."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from workbench.tasks.digits import read_digits


@pytest.fixture(autouse=True)
def unread() -> Iterator[None]:
    read_digits.cache_clear()
    yield
    read_digits.cache_clear()


def assert_they_are_the_digits() -> None:
    pixels, classes = read_digits()
    np.testing.assert_array_equal(pixels, load_digits().data)
    np.testing.assert_array_equal(classes, load_digits().target)
    assert classes.dtype == np.int64


def test_they_are_what_scikit_learn_loads() -> None:
    assert_they_are_the_digits()


def test_a_release_that_keeps_its_data_elsewhere_is_asked_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = importlib.util.find_spec("sklearn")
    assert elsewhere is not None
    elsewhere.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: elsewhere)
    assert_they_are_the_digits()


@pytest.mark.long
def test_scikit_learn_is_not_imported_for_it() -> None:
    program = "import sys, workbench.tasks.digits as digits; digits.read_digits(); print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "numpy" in said.split()
    assert "sklearn" not in said.split()
