"""Fixtures every test may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden_files import GOLDEN_DIR


@pytest.fixture
def golden_dir() -> Path:
    """Return the folder of the golden files in use."""
    return GOLDEN_DIR


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Seed every generator, so that a test gives the same result alone and in a crowd."""
    import random

    import numpy as np

    random.seed(0)
    np.random.seed(0)
    try:
        import torch
    except ImportError:  # config and telemetry are tested without torch, too
        yield
        return
    torch.manual_seed(0)
    yield
