"""What of a set-up goes into Lightning's Trainer as arguments, and what is left with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.config import BoostConfig
from workbench.integrations.carried import choices
from workbench.integrations.lightning import carried, trainer_arguments

BFLOAT16 = {"amp": {"level": "O2", "dtype": "bfloat16"}}


@pytest.mark.parametrize(
    ("set_up", "arguments"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param(BFLOAT16, {"precision": "bf16-mixed"}, id="bfloat16"),
        pytest.param({"amp": {"level": "O2", "dtype": "float16"}}, {"precision": "16-mixed"}, id="float16"),
        pytest.param({"amp": {"level": "O3", "dtype": "bfloat16"}}, {"precision": "bf16-true"}, id="cast"),
        pytest.param({"runtime": {"cudnn_benchmark": True}}, {"benchmark": True}, id="cudnn"),
        pytest.param(
            {
                "boost": {"mode": "manual", "grad_accumulation": True},
                "grad_accumulation": {"grad_accumulation_step": 4},
            },
            {"accumulate_grad_batches": 4},
            id="accumulation",
        ),
    ],
)
def test_what_is_native_needs_nothing_of_ours(set_up: dict[str, Any], arguments: dict[str, Any]) -> None:
    answer = carried(BoostConfig.from_dict(set_up), level="O0")
    assert (dict(answer.arguments), dict(answer.left)) == (arguments, {})
    assert trainer_arguments(set_up, level="O0") == arguments


@pytest.mark.parametrize(
    ("set_up", "path", "why"),
    [
        ({"optimizer": {"name": "AdamW", "lr": 0.01}}, "optimizer.lr", "configure_optimizers"),
        ({"schedule": {"length": 0.5}}, "schedule.length", "configure_optimizers"),
        ({"batch": {"factor": 2.0}}, "batch.factor", "train_dataloader"),
        ({"curriculum": {"kind": "resolution"}}, "curriculum.kind", "as the loader makes them"),
        ({"regularization": {"label_smoothing": 0.1}}, "regularization.label_smoothing", "criterion"),
        ({"regularization": {"weight_average": "ema"}}, "regularization.weight_average", "no argument"),
        ({"runtime": {"compile": "default"}}, "runtime.compile", "torch.compile"),
        ({"amp": {"level": "O2"}, "loss_scale": {"window": 50}}, "loss_scale.window", "2000 updates"),
        ({"amp": {"level": "O2"}, "loss_scale": {"kind": "fixed"}}, "amp.level", "loss scale dynamic, not fixed"),
        ({"loss_scale": {"kind": "dynamic"}}, "loss_scale.kind", "GradScaler"),
        ({"amp": {"level": "O3", "keep_batchnorm_fp32": True}}, "amp.level", "no exception for BatchNorm"),
        ({"amp": {"level": "auto"}}, "amp.level", "the device decides"),
    ],
)
def test_what_is_left_says_why(set_up: dict[str, Any], path: str, why: str) -> None:
    answer = carried(BoostConfig.from_dict(set_up), level="O0")
    assert why in answer.left[path]
    assert not answer.is_whole
    with pytest.warns(UserWarning, match=f"do not carry .*{path}"):
        trainer_arguments(set_up, level="O0")


def test_every_choice_of_a_whole_set_up_goes_somewhere() -> None:
    config = BoostConfig.from_dict({**BFLOAT16, "schedule": {"length": 0.5, "shape": "cosine"}, "batch": {"factor": 4}})
    answer = carried(config)
    assert {*answer.carriers, *answer.left} == set(choices(config.resolve("O1")))
    assert answer.left["boost.less_bn"] == "Lightning's Trainer has no argument for it"
    assert answer.carriers["amp.dtype"] == ("precision",)
