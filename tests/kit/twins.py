"""Twins: what must be the same as another, or go on as another does, bit for bit."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

_T = TypeVar("_T")


def assert_same(one: nn.Module, other: nn.Module) -> None:
    """Compare parameters and buffers bit for bit."""
    found, wanted = one.state_dict(), other.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def assert_close(one: nn.Module, other: nn.Module, *, rtol: float | None = None, atol: float | None = None) -> None:
    """Compare parameters and buffers within a tolerance; None for torch's."""
    found, wanted = one.state_dict(), other.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(
            found[name], value, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )


def values(net: nn.Module) -> dict[str, Tensor]:
    """Return copies of parameters and buffers."""
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def through_file(state: _T) -> _T:
    """Return what a checkpoint of a state loads as; it may hold tensors and plain values only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: _T = torch.load(file, weights_only=True)
    return loaded


def pickled(value: _T) -> _T:
    """Return what comes back from a pickle."""
    twin: _T = pickle.loads(pickle.dumps(value))
    return twin


#: Asks a test with the argument ``copied`` of both ways to copy.
either_copy: Any = pytest.mark.parametrize("copied", [copy.deepcopy, pickled], ids=["deepcopy", "pickle"])
