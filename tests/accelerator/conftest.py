"""The accelerator that these tests run on: a real one where there is one, else its stand-in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.accelerator.standin import NAME, forget_waits, is_buildable, load_standin, races


@pytest.fixture(scope="session")
def accelerator() -> torch.device:
    """Return the accelerator."""
    here = torch.accelerator.current_accelerator(check_available=True)
    if here is not None:
        torch.backends.cudnn.allow_tf32 = False  # or convolutions there would not be a CPU's
        torch.backends.cudnn.deterministic = True  # or a resumed run would not be the one that went on
        return here
    if not is_buildable():
        pytest.skip("no accelerator, and no g++ to compile what stands in for one")
    return load_standin()


@pytest.fixture
def standin(accelerator: torch.device) -> torch.device:
    """Return the stand-in, whose waits are counted from here on; a real accelerator cannot tell of its own."""
    if accelerator.type != NAME:
        pytest.skip("only the stand-in counts how often it is waited for")
    forget_waits()
    return accelerator


@pytest.fixture(autouse=True)
def nothing_raced(accelerator: torch.device) -> Iterator[None]:
    """Fail a test in which something was used before what it depends on was known to have happened."""
    if accelerator.type == NAME:
        races()
    yield
    if accelerator.type == NAME:
        assert races() == []
