"""Schedule-Free AdamW against the three sequences of its paper in float64, and as an optimizer of a run."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.kit.twins import through_file
from workbench.config import BoostConfig, OptimizerConfig
from workbench.methods.grad_freeze.freeze_optimizer import FreezeOpt
from workbench.optim import build_optimizer
from workbench.optim.schedule_free import ScheduleFreeAdamW
from workbench.tasks import Task
from workbench.training.setup import prepare


def gradient_of(weights: Tensor) -> Tensor:
    """Return the gradient of a quartic whose minimum lies at 1, 2, 3."""
    return (weights - torch.arange(1, 4)) ** 3 + 0.1 * torch.sin(20 * weights)


def published(start: Tensor, steps: int, rate: float, betas: tuple[float, float], decay: float, warm: int) -> Tensor:
    """Return x and y after some steps: algorithm 1 line by line, float64, shape [2, n]."""
    x = z = start.double()
    v, total = torch.zeros_like(x), 0.0
    for t in range(1, steps + 1):
        y = (1 - betas[0]) * z + betas[0] * x
        g = gradient_of(y)
        v = betas[1] * v + (1 - betas[1]) * g**2
        gamma = rate * math.sqrt(1 - betas[1] ** t) * min(1.0, t / warm if warm else 1.0)
        z = z - gamma * g / (v.sqrt() + 1e-8) - gamma * decay * y
        total += gamma**2
        c = gamma**2 / total
        x = (1 - c) * x + c * z
    return torch.stack([x, (1 - betas[0]) * z + betas[0] * x])


def stepped(optimizer: ScheduleFreeAdamW, weight: nn.Parameter, steps: int) -> None:
    for _ in range(steps):
        weight.grad = gradient_of(weight.detach())
        optimizer.step()


@pytest.mark.parametrize(
    ("betas", "decay", "warm"), [((0.9, 0.999), 0.0, 0), ((0.95, 0.9), 0.1, 0), ((0.8, 0.99), 0.3, 7)]
)
@pytest.mark.parametrize("steps", [1, 30])
def test_both_weights_are_those_of_the_paper(betas: tuple[float, float], decay: float, warm: int, steps: int) -> None:
    weight = nn.Parameter(torch.tensor([3.0, -1.0, 0.5], dtype=torch.float64))
    expected = published(weight.detach(), steps, 0.05, betas, decay, warm)
    optimizer = ScheduleFreeAdamW([weight], lr=0.05, betas=betas, weight_decay=decay, warmup_steps=warm)
    stepped(optimizer, weight, steps)
    assert torch.allclose(weight, expected[1], rtol=1e-12)
    optimizer.eval()
    assert torch.allclose(weight, expected[0], rtol=1e-11)


def test_evaluating_changes_no_bit_of_what_follows() -> None:
    weight, other = (nn.Parameter(torch.tensor([3.0, -1.0, 0.5])) for _ in range(2))
    optimizer, unwatched = ScheduleFreeAdamW([weight], lr=0.03), ScheduleFreeAdamW([other], lr=0.03)
    for _ in range(20):
        stepped(optimizer, weight, 1)
        stepped(unwatched, other, 1)
        trained = weight.detach().clone()
        optimizer.eval()
        optimizer.eval()
        assert torch.equal(weight, trained) is (optimizer.state[weight]["step"] == 1)  # x = y = z after one step
        optimizer.train()
        optimizer.train()
    assert torch.equal(weight, other)
    assert "y" not in optimizer.state[weight]


def test_what_was_saved_while_evaluating_goes_on_with_the_same_bits() -> None:
    weight, straight = (nn.Parameter(torch.tensor([3.0, -1.0, 0.5])) for _ in range(2))
    stepped(ScheduleFreeAdamW([straight], lr=0.03), straight, 9)
    optimizer = ScheduleFreeAdamW([weight], lr=0.03)
    stepped(optimizer, weight, 4)
    optimizer.eval()
    saved = through_file({"weight": weight.detach(), "optimizer": optimizer.state_dict()})
    resumed = nn.Parameter(saved["weight"])
    again = ScheduleFreeAdamW([resumed], lr=1.0)
    again.load_state_dict(saved["optimizer"])
    again.train()
    stepped(again, resumed, 5)
    assert torch.equal(resumed, straight)


def test_a_parameter_that_rests_goes_on_as_if_nothing_had_been() -> None:
    resting, steady, beside = (nn.Parameter(torch.tensor([3.0, -1.0, 0.5])) for _ in range(3))
    optimizer, alone = ScheduleFreeAdamW([resting, beside], lr=0.03), ScheduleFreeAdamW([steady], lr=0.03)
    for step in range(9):
        resting.grad = None if 3 <= step < 6 else gradient_of(resting.detach())
        beside.grad = gradient_of(beside.detach())
        optimizer.step()
    stepped(alone, steady, 6)
    assert torch.equal(resting, steady)
    optimizer.eval()
    alone.eval()
    assert torch.equal(resting, steady)


def normalized() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def task(*, scheduler: bool = False) -> Task:
    def batches(seed: int) -> list[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(10, 16, 4, generator=generator)
        return [(one, (one[:, 0] > 0).long()) for one in inputs]

    return Task(
        name="normalized",
        model=normalized,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda named: torch.optim.SGD([one for _, one in named], lr=0.1),
        train=batches,
        evaluate=lambda seed: batches(seed + 100),
        metric="accuracy",
        scheduler=(lambda optimizer, steps: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0))
        if scheduler
        else None,
    )


FREE = BoostConfig.from_dict({"optimizer": {"name": "ScheduleFreeAdamW", "lr": 0.02}})


def test_a_run_is_evaluated_with_the_averages_and_trained_without_them() -> None:
    prepared = prepare(task(), FREE, level="O0", seed=0, device=torch.device("cpu"), steps=20)
    boosted, batches = prepared.boosted, prepared.batches(0)
    for _ in range(5):
        boosted.backward(prepared.task.compute_loss(boosted.model, next(batches)))
        boosted.step()
    state = copy.deepcopy(boosted.model.state_dict())
    random = torch.random.get_rng_state()
    with boosted.evaluating():
        inside = copy.deepcopy(boosted.model.state_dict())
    assert torch.equal(torch.random.get_rng_state(), random)
    changed = {name for name in state if not torch.equal(state[name], inside[name])}
    assert {"0.weight", "1.running_mean", "1.running_var"} <= changed
    twin = normalized()  # statistics at the averages: plain means over the last batches of training
    twin.load_state_dict(inside)
    means = torch.stack([twin[0](inputs).mean(0) for inputs, _ in itertools.islice(task().batches(0), 5)])
    assert torch.allclose(inside["1.running_mean"], means.mean(0), atol=1e-6)
    after = boosted.model.state_dict()
    assert all(torch.equal(state[name], after[name]) for name in state)
    assert boosted.model.training


def test_the_schedule_of_a_task_is_left_out_and_one_that_is_asked_for_is_not() -> None:
    for config, is_asked_for in ((FREE, False), (FREE.with_values({"schedule.shape": "linear"}), True)):
        made = prepare(task(scheduler=True), config, level="O0", seed=0, device=torch.device("cpu"), steps=20)
        assert (made.boosted.course.scheduler is not None) is is_asked_for


def test_freezing_wraps_it_with_shared_state_only() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    groups = [list(net.parameters()), list(net[1].parameters())]
    optimizer = FreezeOpt(ScheduleFreeAdamW(net.parameters()), groups, [0, 1])
    optimizer.begin_step()
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    before = net[0].weight.detach().clone()
    optimizer.eval()
    optimizer.train()
    assert torch.equal(net[0].weight, before)
    with pytest.raises(ValueError, match=r'ScheduleFreeAdamW averages weights.*use state="shared"'):
        FreezeOpt(ScheduleFreeAdamW(net.parameters()), groups, [0, 1], state="per_group")
    assert not hasattr(FreezeOpt(torch.optim.SGD(net.parameters(), lr=0.1), groups, [0, 1]), "eval")


def test_a_configuration_builds_it_and_a_step_with_the_averages_in_place_is_an_error() -> None:
    section = OptimizerConfig(name="ScheduleFreeAdamW", lr=0.1, betas=(0.8, 0.9), warmup_steps=3, weight_decay=0.2)
    optimizer = build_optimizer(section, nn.Linear(2, 2))
    assert isinstance(optimizer, ScheduleFreeAdamW)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["warmup_steps"], group["weight_decay"]) == (0.1, (0.8, 0.9), 3, 0.2)
    optimizer.eval()
    with pytest.raises(RuntimeError, match=r"call train\(\)"):
        optimizer.step()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda one: ScheduleFreeAdamW([one], lr=-1.0), "`lr`"),
        (lambda one: ScheduleFreeAdamW([one], betas=(0.0, 0.9)), "`betas` must lie in"),
        (lambda one: ScheduleFreeAdamW([one], warmup_steps=-1), "`warmup_steps` must be at least 0"),
        (lambda one: ScheduleFreeAdamW([one], warmup_steps=0.5), "`warmup_steps` must be a whole number"),
        (lambda one: ScheduleFreeAdamW([one], eps=0.0), "`eps`"),
    ],
)
def test_what_cannot_work_is_refused(make: Callable[[nn.Parameter], object], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        make(nn.Parameter(torch.zeros(3)))
