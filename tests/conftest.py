"""Fixtures every test may use, and how property tests draw their examples."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.kit.database import without_waiting_for_the_disk
from tests.kit.system_chromium import chromium_or_skip

# What is imported and collected lives to the end: looking through it for garbage is in vain.
gc.disable()

# Before torch is imported, and inherited by the commands that tests start: on tensors this small a second thread has
# nothing to do but to wait, and on a busy machine everybody waits for it (a test of 3 s took 87 s).
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts its background jobs with Ctrl-C ignored, and a test that presses it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.ranks import Ranks

# No deadline: a busy machine is no fault of the code. In CI every run draws the same examples, so that a failure means
# the change and not the draw; elsewhere new ones are tried, and a failure prints what reproduces it.
settings.register_profile("workbench", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("workbench")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of a module that reads golden files, so that ``-m golden`` and ``-k golden`` leave none out."""
    reads: dict[Path, bool] = {}
    for item in items:
        if item.path not in reads:
            reads[item.path] = "golden" in item.path.read_text(encoding="utf-8")
        if reads[item.path]:
            item.add_marker("golden")


def pytest_collection_finish() -> None:
    """Collect garbage again, but only of what the tests make, and not after each 700 objects."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Close widgets that tests have left open: Python's own end comes too late for them, with a traceback for each."""
    if (widgets := sys.modules.get("ipywidgets")) is not None:
        widgets.Widget.close_all()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process one half of the tests, of which an idle one takes some: few modules are in both halves."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Spare this process each wait for the disk; a process that is killed, and not a machine, needs none."""
    with without_waiting_for_the_disk():
        yield


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed every generator, so that a test gives the same result alone and in a crowd."""
    import random

    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # the generator that the code under test may draw from
    # For accelerators that may come, torch keeps the text of the stack at each seed: a millisecond here.
    for absent in () if torch.accelerator.is_available() else (torch.cuda, torch.xpu, torch.mtia):
        monkeypatch.setattr(absent, "manual_seed_all", lambda seed: None)
    torch.manual_seed(0)


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything go through torch's own operations, as on an accelerator or without a C compiler."""
    monkeypatch.setattr("workbench.core.kernels.kernel_library", lambda: None)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """Join a process group of this process alone, and leave it after what the test made is gone.

    A DistributedDataParallel that outlives its group takes it down while holding Python's lock, for which a thread of
    gloo may wait: one run of .ci/run hung there for good.
    """
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    gc.collect()
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Return two ranks that run functions together, the same for all tests of a module: their start takes seconds."""
    from tests.ranks import Ranks

    group = Ranks(2, tmp_path_factory.mktemp("ranks"))
    yield group
    group.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Return the system's Chromium, one for all tests of a process, or skip the test."""
    executable = chromium_or_skip()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()
