"""Warnings name the user's line."""

from __future__ import annotations

from types import FunctionType

import pytest
import torch
from torch import nn

from workbench.core.warning import warn


def test_a_warning_names_the_line_of_the_program_though_torch_lies_between() -> None:
    def hook(*_: object) -> None:
        warn("told")

    ours = FunctionType(hook.__code__, {"__name__": "workbench.inner", "warn": warn})
    net = nn.Linear(1, 1)
    net.register_forward_hook(ours)
    with pytest.warns(UserWarning, match="told") as caught:
        net(torch.ones(1, 1))
    assert caught[0].filename == __file__


@pytest.mark.parametrize("library", ["pydantic", "transformers", "accelerate", "lightning"])
def test_a_warning_names_no_line_of_a_library_that_calls_back(library: str) -> None:
    def call() -> None:
        warn("told")

    with pytest.warns(UserWarning, match="told") as caught:
        FunctionType(call.__code__, {"__name__": f"{library}.inner", "warn": warn})()
    assert caught[0].lineno > call.__code__.co_firstlineno + 1
