"""What of a set-up plain torch can say, and what it leaves with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workbench.config import BoostConfig
from workbench.integrations.carried import choices
from workbench.integrations.torch_loop import carried

FLOAT16 = {"level": "O2", "dtype": "float16"}
SCALER, ADAMW, LOADER = "torch.amp.GradScaler", "torch.optim.AdamW", "torch.utils.data.DataLoader"


@pytest.mark.parametrize(
    ("set_up", "calls"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param(
            {"amp": {"level": "O2", "dtype": "bfloat16"}},
            {"torch.autocast": {"dtype": "torch.bfloat16"}},
            id="bfloat16",
        ),
        pytest.param(
            {"amp": FLOAT16, "loss_scale": {"init": 1024.0, "factor": 4.0, "window": 50}},
            {
                "torch.autocast": {"dtype": "torch.float16"},
                SCALER: {"init_scale": 1024.0, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 50},
            },
            id="float16",
        ),
        pytest.param(
            {"loss_scale": {"kind": "fixed", "init": 128.0}},
            {SCALER: {"init_scale": 128.0}, f"{SCALER}.update": {"new_scale": 128.0}},
            id="fixed scale",
        ),
        pytest.param(
            {"optimizer": {"name": "AdamW", "betas": [0.8, 0.9]}, "batch": {"factor": 4, "lr_rule": "linear"}},
            {ADAMW: {"betas": (0.8, 0.9), "lr": 0.004, "fused": True}, LOADER: {"batch_size": "4 x"}},
            id="torch's own rate follows the batch",
        ),
        pytest.param(
            {"optimizer": {"lr": 0.5}, "batch": {"factor": 4, "lr_rule": "sqrt"}},
            {"optimizer.param_groups": {"lr": 1.0}, LOADER: {"batch_size": "4 x"}},
            id="another rate of today's optimizer",
        ),
        pytest.param(
            {"batch": {"factor": 0.25, "lr_rule": "sqrt"}, "runtime": {"data": "prefetch"}},
            {"optimizer.param_groups": {"lr": "0.5 x"}, LOADER: {"batch_size": "0.25 x", "num_workers": 1}},
            id="today's rate follows",
        ),
        pytest.param(
            {"runtime": {"compile": "default", "cuda_graph": True}},
            {"torch.compile": {"mode": "reduce-overhead"}},
            id="graphs",
        ),
    ],
)
def test_what_torch_can_say_needs_nothing_of_ours(set_up: dict[str, Any], calls: dict[str, Any]) -> None:
    answer = carried(BoostConfig.from_dict(set_up), level="O0")
    assert (dict(answer.arguments), dict(answer.left)) == (calls, {})


@pytest.mark.parametrize(
    ("set_up", "path", "why"),
    [
        ({"boost": {"mode": "manual", "less_bn": True}}, "boost.less_bn", "removes no BatchNorms"),
        ({"boost": {"mode": "manual", "grad_freeze": True}}, "boost.grad_freeze", "freezes layers"),
        ({"optimizer": {"name": "Muon", "lr": 0.1}}, "optimizer.lr", "kernels of convolutions"),
        ({"optimizer": {"name": "thor"}}, "optimizer.name", "torch.optim has no thor"),
        ({"optimizer": {"name": "Muon"}, "batch": {"factor": 2, "lr_rule": "sqrt"}}, "batch.lr_rule", "the optimizer"),
        ({"amp": {"level": "O3"}}, "amp.level", "inputs and outputs cast"),
        ({"amp": {"level": "auto"}}, "amp.level", "the device decides"),
        ({"amp": {**FLOAT16, "keep_batchnorm_fp32": False}}, "amp.keep_batchnorm_fp32", "in float32"),
        ({"amp": FLOAT16, "loss_scale": {"minimum": 8.0}}, "loss_scale.minimum", "no bounds"),
        ({"loss_scale": {"kind": "fixed", "drop_overflow_update": False}}, "loss_scale.kind", "always skips"),
        ({"curriculum": {"kind": "resolution"}}, "curriculum.kind", "what the loader makes"),
        ({"runtime": {"data": "resident"}}, "runtime.data", "on the host"),
    ],
)
def test_what_is_left_says_why(set_up: dict[str, Any], path: str, why: str) -> None:
    answer = carried(BoostConfig.from_dict(set_up), level="O0")
    assert why in answer.left[path]
    assert not answer.is_whole


def test_every_choice_of_a_whole_set_up_goes_somewhere() -> None:
    config = BoostConfig.from_json(Path(__file__).parents[2] / "studies/quickstart/published/boost_config.o1.json")
    answer = carried(config)
    assert answer.is_whole
    assert set(answer.carriers) == set(choices(config.resolve("O1")))
