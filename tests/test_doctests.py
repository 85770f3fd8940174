"""The examples in docstrings run and give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import workbench

NAMES = ["workbench", *sorted(found.name for found in pkgutil.walk_packages(workbench.__path__, "workbench."))]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("__main__")])
def test_examples_give_what_they_say(name: str) -> None:
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert results.failed == 0


def test_examples_are_found() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = sum(len(test.examples) for name in ("workbench.loss_scale.rule", "workbench.methods.grad_freeze.method",
                   "workbench.training.apply") for test in finder.find(importlib.import_module(name)))  # fmt: skip
    assert examples > 10
