from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workbench.config import SWITCHES, BoostConfig, Facts, why_no_method
from workbench.panels.config_panel import ConfigPanel
from workbench.panels.shared_config import SharedConfig
from workbench.panels.ways_out import way_out

ACCUMULATING = {"grad_accumulation.grad_accumulation_step": 2}
DYNAMIC = {"loss_scale.kind": "dynamic", "boost.grad_freeze": True}


@pytest.mark.parametrize(
    ("name", "ranks", "text", "values"),
    [
        ("grad_accumulation", 1, "Set micro-batches per update to 2 and switch it on", ACCUMULATING),
        ("adasum", 16, "Switch Gradient freezing off and this on", {"boost.grad_freeze": False}),
        ("loss_scale_group", 1, "Set loss_scale.kind to dynamic and switch it on", DYNAMIC),
        ("adasum", 1, "", {}),
        ("dim_reduce", 1, "", {}),
    ],
)
def test_one_change_lets_a_switch_act_and_is_offered_alone(
    name: str, ranks: int, text: str, values: dict[str, Any]
) -> None:
    config, facts = BoostConfig(), Facts("O1", ranks)
    assert why_no_method(name, config, facts)
    way = way_out(name, config, facts)
    assert (way.text if way is not None else "") == text
    if way is not None:
        assert name in way.config.resolve("O1", ranks).in_effect()
        assert values.items() <= way.config.leaves().items()


def test_a_dead_end_is_a_button_in_the_panel(keep: Callable[[Any], Any]) -> None:
    panel = keep(ConfigPanel(SharedConfig()))
    button = panel.ways_out["grad_accumulation"]
    assert {name for name in SWITCHES if panel.ways_out[name].is_present} == {"grad_accumulation", "loss_scale_group"}
    switch = panel.switches["grad_accumulation"]
    assert switch.disabled
    button.click()
    assert panel.config.grad_accumulation.grad_accumulation_step == 2
    assert (switch.value, switch.disabled, button.is_present) == (True, False, False)
    panel.shared.undo()
    assert panel.config == BoostConfig()
