"""Threads that OpenMP keeps for a thread of Python can be ended, and begin anew when it computes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
import torch

from workbench.core.openmp import release_pool


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def compute() -> float:
    return float(torch.ones(1_000_000).mul(2.0).sum())


@pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP there")
@pytest.mark.usefixtures("three_threads")
def test_the_pool_ends_and_begins_anew() -> None:
    assert compute() == 2_000_000.0
    here = psutil.Process()
    with_pool = here.num_threads()
    assert release_pool()
    assert here.num_threads() == with_pool - 2  # the third is this one
    assert compute() == 2_000_000.0
    assert here.num_threads() == with_pool
    assert torch.get_num_threads() == 3


def test_nothing_is_loaded_for_it() -> None:
    code = "import sys; from workbench.core.openmp import release_pool; print(release_pool(), 'torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "False"]
