"""The fixed scale: it never moves, and says what happens on an overflow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.golden_files import golden_paths, load_json
from workbench.loss_scale import FixedLossScaleManager, FixedLossScaleUpdateCell

TRACES = [load_json(path) for path in golden_paths("loss_scale_traces*.json")]


@pytest.mark.parametrize("traces", TRACES)
def test_golden_fixed_update_cell(traces: dict[str, Any]) -> None:
    golden = traces["fixed_update_cell"]
    cell = FixedLossScaleUpdateCell(golden["loss_scale_value"])
    scale = torch.tensor(golden["passed_scale"])
    results = [[bool(cell(scale, torch.tensor(flag))), float(scale)] for flag in golden["overflow"]]
    assert results == golden["result_and_scale"]
    assert cell.get_loss_scale() == golden["get_loss_scale"]


@pytest.mark.parametrize("traces", TRACES)
def test_golden_fixed_manager_defaults(traces: dict[str, Any]) -> None:
    golden = traces["managers"]["fixed_defaults"]
    manager = FixedLossScaleManager()
    assert manager.get_loss_scale() == golden["loss_scale"]
    assert manager.get_drop_overflow_update() is golden["drop"]
    assert type(manager.get_update_cell()).__name__ == golden["update_cell"]
    without = FixedLossScaleManager(drop_overflow_update=False).get_update_cell()
    assert str(without) == golden["update_cell_when_drop_false"]


def test_fixed_manager_does_not_move() -> None:
    manager = FixedLossScaleManager(256)
    manager.update_loss_scale(True)
    assert manager.get_loss_scale() == 256.0


@pytest.mark.parametrize(("scale", "error"), [(0.5, ValueError), (float("nan"), ValueError), ("a", TypeError)])
def test_bad_fixed_scale_is_refused(scale: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="loss_scale"):
        FixedLossScaleManager(scale)
    with pytest.raises(error, match="loss_scale_value"):
        FixedLossScaleUpdateCell(scale)


def test_drop_overflow_update_must_be_a_bool() -> None:
    drop: Any = "yes"
    with pytest.raises(TypeError, match="`drop_overflow_update` must be a bool"):
        FixedLossScaleManager(128.0, drop)


def test_fixed_cell_checks_its_arguments_like_the_dynamic_one() -> None:
    with pytest.raises(ValueError, match="`loss_scale` must have shape"):
        FixedLossScaleUpdateCell(8.0)(torch.ones(2), torch.tensor(True))
