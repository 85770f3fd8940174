"""AdamOffload as a torch optimizer: exact references, groups, skips, resuming, schedules."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from tests.kit.twins import assert_close
from workbench.optim.adam_offload.optimizer import AdamOffload


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def backward(net: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    parameter = next(net.parameters())
    net(x.to(parameter.dtype)).square().mean().backward()


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        backward(net, step)
        optimizer.step()
        optimizer.zero_grad()


class PlainAdam:
    """Adam as behaviour.md writes it, in float64, one tensor at a time."""

    def __init__(self, decay: float = 0.0, loss_scale: float = 1.0, nesterov: bool = False, eps: float = 1e-8) -> None:
        self.decay, self.loss_scale, self.nesterov, self.eps = decay, loss_scale, nesterov, eps
        self.moments: dict[Tensor, tuple[int, Tensor, Tensor]] = {}

    @torch.no_grad()
    def update(self, weight: Tensor, gradient: Tensor, rate: float, b1: float = 0.9, b2: float = 0.999) -> None:
        t, m, v = self.moments.get(weight, (0, torch.zeros_like(weight), torch.zeros_like(weight)))
        g = (gradient + self.decay * self.loss_scale * weight) / self.loss_scale
        t, m, v = t + 1, b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        self.moments[weight] = t, m, v
        top = b1 * m + (1 - b1) * g if self.nesterov else m
        weight -= rate * math.sqrt(1 - b2**t) / (1 - b1**t) * top / (v.sqrt() + self.eps)


@pytest.mark.parametrize(
    ("decay", "loss_scale", "nesterov"), [(0.0, 1.0, False), (0.0, 48.0, True), (0.1, 1.0, True), (0.1, 48.0, False)]
)
def test_hundred_steps_equal_plain_adam_in_float64(decay: float, loss_scale: float, nesterov: bool) -> None:
    net = network(torch.float64)
    twin = copy.deepcopy(net)
    groups = [{"params": list(net.parameters())}]
    optimizer = AdamOffload(groups, 0.01, eps=1e-4, use_nesterov=nesterov, weight_decay=decay, loss_scale=loss_scale)
    plain = PlainAdam(decay, loss_scale, nesterov, eps=1e-4)
    for step in range(100):
        backward(net, step)
        for ours in net.parameters():
            ours.grad.mul_(loss_scale)
        optimizer.step()
        optimizer.zero_grad()
        backward(twin, step)
        for theirs in twin.parameters():
            plain.update(theirs, theirs.grad * loss_scale, 0.01)
            theirs.grad = None
    assert_close(net, twin, rtol=1e-10, atol=1e-12)


@settings(max_examples=20)
@given(
    of=st.tuples(*[st.integers(0, 2)] * 4),
    rates=st.tuples(*[st.sampled_from([0.0, 0.01, 0.1])] * 3),
    decays=st.tuples(*[st.sampled_from([0.0, 0.05])] * 3),
    present=st.lists(st.tuples(*[st.booleans()] * 4), min_size=1, max_size=6),
)
def test_groups_and_missing_gradients_are_parameters_on_their_own(
    of: Sequence[int], rates: Sequence[float], decays: Sequence[float], present: list[Sequence[bool]]
) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(3, 2, dtype=torch.float64, generator=generator) for _ in of]
    weights = [nn.Parameter(w.clone()) for w in start]
    groups = [
        {"params": [w for w, g in zip(weights, of, strict=True) if g == k], "lr": rates[k], "weight_decay": decays[k]}
        for k in sorted(set(of))
    ]
    optimizer = AdamOffload(groups)
    plain = [PlainAdam(decays[k]) for k in of]
    for flags in present:
        for i, flag in enumerate(flags):
            gradient = torch.randn(3, 2, dtype=torch.float64, generator=generator)
            weights[i].grad = gradient if flag else None
            if flag:
                plain[i].update(start[i], gradient, rates[of[i]])
        optimizer.step()
    torch.testing.assert_close([weight.detach() for weight in weights], start, rtol=1e-10, atol=1e-12)


def test_a_state_of_torch_adam_is_taken() -> None:
    net = network(torch.float64)
    theirs = torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-30)
    train(net, theirs, range(3))
    twin = copy.deepcopy(net)
    ours = AdamOffload(twin.parameters(), eps=1e-30)
    ours.load_state_dict(theirs.state_dict())
    train(net, theirs, range(3, 6))
    train(twin, ours, range(3, 6))  # with a vanishing eps both formulas are one
    assert_close(net, twin, rtol=1e-9, atol=1e-12)


def test_a_list_of_rates_ends_with_a_sentence_and_changes_nothing() -> None:
    net = network()
    optimizer = AdamOffload(net.parameters(), [0.1, 0.2])
    assert optimizer.param_groups[0]["lr"] == 0.1
    train(net, optimizer, range(2))
    before = copy.deepcopy(net.state_dict())
    backward(net, 2)
    with pytest.raises(RuntimeError, match="has 2 entries, one per step, and step 2"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))


def test_one_cycle_moves_rate_and_betas() -> None:
    net = network()
    optimizer = AdamOffload(net.parameters())
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=5)
    seen = set()
    for step in range(4):
        train(net, optimizer, range(step, step + 1))
        scheduler.step()
        seen.add((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]))
    assert len(seen) == 4


def test_names_and_types_of_normalizations_are_not_decayed() -> None:
    net = network()
    optimizer = AdamOffload(net, 0.0, weight_decay=0.1)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    # With no gradient and no rate only the decay reaches the moments.
    moved = {name: bool(optimizer.state[p]["exp_avg"].any()) for name, p in net.named_parameters()}
    assert moved == {name: not name.startswith("1.") for name in moved}
    named = AdamOffload([("block.gamma", nn.Parameter(torch.ones(2)))], 0.0, weight_decay=0.1)
    [gamma] = named.parameters
    gamma.grad = torch.zeros(2)
    named.step()
    assert not named.state[gamma]["exp_avg"].any()
    with pytest.warns(UserWarning, match="without names"):  # then all are
        AdamOffload(network().parameters(), weight_decay=0.1)


def test_a_group_may_join_later() -> None:
    net = network()
    optimizer = AdamOffload([{"params": net[0].parameters()}], 0.1)
    train(net, optimizer, range(2))
    optimizer.add_param_group({"params": list(net[3].parameters()), "lr": lambda step: 0.1 * step})
    before = net[3].weight.detach().clone()
    train(net, optimizer, range(2, 3))
    assert not torch.equal(before, net[3].weight)
    assert float(optimizer.state[net[0].weight]["step"]) == 3
    assert float(optimizer.state[net[3].weight]["step"]) == 1


def test_gradients_laid_out_otherwise_are_read_rightly() -> None:
    one, two = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(3, 2))
    gradient = torch.arange(6.0).view(3, 2) + 1
    one.grad, two.grad = gradient.clone(), gradient.t().contiguous().t()
    optimizer = AdamOffload([one, two])
    optimizer.step()
    assert torch.equal(optimizer.state[one]["exp_avg"], optimizer.state[two]["exp_avg"])
    assert torch.equal(one, two)


def test_a_loaded_state_is_a_copy_and_gradients_are_left_as_they_are() -> None:
    weight, twin = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer, other = (AdamOffload([("w", one)], weight_decay=0.1, loss_scale=4.0) for one in (weight, twin))
    weight.grad, twin.grad = torch.full((3,), 8.0), torch.full((3,), -8.0)
    optimizer.step()
    assert torch.equal(weight.grad, torch.full((3,), 8.0))
    before = copy.deepcopy(optimizer.state_dict()["state"][0])
    other.load_state_dict(optimizer.state_dict())
    other.step()
    assert all(torch.equal(value, before[key]) for key, value in optimizer.state_dict()["state"][0].items())


def test_a_parameter_twice_in_a_list_is_a_bad_value_and_in_groups_an_error() -> None:
    # The reference tells the two apart.
    weight = nn.Parameter(torch.zeros(4))
    with pytest.raises(ValueError, match="`params` must hold each parameter once, got one twice"):
        AdamOffload([weight, weight])
    with pytest.raises(RuntimeError, match="a parameter was given twice; each must be in one group, once"):
        AdamOffload([{"params": [weight]}, {"params": [weight]}])
    with pytest.raises(ValueError, match=r"learning_rate\(0\)"):
        AdamOffload([weight], lambda step: math.nan)


def test_threads_take_turns_under_the_lock() -> None:
    weight = nn.Parameter(torch.zeros(4))
    weight.grad = torch.ones(4)
    optimizer = AdamOffload([weight], 0.01, use_locking=True)
    threads = [threading.Thread(target=lambda: [optimizer.step() for _ in range(25)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert optimizer.global_step == 100
    assert float(optimizer.state[weight]["step"]) == 100
