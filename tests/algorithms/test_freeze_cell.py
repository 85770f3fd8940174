"""Freeze training cells: freezing with accumulation, and over ranks; golden trainings go through them, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.golden_files import golden_paths, load_json
from tests.kit.twins import assert_close
from workbench.methods.grad_freeze.method import FreezeOpt
from workbench.mindspore.freeze_cell import freeze_cell


class Distance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.front = nn.Linear(2, 3)
        self.back = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.back(torch.tanh(self.front(x))).square().mean()


def freezing(network: Distance, **options: Any) -> FreezeOpt:
    groups = [list(network.parameters()), list(network.back.parameters())]
    return FreezeOpt(torch.optim.SGD(network.parameters(), lr=0.3, momentum=0.9), groups, [0, 1], **options)


@pytest.mark.parametrize("path", golden_paths("freeze_opt_errors*.json"), ids=lambda path: path.stem)
@pytest.mark.parametrize("state", ["shared", "per_group"])
def test_golden_freezing_with_accumulation_fails_there_and_works_here(path: Path, state: str) -> None:
    assert load_json(path)["results"]["freeze_with_accumulation_cell"] == "AttributeError"
    network, whole = Distance(), Distance()
    micro = freeze_cell(False, network, freezing(network, state=state), 1.0, None, True, max_accumulation_step=4)
    large = freeze_cell(False, whole, freezing(whole, state=state), 1.0, None, False)
    for index in (0, 1, 1, 0):
        x = torch.randn(8, 2)
        before = network.front.weight.detach().clone()
        for part in x.chunk(4):
            micro[index](part)
        large[index](x)
        assert torch.equal(network.front.weight, before) is (index == 1)
        assert_close(network, whole)


def test_another_group_may_not_break_into_an_open_window() -> None:
    network = Distance()
    cells = freeze_cell(False, network, freezing(network), 1.0, None, True, max_accumulation_step=2)
    cells[1](torch.ones(1, 2))
    with pytest.raises(RuntimeError, match=r"window of group 1 is not complete \(1 of 2 micro-batches\)"):
        cells[0](torch.ones(1, 2))
    cells[1](torch.ones(1, 2))
    cells[0](torch.ones(1, 2))


def test_an_average_over_ranks_needs_a_process_group() -> None:
    network = Distance()
    with pytest.raises(RuntimeError, match="no process group is initialised"):
        freeze_cell(True, network, freezing(network), 1.0, None, False)


def test_gradients_are_averaged_over_ranks(one_rank: None) -> None:
    network, alone = Distance(), Distance()
    x = torch.randn(4, 2)
    # One rank is the whole sum; degree 2 shows that the mean divides by it.
    freeze_cell(True, network, freezing(network), 2.0, None, False, degree=2)[0](x)
    freeze_cell(False, alone, freezing(alone), 1.0, None, False)[0](x)
    assert_close(network, alone)


@pytest.mark.parametrize(
    ("sens", "error"), [(0, ValueError), (float("nan"), ValueError), ("1", TypeError), (True, TypeError)]
)
def test_a_wrong_sens_is_named(sens: Any, error: type[Exception]) -> None:
    network = Distance()
    with pytest.raises(error, match="`sens` must be"):
        freeze_cell(False, network, freezing(network), sens, None, False)


def test_sens_none_means_one_and_a_plain_optimizer_is_refused() -> None:
    network = Distance()
    assert freeze_cell(False, network, freezing(network), None, None, False)[0].sens == 1.0
    with pytest.raises(TypeError, match="`optimizer` must be a FreezeOpt, got SGD"):
        freeze_cell(False, network, torch.optim.SGD(network.parameters(), lr=0.1), 1.0, None, False)  # type: ignore[arg-type]
