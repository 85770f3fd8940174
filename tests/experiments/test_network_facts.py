"""Facts of a task's network agree with what happens to it when it is boosted."""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.experiments.small_tasks import Net, small_task
from workbench.config import BoostConfig, NetworkFacts
from workbench.methods.grad_freeze.method import FreezeOpt
from workbench.methods.less_bn.method import LessBNReport
from workbench.training import apply
from workbench.training.task_look import network_facts


class Block(nn.Module):
    """Two convolutions with BatchNorms, and their input added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of the shape of ``x``."""
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


def residual() -> nn.Module:
    stem = [nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*stem, Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def boosted(make: Callable[[], nn.Module], config: BoostConfig) -> tuple[nn.Module, object, BoostConfig]:
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pair = apply(config, model, SGD(model.parameters(), lr=0.1))
    assert pair.plan is not None
    return model, pair.optimizer, pair.plan.explicit_config()


@functools.cache
def facts_of(make: Callable[[], nn.Module]) -> NetworkFacts:
    return network_facts(small_task(model=make))


@pytest.mark.parametrize("make", [residual, plain, Net])
@pytest.mark.parametrize("groups", range(2, 9))
@pytest.mark.parametrize("less_bn", [False, True])
def test_what_the_facts_say_acts_is_what_acted(make: Callable[[], nn.Module], groups: int, less_bn: bool) -> None:
    config = BoostConfig.from_dict({"grad_freeze": {"param_groups": groups}, "less_bn": {"fn_flag": False}})
    config = config.with_values({"boost.mode": "manual", "boost.less_bn": less_bn})
    plan = config.resolve("O1", network=facts_of(make))
    model, optimizer, explicit = boosted(make, config)
    report = getattr(model, "less_bn_report", LessBNReport((), (), ()))
    assert plan.less_bn == bool(report.removed)
    assert plan.grad_freeze == isinstance(optimizer, FreezeOpt)
    assert explicit == plan.explicit_config()


def test_a_plain_network_has_nothing_for_less_bn() -> None:
    found = network_facts(small_task(model=plain))
    assert replace(found, no_smoothing="", no_resolution="", no_sequence="") == NetworkFacts(0, 0, 1, 1, 0, 1)


def test_only_what_the_task_s_optimizer_holds_forms_layers() -> None:
    def frozen_front() -> nn.Module:
        model = residual()
        for parameter in list(model.parameters())[:9]:
            parameter.requires_grad_(False)
        return model

    whole, part = network_facts(small_task(model=residual)), network_facts(small_task(model=frozen_front))
    assert part.layers < whole.layers


def test_measuring_leaves_random_generators_as_they_were() -> None:
    def draws() -> nn.Module:
        random.random()
        np.random.rand()  # noqa: NPY002  # as a user's model may
        return residual()

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]  # noqa: NPY002
    network_facts(small_task(model=draws))
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]  # noqa: NPY002
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])
