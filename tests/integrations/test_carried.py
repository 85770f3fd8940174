"""The choices of a configuration, and where a framework puts each of them."""

from __future__ import annotations

import pytest

from workbench.config import BoostConfig
from workbench.integrations.carried import Sorting, choices, learning_rate

SET_UP = BoostConfig.from_dict(
    {
        "boost": {"mode": "manual", "less_bn": False, "grad_freeze": False},
        "amp": {"level": "O2", "dtype": "bfloat16"},
        "optimizer": {"name": "AdamW", "lr": 0.01},
        "schedule": {"length": 0.5, "shape": "linear", "warmup": 0.2},
        "batch": {"factor": 4.0, "lr_rule": "sqrt"},
    }
)


def test_choices_are_what_differs_from_training_as_given() -> None:
    assert choices(BoostConfig().resolve("O0")) == {}
    made = choices(SET_UP.resolve("O1"))
    assert {path: made[path] for path in ("optimizer.lr", "schedule.warmup", "batch.factor", "amp.dtype")} == {
        "optimizer.lr": 0.01,
        "schedule.warmup": 0.2,
        "batch.factor": 4.0,
        "amp.dtype": "bfloat16",
    }
    assert not any(path.startswith(("boost.", "loss_scale.", "runtime.")) for path in made)


def test_every_choice_goes_somewhere() -> None:
    plan = SET_UP.resolve("O1")
    sorting = Sorting("Loops", plan)
    sorting.carry("amp.level", "amp.dtype", "amp.keep_batchnorm_fp32", bf16=True)
    sorting.carry("regularization.label_smoothing", smoothing=sorting.value("regularization.label_smoothing"))
    sorting.leave("Loops has one batch size", "batch")
    carried = sorting.done()
    assert carried.arguments == {"bf16": True, "smoothing": 0.0}
    assert carried.carriers["amp.dtype"] == ("bf16",)
    assert "regularization.label_smoothing" not in carried.carriers, "it was not chosen"
    assert carried.left["batch.factor"] == "Loops has one batch size"
    assert carried.left["optimizer.name"] == "Loops has no argument for it"
    assert {*carried.carriers, *carried.left} == set(choices(plan))
    assert not carried.is_whole
    assert Sorting("Loops", BoostConfig().resolve("O0")).done().is_whole


@pytest.mark.parametrize(("own", "rate"), [(None, 0.02), (0.5, 0.02)])
def test_the_rate_follows_the_batch(own: float | None, rate: float) -> None:
    assert learning_rate(SET_UP, own) == pytest.approx(rate)
    assert learning_rate(BoostConfig(), own) == own
