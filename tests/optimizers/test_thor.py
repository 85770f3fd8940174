"""THOR as an optimizer: its step, its refreshes, what it remembers, and what it does in company."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kit.configurations import accumulating
from tests.kit.twins import assert_close, assert_same, values
from tests.optimizers.thor_formulas import block_inverse, dense, layer_norm_step, precondition
from tests.scaling.host_reads import forbid_host_reads
from workbench.core.records import Event, EventKind
from workbench.loss_scale import decides_on_device, step_if_finite
from workbench.methods.grad_centralization.method import register_centralization
from workbench.methods.grad_freeze.freeze_optimizer import FreezeOpt
from workbench.methods.parameter_groups import rebuild_optimizer
from workbench.optim.thor.optimizer import NamedParameter, Thor
from workbench.training import Boosted, TraceBuffer, apply, training_loop

UNBOUNDED = math.inf


class Events:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.emit = self.told.append


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(48, 10),
        nn.LayerNorm(10),
        nn.Linear(10, 4),
    ).to(dtype)


def batch(step: int, dtype: torch.dtype = torch.float32, n: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(n, 1, 4, 4, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(4, (n,), generator=generator)


def thor(net: nn.Module, **options: Any) -> Thor:
    return Thor(net, **({"learning_rate": 0.05, "damping": 0.1, "momentum": 0.9, "frequency": 3} | options))


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    dtype = next(net.parameters()).dtype
    for step in steps:
        x, y = batch(step, dtype)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


def train_boosted(boosted: Boosted, steps: range) -> None:
    for step in steps:
        x, y = batch(step)
        boosted.backward(F.cross_entropy(boosted.model(x), y))
        boosted.step()


# The step


def test_a_hundred_steps_are_those_of_a_plain_implementation() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3)).double()
    twin = copy.deepcopy(net)
    rate, damping, momentum, decay, frequency, block, past, floor = 0.05, 0.1, 0.9, 1e-3, 4, 4, 0.6, 3.0
    optimizer = Thor(
        net, rate, damping, momentum, decay, batch_size=20, use_nesterov=True, frequency=frequency, block_size=block,
        factor_decay=past, kl_clip=3e-4, damping_floor=floor,
    )  # fmt: skip
    linears, norm = (twin[0], twin[3]), twin[2]
    buffers = {name: torch.zeros_like(p) for name, p in twin.named_parameters()}
    factors: dict[int, tuple[Tensor, Tensor]] = {}
    inverses: dict[int, tuple[Tensor, Tensor]] = {}
    clipped, floored = 0, []
    for step in range(100):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(20, 5, dtype=torch.float64, generator=generator)
        y = torch.randint(3, (20,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

        twin.zero_grad()
        hidden = twin[0](x)
        normed = twin[2](hidden.tanh())
        logits = twin[3](normed)
        hidden.retain_grad()
        logits.retain_grad()
        F.cross_entropy(logits, y).backward()
        entering, leaving = (x, normed.detach()), (hidden.grad, logits.grad)
        directions = {name: p.grad.clone() for name, p in twin.named_parameters() if p.grad is not None}
        for number, (layer, name) in enumerate(zip(linears, ("0.weight", "3.weight"), strict=True)):
            if step % frequency == 0:
                a = entering[number].T @ entering[number] / 20
                g = 20 * leaving[number].T @ leaving[number]
                if number in factors:
                    a, g = (past * old + (1 - past) * new for old, new in zip(factors[number], (a, g), strict=True))
                factors[number] = a, g
                pi = math.sqrt(float(a.trace() / len(a)) / float(g.trace() / len(g)))
                least = floor * float(a.trace() / len(a)) * float(g.trace() / len(g))
                floored.append(least > damping)
                root = math.sqrt(max(damping, least))
                inverses[number] = block_inverse(a, root * pi, block), block_inverse(g, root / pi, block)
            directions[name] = precondition(layer.weight.grad, *inverses[number])
        length = sum(
            float((directions[name] * layer.weight.grad).sum())
            for layer, name in zip(linears, ("0.weight", "3.weight"), strict=True)
        )
        bound = min(1.0, math.sqrt(3e-4 / (rate**2 * length)))
        clipped += bound < 1
        for name in ("0.weight", "3.weight"):
            directions[name] *= bound
        for key, parameter in norm.named_parameters():
            directions[f"2.{key}"] = layer_norm_step(parameter.grad, damping, 20)
        with torch.no_grad():
            for name, parameter in twin.named_parameters():
                direction = directions[name] + decay * parameter
                buffers[name].mul_(momentum).add_(direction)
                parameter -= rate * (direction + momentum * buffers[name])
        for (name, mine), plain in zip(net.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-9, atol=1e-11, msg=f"{name} after {step + 1} steps")
    assert 0 < clipped < 100
    assert 0 < sum(floored) < len(floored)


def test_a_layer_that_is_called_twice_has_both_calls_in_its_factors() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3).double()
    optimizer = thor(layer)
    x = torch.randn(6, 3, dtype=torch.float64)
    between = layer(x)
    layer(between.tanh()).square().sum().backward()
    optimizer.step()
    engine = optimizer.preconditioner
    both = torch.cat([x, between.tanh()]).detach()
    torch.testing.assert_close(dense(engine.blocks, engine.layers[0].a, engine.blocks.factors), both.T @ both / 12)


def test_low_precision_weights_have_factors_in_float32() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(torch.bfloat16)
    optimizer = thor(net)
    x = torch.randn(16, 6).to(torch.bfloat16)
    before = values(net)
    for _ in range(4):
        optimizer.zero_grad()
        net(x).float().square().mean().backward()
        optimizer.step()
    assert all(inverse.dtype == torch.float32 for inverse in optimizer.preconditioner.blocks.inverses.values())
    assert not torch.equal(before["0.weight"], values(net)["0.weight"])
    assert all(torch.isfinite(value).all() for value in values(net).values())
    state = optimizer.state_dict()
    optimizer.load_state_dict(copy.deepcopy(state))
    blocks = optimizer.preconditioner.blocks
    assert torch.equal(blocks.packed(blocks.inverses), state["thor"]["inverses"])  # torch would cast them like weights


def test_weights_that_lie_in_another_order_in_memory_train_alike() -> None:
    plain, turned = network(), network().to(memory_format=torch.channels_last)
    train(plain, thor(plain), range(5))
    train(turned, thor(turned), range(5))
    assert_close(turned, plain, rtol=2e-4, atol=2e-5)


def test_clipping_bounds_every_tensors_step() -> None:
    net = network()
    optimizer = thor(net, learning_rate=1.0, momentum=0.0, enable_clip_grad=True, damping=1e-4, kl_clip=UNBOUNDED)
    before = values(net)
    train(net, optimizer, range(1))
    lengths = {name: float((before[name] - p.detach()).norm()) for name, p in net.named_parameters()}
    assert max(lengths.values()) == pytest.approx(1.0, rel=1e-4)
    assert min(lengths.values()) < 0.9


# Arguments


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"learning_rate": "fast"}, TypeError, "`learning_rate` must be a number, got str"),
        ({"learning_rate": torch.ones(2, 2)}, ValueError, "`learning_rate` must be 1-D"),
        ({"learning_rate": torch.tensor([0.1, float("nan")])}, ValueError, "`learning_rate` must be finite"),
        ({"learning_rate": lambda step: None}, TypeError, r"`learning_rate\(0\)` must be a number"),
        ({"damping": 0.0}, ValueError, "`damping` must be above 0"),
        ({"momentum": -0.9}, ValueError, "`momentum` must be finite and at least 0"),
        ({"weight_decay": -1e-3}, ValueError, "`weight_decay` must be finite and at least 0"),
        ({"loss_scale": 0.0}, ValueError, "`loss_scale` must be finite and above 0"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be at least 1"),
        ({"use_nesterov": 1}, TypeError, "`use_nesterov` must be a bool"),
        ({"enable_clip_grad": "yes"}, TypeError, "`enable_clip_grad` must be a bool"),
        ({"decay_filter": 3}, TypeError, "`decay_filter` must be callable"),
        ({"frequency": 1}, ValueError, "`frequency` must be at least 2, got 1"),
        ({"split_indices": 3}, TypeError, "`split_indices` must be a list or tuple"),
        ({"split_indices": [2, 1]}, ValueError, "`split_indices` must rise"),
        ({"block_size": 0}, ValueError, "`block_size` must be at least 1"),
        ({"factors": "tensorflow"}, ValueError, '`factors` must be "default" or "mindspore"'),
        ({"damping_split": "odd"}, ValueError, '`damping_split` must be "trace" or "even"'),
        ({"factor_decay": 1.0}, ValueError, r"`factor_decay` must lie in \[0, 1\)"),
        ({"trace_threshold": -1.0}, ValueError, "`trace_threshold` must be finite and at least 0"),
        ({"kl_clip": 0.0}, ValueError, "`kl_clip` must be finite and above 0"),
        ({"max_rows": 0}, ValueError, "`max_rows` must be at least 1"),
    ],
)
def test_a_bad_argument_is_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        thor(nn.Linear(2, 2), **options)


def test_the_network_is_needed() -> None:
    net = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"`net` must be a torch.nn.Module \(or give `network`\), got generator"):
        thor(net.parameters())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`net` must have a parameter to train"):
        thor(net.requires_grad_(False))


def test_rates_and_damping_follow_their_tensors_and_functions_and_stay_at_the_end() -> None:
    net = network()
    optimizer = thor(net, learning_rate=torch.tensor([0.3, 0.2]), damping=lambda step: 1.0 / (step + 1))
    (group,) = optimizer.param_groups
    for step, rate in enumerate((0.3, 0.2, 0.2, 0.2)):
        assert (group["lr"], group["damping"]) == (pytest.approx(rate), 1.0 / (step + 1))
        train(net, optimizer, range(step, step + 1))
        assert optimizer.columns()["thor.damping"] == pytest.approx(1.0 / (step + 1))


def test_groups_keep_what_they_say_and_the_filter_asks_by_name() -> None:
    net = network()
    groups = [
        {"params": list(net[0].parameters()), "lr": 0.7, "weight_decay": 0.5},
        {"params": [*net[4].parameters(), *net[6].parameters()]},
    ]
    asked: list[str] = []

    def decays(parameter: NamedParameter) -> bool:
        asked.append(parameter.name)
        return parameter.name.endswith("weight")

    optimizer = Thor(groups, torch.tensor([0.3, 0.2]), 0.1, 0.0, 0.25, decay_filter=decays, network=net, frequency=2)
    x, y = batch(0)
    for _ in range(2):
        before = values(net)
        F.cross_entropy(net(x), y).backward()
        for parameter in net.parameters():
            parameter.grad = None if parameter.grad is None else torch.zeros_like(parameter)
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == 0.7
        rates = {"0.weight": 0.7 * 0.5, "0.bias": 0.7 * 0.5, "4.bias": 0.0, "1.weight": 0.0}
        for name, decay in rates.items():
            torch.testing.assert_close(values(net)[name], before[name] * (1 - decay), msg=name)
        net.zero_grad()
    assert sorted(asked) == ["4.bias", "4.weight", "6.bias", "6.weight"]  # once each
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.2)


# Refreshes


def hooks_on(net: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in net.modules())


def test_hooks_are_there_on_refresh_steps_only_and_evaluation_leaves_no_trace() -> None:
    net = network()
    optimizer = thor(net)
    for step in range(7):
        assert hooks_on(net) == (3 if step % 3 == 0 else 0)
        with torch.no_grad():
            net(batch(99)[0])
        F.cross_entropy(net(batch(98)[0]), batch(98)[1])  # no backward pass follows
        assert all(layer.tally.calls == 0 for layer in optimizer.preconditioner.layers)
        train(net, optimizer, range(step, step + 1))
        assert optimizer.columns()["thor.refreshed"] == float(step % 3 == 0)


def test_no_activation_outlives_its_graph_and_no_hook_its_optimizer() -> None:
    net = network()
    optimizer = thor(net)
    kept: list[weakref.ref[Any]] = []
    handle = net[2].register_forward_hook(lambda module, args, output: kept.append(weakref.ref(output)))
    train(net, optimizer, range(1))
    F.cross_entropy(net(batch(1)[0]), batch(1)[1])
    gc.collect()
    assert [reference() for reference in kept] == [None, None]
    handle.remove()
    kept = [weakref.ref(thor(net).preconditioner), weakref.ref(optimizer.preconditioner)]
    del optimizer
    gc.collect()
    assert [reference() for reference in kept] == [None, None]
    assert hooks_on(net) == 0


def test_the_trace_rule_leaves_alone_what_hardly_changed() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
    optimizer = Thor(net, 0.0, 0.1, 0.0, frequency=2, trace_threshold=0.1, factor_decay=0.0)
    events = Events()
    optimizer.set_step_context(events=events)
    x = torch.randn(8, 4, dtype=torch.float64)
    engine = optimizer.preconditioner
    inverses = []
    for factor in (1.0, 1.0, 1.04, 1.04, 2.0):  # the trace of A grows by the square, that of G stays
        optimizer.zero_grad()
        hidden = net[0](x * factor)
        (net[1](hidden.detach()).sum() / 8 + hidden.sum() / 8).backward()
        optimizer.step()
        inverses.append(dense(engine.blocks, engine.layers[0].a, engine.blocks.inverses))
    assert torch.equal(inverses[0], inverses[3])  # 8 % is too little
    assert not torch.equal(inverses[3], inverses[4])
    refreshed = [event for event in events.told if event.kind is EventKind.FACTORS_REFRESHED]
    assert [(event.step, event.value) for event in refreshed] == [(0, 2.0), (2, 0.0), (4, 2.0)]
    assert refreshed[1].message == "step 2: factors of 0 layers were recomputed, 2 left alone by the trace rule"


def test_a_block_that_is_not_positive_definite_is_damped_more_and_told() -> None:
    torch.manual_seed(0)
    net = nn.Linear(40, 3)
    # 1e8 in every entry of A is of rank one; in float32 the damping drowns in its rounding.
    x = torch.full((6, 40), 1e4) + torch.randn(6, 40)
    optimizer = Thor(net, 0.0, 1e-12, 0.0, damping_split="even", damping_floor=0.0, frequency=2)
    events = Events()
    optimizer.set_step_context(step=7, events=events)
    net(x).square().mean().backward()
    optimizer.step()
    raised = [event for event in events.told if event.kind is EventKind.DAMPING_RAISED]
    assert raised
    assert raised[0].step == 7
    assert raised[0].subject == ""  # the network is the layer
    assert raised[0].value >= 1e-5
    assert "factor A of  was not positive definite" in raised[0].message
    engine = optimizer.preconditioner
    assert all(torch.isfinite(inverse).all() for inverse in engine.blocks.inverses.values())
    assert not torch.equal(dense(engine.blocks, engine.layers[0].a, engine.blocks.inverses), torch.eye(40))


# Overflow and loss scale


def test_an_overflow_changes_nothing_and_the_refresh_is_made_up_for() -> None:
    net, clean = network(), network()
    optimizer, other = thor(net), thor(clean)
    assert decides_on_device(optimizer)
    before = values(net)
    x, y = batch(0)
    (F.cross_entropy(net(x), y) * float("inf")).backward()
    step_if_finite(optimizer, torch.ones(()))
    assert all(torch.equal(parameter, before[name]) for name, parameter in net.named_parameters())
    assert all(torch.equal(state["momentum_buffer"], torch.zeros_like(p)) for p, state in optimizer.state.items())
    unit = {bin_: torch.eye(bin_).expand_as(v) for bin_, v in optimizer.preconditioner.blocks.inverses.items()}
    assert all(torch.equal(v, unit[bin_]) for bin_, v in optimizer.preconditioner.blocks.inverses.items())
    net.load_state_dict(before)
    train(net, optimizer, range(1))
    train(clean, other, range(1))
    assert optimizer.columns()["thor.refreshed"] == 1.0
    assert_same(net, clean)


def test_a_step_between_refreshes_reads_nothing_from_the_device() -> None:
    net = network()
    optimizer = thor(net)
    train(net, optimizer, range(1))
    x, y = batch(1)
    F.cross_entropy(net(x), y).backward()
    with forbid_host_reads():
        optimizer.step_with_found_inf(torch.zeros(()))


def as_on_an_accelerator(optimizer: Thor) -> Thor:
    optimizer.preconditioner.blocks.host_decides = False
    return optimizer


def test_masks_decide_as_the_host_does() -> None:
    net, plain = network(torch.float64), network(torch.float64)
    options = {"trace_threshold": 0.3, "factor_decay": 0.5}
    optimizer, other = as_on_an_accelerator(thor(net, **options)), thor(plain, **options)
    events, wanted = Events(), Events()
    optimizer.set_step_context(events=events)
    other.set_step_context(events=wanted)
    for step in range(13):
        for model, its in ((net, optimizer), (plain, other)):
            x, y = batch(step, torch.float64)
            its.zero_grad()
            F.cross_entropy(model(x), y).backward()
            its.step_with_found_inf(torch.zeros(()))
        assert_close(net, plain, rtol=1e-9, atol=1e-11)
        assert len(events.told) == sum(event.step + 4 <= step + 1 for event in wanted.told)
    assert [(e.step, e.kind, e.value) for e in events.told] == [(e.step, e.kind, e.value) for e in wanted.told][:4]
    assert {event.value for event in wanted.told} > {3.0}  # the trace rule kept some


def test_on_an_accelerator_a_whole_refresh_reads_nothing_and_a_spoilt_one_is_made_up_for() -> None:
    net = network()
    optimizer = as_on_an_accelerator(thor(net, frequency=20))
    x, y = batch(0)
    F.cross_entropy(net(x), y).backward()
    with forbid_host_reads():
        optimizer.step_with_found_inf(torch.ones(()))
    refreshed = []
    for step in range(1, 9):
        train(net, optimizer, range(step, step + 1))
        refreshed.append(optimizer.columns()["thor.refreshed"])
    assert refreshed == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]  # four steps after the overflow


@pytest.mark.parametrize("scaling", ["boosted", "grad scaler", "constant", "told"])
def test_a_loss_scale_leaves_no_trace_in_the_steps(scaling: str) -> None:
    net, plain = network(torch.float64), network(torch.float64)
    scale = 37.0 if scaling == "constant" else 512.0  # a constant is rounded no more than the weights are
    optimizer, other = thor(net, loss_scale=scale if scaling == "constant" else 1.0), thor(plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    boosted = None
    if scaling == "boosted":
        config = {"loss_scale": {"kind": "dynamic", "init": 512.0, "window": 2}, "amp": {"level": "O0"}}
        boosted = apply(config, net, optimizer, level="O0")
    for step in range(7):
        x, y = batch(step, torch.float64)
        loss = F.cross_entropy(net(x), y)
        if boosted is not None:
            boosted.backward(loss)
            boosted.step()
        elif scaling == "grad scaler":
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.zero_grad()
            (loss * scale).backward()
            if scaling == "told":
                torch._foreach_div_([p.grad for p in net.parameters() if p.grad is not None], 512.0)
                optimizer.hear(backward_scale=512.0)
            optimizer.step()
        train(plain, other, range(step, step + 1))
        assert_close(net, plain, rtol=1e-10, atol=1e-12)


def test_group_scales_reach_the_factors() -> None:
    net, plain = network(), network()
    config = {
        "boost": {"mode": "manual", "less_bn": False, "grad_freeze": False, "loss_scale_group": True},
        "loss_scale": {"kind": "dynamic", "init": 256.0, "groups": 2, "window": 3},
        "amp": {"level": "O0"},
    }
    boosted = apply(config, net, thor(net, frequency=2), level="O0")
    train_boosted(boosted, range(14))
    train_boosted(apply({"amp": {"level": "O0"}}, plain, thor(plain, frequency=2), level="O0"), range(14))
    assert float(boosted.loss_scaling.group_scales.max()) > 256.0
    assert_close(net, plain, rtol=1e-3, atol=1e-4)


def boosted_in_windows(net: nn.Module, n_micro: int) -> Boosted:
    return apply({**accumulating(n_micro), "amp": {"level": "O0"}}, net, thor(net, frequency=2), level="O0")


def test_a_window_of_micro_batches_has_the_factors_of_one_large_batch() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4)).double()
    whole = copy.deepcopy(net)
    boosted = boosted_in_windows(net, 3)
    other = thor(whole, frequency=2)
    for step in range(5):
        x, y = batch(step, torch.float64)
        for part in range(3):
            mine = slice(part * 4, part * 4 + 4)
            boosted.backward(F.cross_entropy(boosted.model(x[mine]), y[mine]))
            boosted.step()
        other.zero_grad()
        F.cross_entropy(whole(x), y).backward()
        other.step()
        assert_close(net, whole, rtol=1e-9, atol=1e-11)


# Memory


def test_resuming_in_the_middle_of_a_window_keeps_what_was_collected() -> None:
    net, fresh = network(), network()
    boosted, resumed = boosted_in_windows(net, 2), boosted_in_windows(fresh, 2)
    train_boosted(boosted, range(5))
    resumed.load_state_dict(copy.deepcopy(boosted.state_dict()))
    train_boosted(boosted, range(5, 12))
    train_boosted(resumed, range(5, 12))
    assert_same(fresh, net)


def test_a_copied_network_does_not_report_to_the_optimizer() -> None:
    net = network()
    optimizer = thor(net)
    twin = copy.deepcopy(net)
    F.cross_entropy(twin(batch(0)[0]), batch(0)[1]).backward()
    assert all(layer.tally.calls == 0 for layer in optimizer.preconditioner.layers)


def test_another_networks_state_is_refused() -> None:
    optimizer = thor(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="holds no entry `thor`"):
        optimizer.load_state_dict(torch.optim.SGD(nn.Linear(3, 3).parameters(), 0.1).state_dict())
    with pytest.raises(ValueError, match="`block_size` must be 2 for this state, got 128"):
        optimizer.load_state_dict(thor(nn.Linear(3, 3), block_size=2).state_dict())
    with pytest.raises(ValueError, match=r"the state is of layers \['0'\], this network has \[''\]"):
        optimizer.load_state_dict(thor(nn.Sequential(nn.Linear(3, 3))).state_dict())
    with pytest.raises(ValueError, match="layers of other sizes"):
        optimizer.load_state_dict(thor(nn.Linear(4, 3)).state_dict())


# In company


def test_a_rebuilt_optimizer_takes_inverses_and_momentum_along() -> None:
    net, other = network(), network()
    optimizer, same = (thor(one, learning_rate=torch.tensor([0.05, 0.04])) for one in (net, other))
    train(net, optimizer, range(4))
    whole = [p for group in optimizer.param_groups for p in group["params"]]
    split = [dict(optimizer.param_groups[0], params=whole[:3]), dict(optimizer.param_groups[0], params=whole[3:])]
    rebuilt = rebuild_optimizer(optimizer, split)
    assert isinstance(rebuilt, Thor)
    train(net, rebuilt, range(4, 9))
    train(other, same, range(9))
    assert_same(net, other)


def test_a_new_head_begins_without_an_inverse_and_the_rest_keeps_its_own() -> None:
    net = network()
    optimizer = thor(net)
    train(net, optimizer, range(2))
    body = {b: v.clone() for b, v in optimizer.preconditioner.blocks.inverses.items()}
    net[6] = nn.Linear(10, 4, bias=False)
    group = dict(optimizer.param_groups[0], params=list(net.parameters()))
    rebuilt = rebuild_optimizer(optimizer, [group])
    assert isinstance(rebuilt, Thor)
    engine = rebuilt.preconditioner
    assert engine.steps == 2
    assert engine.due == [2]
    layer = engine.layers[0]
    kept = engine.blocks.views(layer.a, engine.blocks.inverses)[0][2]
    assert torch.equal(kept, body[16][0, :9, :9])
    train(net, rebuilt, range(2, 3))
    assert rebuilt.columns()["thor.refreshed"] == 1.0
    assert engine.due == [0, 1, 2]  # step 3 is everyone's


@pytest.mark.parametrize("state", ["shared", "per_group"])
def test_a_frozen_layer_makes_up_for_its_refresh(state: Any) -> None:
    net = network()
    inner = thor(net)
    groups = [list(net.parameters()), list(net[4:].parameters())]
    optimizer = FreezeOpt(inner, groups, [1, 1, 0, 0], state=state)
    refreshed = []
    optimizer.begin_step()
    for step in range(8):
        refreshed.append(inner.preconditioner.due)
        train(net, optimizer, range(step, step + 1))
    # Steps 0, 3 and 6 are due; the convolution (layer 0) trains in steps 2, 3, 6 and 7.
    assert refreshed == [[1, 2], [], [0], [0, 1, 2], [], [], [0, 1, 2], []]
    saved = optimizer.state_dict()
    assert set(saved["thor"]) >= {"inverses"} if state == "shared" else True
    copy.deepcopy(optimizer).load_state_dict(saved)


def test_centralized_gradients_are_preconditioned() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    optimizer = Thor(net, 1.0, 0.5, 0.0, kl_clip=UNBOUNDED)
    optimizer.param_groups[0]["grad_centralization"] = True
    register_centralization(optimizer)
    before = net.weight.detach().clone()
    net(torch.randn(6, 4, dtype=torch.float64)).square().mean().backward()
    centred = net.weight.grad - net.weight.grad.mean(1, keepdim=True)
    optimizer.step()
    engine = optimizer.preconditioner
    inverses = [dense(engine.blocks, number, engine.blocks.inverses) for number in (0, 1)]
    torch.testing.assert_close(before - net.weight.detach(), precondition(centred, *inverses))


def test_a_recorded_run_has_the_columns_and_events() -> None:
    net = network()
    boosted = apply({"amp": {"level": "O0"}}, net, thor(net), level="O0")
    trace = TraceBuffer(boosted)
    batches = [batch(step) for step in range(5)]
    list(training_loop(boosted, lambda model, pair: F.cross_entropy(model(pair[0]), pair[1]), batches, trace=trace))
    records, events = trace.drain()
    assert [record.columns["thor.refreshed"] for record in records] == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert [record.columns["thor.damping"] for record in records] == [0.1] * 5
    refreshed = EventKind.FACTORS_REFRESHED
    assert [(event.step, event.kind, event.value) for event in events] == [(0, refreshed, 3.0), (3, refreshed, 3.0)]
