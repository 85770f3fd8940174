"""What needs an accelerator says so where there is none; how it measures is tested in tests/accelerator."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workbench.bench import Request, chosen
from workbench.bench.questions import benchmarks, host_waits

REQUEST = Request(1, device=torch.device("cpu"))


@pytest.mark.parametrize("name", [benchmark.name for benchmark in chosen(["accelerator"])])
def test_without_an_accelerator_that_is_said(name: str) -> None:
    found = benchmarks()[name].measure(REQUEST)
    assert [finding.verdict for finding in found] == ["absent"]
    assert "has not run" in found[0].note


def test_what_a_profile_waits_for_itself_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    done = 0

    class Profile:
        def __init__(self, **_: Any) -> None:
            self.before = done

        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *_: object) -> None: ...

        def events(self) -> list[Any]:
            names = ["cudaStreamSynchronize", "cudaLaunchKernel", "cudaMemcpyAsync"] * (done - self.before)
            return [SimpleNamespace(name=name) for name in [*names, "cudaDeviceSynchronize"]]  # its own, at the end

    def train(steps: int) -> None:
        nonlocal done
        done += steps

    monkeypatch.setattr(host_waits, "profile", Profile)
    assert host_waits.profiled_waits(train, 5) == Counter({"cudaStreamSynchronize": 5})
