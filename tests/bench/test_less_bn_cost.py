"""The LessBN benchmark at sizes too small to mean anything."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from workbench.bench import Request
from workbench.bench.questions import less_bn
from workbench.training import Boosted

REQUEST = Request(1, device=torch.device("cpu"), threads=(1,))
TINY = {"small": ((4, 8), 1, 4, 8)}


def test_ours_the_limit_and_the_whole_network_are_found() -> None:
    found = less_bn.measure(REQUEST, nets=TINY)
    assert [one.what.rsplit(": ", 1)[1] for one in found] == [
        "ours / edited by hand",
        "no BatchNorm / edited by hand",
        "all BatchNorms / edited by hand",
        "ours / edited by hand",
    ]
    operations = found[-1]
    assert operations.what.endswith("operations of torch: ours / edited by hand")
    assert operations.estimate is not None
    assert operations.estimate.value <= 1.0, operations.note
    assert all(one.estimate is not None for one in found)
    assert found[0].note == "3 of 6 BatchNorms stay"


def test_a_network_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = less_bn._boosted

    def shifted(model: nn.Module) -> Boosted:
        boosted = ours(model)
        with torch.no_grad():
            next(boosted.model.parameters()).mul_(1.1)
        return boosted

    monkeypatch.setattr(less_bn, "_boosted", shifted)
    (found,) = less_bn.measure(REQUEST, nets=TINY)
    assert found.verdict == "differs"
