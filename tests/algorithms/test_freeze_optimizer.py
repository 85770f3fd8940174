"""FreezeOpt: what is frozen stays bit-identical, what is trained trains as by hand, and every step resumes exactly."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.golden_files import golden_paths, load_json
from tests.kit.configurations import freezing
from tests.kit.twins import assert_close, assert_same, either_copy, through_file
from workbench import apply
from workbench.methods.grad_freeze.freeze_optimizer import FreezeOpt, split_learning_rates

Build = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Build] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.05),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.05),
    "fused-adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.05, momentum=0.5),
}
STATES = ("shared", "per_group")
STRATEGIES = st.lists(st.integers(0, 2), min_size=1, max_size=6)


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def groups_of(net: nn.Module) -> list[list[nn.Parameter]]:
    parameters = list(net.parameters())
    return [parameters, parameters[2:], parameters[4:]]


def batch(step: int) -> Tensor:
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(step))


def backward(net: nn.Module, step: int) -> None:
    net(batch(step)).square().mean().backward()


def train(net: nn.Module, optimizer: FreezeOpt, steps: range) -> None:
    for step in steps:
        optimizer.begin_step()
        backward(net, step)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("path", golden_paths("freeze_opt_errors*.json"), ids=lambda path: path.stem)
def test_golden_constructor_errors(path: Path) -> None:
    recorded = load_json(path)["results"]
    net = network()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    groups = groups_of(net)
    accepted = json.loads(recorded.get("strategy_tensor_int32", "ok: [0]").removeprefix("ok: "))  # what was handed over
    calls: dict[str, Callable[[], FreezeOpt]] = {
        "opt_not_optimizer": lambda: FreezeOpt(net),  # type: ignore[arg-type]
        "strategy_without_groups": lambda: FreezeOpt(opt, None, [0, 0]),
        "groups_not_sequence": lambda: FreezeOpt(opt, {"a": groups[0]}, [0, 0]),  # type: ignore[arg-type]
        "group_element_not_sequence": lambda: FreezeOpt(opt, [groups[0], "abc"], [0, 0]),
        "strategy_float_elements": lambda: FreezeOpt(opt, groups, [0.0, 1.0]),  # type: ignore[list-item]
        "strategy_bad_type": lambda: FreezeOpt(opt, groups, "01"),  # type: ignore[arg-type]
        "strategy_tensor_int64": lambda: FreezeOpt(opt, groups, torch.tensor([0, 1])),
        "strategy_tensor_2d": lambda: FreezeOpt(opt, groups, torch.zeros(2, 2, dtype=torch.int32)),
        "strategy_tensor_int32": lambda: FreezeOpt(opt, groups, torch.tensor(accepted, dtype=torch.int32)),
    }
    # Difference: freezing together with accumulation works here, see test_freeze_cell.py.
    assert set(recorded) - set(calls) <= {"freeze_with_accumulation_cell"}
    for name, call in calls.items():
        if name not in recorded:
            continue
        if recorded[name].startswith("ok"):
            assert f"ok: {call().strategy}" == recorded[name]
        else:
            with pytest.raises({"TypeError": TypeError, "ValueError": ValueError}[recorded[name]]):
                call()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train_strategy": [-1]}, r"group indices in \[0, 3\), got -1"),
        ({"train_strategy": [True]}, "must hold integers, got True"),
        ({"train_strategy": []}, "must hold at least one step"),
        ({"train_parameter_groups": []}, "must hold at least one group"),
        ({"train_parameter_groups": [[]]}, r"train_parameter_groups\[0\]` must hold at least one parameter"),
        ({"train_parameter_groups": [[torch.zeros(1)]]}, "holds a parameter that `opt` does not"),
        ({"state": "both"}, '`state` must be "shared" or "per_group"'),
        ({"learning_rates": [0.1]}, '`learning_rates` needs state="per_group"'),
        ({"learning_rates": [float("nan")], "state": "per_group"}, "none below 0"),
    ],
)
def test_a_wrong_value_is_refused_with_one_sentence(change: dict[str, Any], words: str) -> None:
    net = network()
    arguments = {"train_parameter_groups": groups_of(net), "train_strategy": [0, 1, 2]} | change
    with pytest.raises(ValueError, match=words):
        FreezeOpt(torch.optim.SGD(net.parameters(), lr=0.1), **arguments)


def test_options_of_a_group_need_an_optimizer_per_group() -> None:
    net = network()
    groups = [[{"params": list(net.parameters()), "lr": 0.1}], [{"params": list(net[4].parameters()), "lr": 0.7}]]
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"train_parameter_groups\[1\]` asks for lr=0.7 unlike `opt`"):
        FreezeOpt(opt, groups, [0, 1])
    frozen = FreezeOpt(opt, groups, [0, 1], state="per_group")
    torch.optim.lr_scheduler.StepLR(frozen, 1, 0.5)
    frozen.param_groups[0]["lr"] = 0.05
    assert [frozen.optimizer_of(i).param_groups[0]["lr"] for i in range(2)] == [0.05, 0.7]


@pytest.mark.parametrize("name", OPTIMIZERS)
@given(strategy=STRATEGIES)
@settings(max_examples=8)
def test_shared_state_trains_as_an_explicit_run_with_requires_grad_set_by_hand(name: str, strategy: list[int]) -> None:
    net, by_hand = network(), network()
    optimizer = FreezeOpt(OPTIMIZERS[name](net.parameters()), groups_of(net), strategy)
    plain = OPTIMIZERS[name](by_hand.parameters())
    groups = groups_of(by_hand)
    for step in range(2 * len(strategy) + 1):
        index = strategy[step % len(strategy)]
        active = {id(p) for p in groups[index]}
        before = [p.detach().clone() for p in net.parameters()]
        train(net, optimizer, range(step, step + 1))
        for parameter in by_hand.parameters():
            parameter.requires_grad_(id(parameter) in active)
        backward(by_hand, step)
        plain.step()
        plain.zero_grad(set_to_none=True)
        assert_same(net, by_hand)
        trained = {id(p) for p in groups_of(net)[index]}
        for parameter, old in zip(net.parameters(), before, strict=True):
            assert torch.equal(parameter, old) == (id(parameter) not in trained)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_per_group_trains_as_independent_optimizers(name: str) -> None:
    net, by_hand = network(), network()
    strategy = [0, 1, 2, 1, 0, 2]
    optimizer = FreezeOpt(OPTIMIZERS[name](net.parameters()), groups_of(net), strategy, state="per_group")
    independent = [OPTIMIZERS[name](group) for group in groups_of(by_hand)]
    for step, index in enumerate(strategy * 2):
        train(net, optimizer, range(step, step + 1))
        backward(by_hand, step)
        independent[index].step()
        by_hand.zero_grad()
        assert_same(net, by_hand)


@pytest.mark.parametrize("state", STATES)
def test_a_plain_loop_without_begin_step_gives_the_same_weights(state: Any) -> None:
    nets = [network(), network()]
    first, second = (
        FreezeOpt(OPTIMIZERS["sgd"](net.parameters()), groups_of(net), [2, 0, 1], state=state) for net in nets
    )
    train(nets[0], first, range(7))
    for step in range(7):
        second.zero_grad()
        backward(nets[1], step)
        second.step()
    assert_same(*nets)


def test_the_frozen_front_saves_no_activations_and_has_no_graph() -> None:
    net = network()
    optimizer = FreezeOpt(torch.optim.SGD(net.parameters(), lr=0.1), groups_of(net), [0, 1, 2])
    saved = []
    for _ in range(3):
        index = optimizer.begin_step()
        counted: list[int] = []

        def count(tensor: Tensor, counted: list[int] = counted) -> Tensor:
            counted.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            front = net[:2](batch(0))
            output = net[2:](front)
        assert (front.grad_fn is None) == (index > 0)
        output.sum().backward()
        assert all((p.grad is None) == (id(p) not in {id(q) for q in groups_of(net)[index]}) for p in net.parameters())
        saved.append(sum(counted))
        optimizer.step()
        optimizer.zero_grad()
    assert saved[0] > saved[1] > saved[2]


def test_only_parameters_that_differ_are_toggled_and_stale_gradients_go() -> None:
    class Watched(nn.Parameter):
        calls: list[bool]

        def requires_grad_(self, requires_grad: bool = True) -> Any:
            self.calls.append(requires_grad)
            return super().requires_grad_(requires_grad)

    parameters = [Watched(torch.ones(2)) for _ in range(3)]
    for parameter in parameters:
        parameter.calls = []
    optimizer = FreezeOpt(
        torch.optim.SGD(parameters, lr=0.1), [parameters, parameters[1:], parameters[2:]], [0, 1, 2, 1, 1]
    )
    for parameter in parameters:
        parameter.grad = torch.ones(2)
    seen = []
    for _ in range(5):
        seen.append(optimizer.begin_step())
        optimizer.begin_step()  # idempotent until advance()
        optimizer.advance()
    assert seen == [0, 1, 2, 1, 1]
    assert [p.calls for p in parameters] == [[False], [False, True], []]
    assert [p.grad is None for p in parameters] == [True, True, False]


def test_what_the_user_or_a_step_froze_stays_frozen_whoever_gives_gradients() -> None:
    net = network()
    frozen = [net[0].bias, net[4].bias]
    for parameter in frozen:
        parameter.requires_grad_(False)
    optimizer = FreezeOpt(OPTIMIZERS["sgd"](net.parameters()), groups_of(net), [0, 2, 1])
    before = [parameter.detach().clone() for parameter in frozen]
    for step in range(6):
        train(net, optimizer, range(step, step + 1))
        assert not any(parameter.requires_grad for parameter in frozen)
    optimizer.unfreeze_all()
    assert [p for p in net.parameters() if not p.requires_grad] == frozen
    assert all(map(torch.equal, frozen, before))
    optimizer = FreezeOpt(OPTIMIZERS["sgd"](net.parameters()), groups_of(net), [2])
    optimizer.begin_step()
    net.requires_grad_(True)  # as a user's evaluation code might do
    weight = net[0].weight.detach().clone()
    backward(net, 0)
    optimizer.step()
    assert torch.equal(net[0].weight, weight)


def test_unfreeze_all_thaws_for_good_or_for_a_block() -> None:
    net = network()
    optimizer = FreezeOpt(torch.optim.SGD(net.parameters(), lr=0.1), groups_of(net), [2, 0])
    optimizer.begin_step()
    with optimizer.unfreeze_all():
        assert all(p.requires_grad for p in net.parameters())
    assert not net[0].weight.requires_grad
    optimizer.unfreeze_all()
    assert all(p.requires_grad for p in net.parameters())
    optimizer.begin_step()
    assert not net[0].weight.requires_grad


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", OPTIMIZERS)
@given(strategy=STRATEGIES, stop=st.integers(0, 6))
@settings(max_examples=5)
def test_resuming_at_any_step_changes_nothing(name: str, state: Any, strategy: list[int], stop: int) -> None:
    net = network()
    optimizer = FreezeOpt(OPTIMIZERS[name](net.parameters()), groups_of(net), strategy, state=state)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(stop):
        train(net, optimizer, range(step, step + 1))
        scheduler.step()
    loaded = through_file({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    resumed = network()
    other_strategy = [2] * 3  # a strategy drawn with another seed must not matter
    again = FreezeOpt(OPTIMIZERS[name](resumed.parameters()), groups_of(resumed), other_strategy, state=state)
    train(resumed, again, range(2))
    resumed.load_state_dict(loaded["net"])
    again.load_state_dict(loaded["optimizer"])
    train(net, optimizer, range(stop, stop + 4))
    train(resumed, again, range(stop, stop + 4))
    assert_same(net, resumed)
    assert again.position == optimizer.position


@either_copy
@pytest.mark.parametrize("state", STATES)
def test_a_copy_goes_on_by_itself(state: Any, copied: Callable[[Any], Any]) -> None:
    net = network()
    inner = OPTIMIZERS["sgd"](net.parameters())
    inner.register_step_pre_hook(halve_gradients)
    optimizer = FreezeOpt(inner, groups_of(net), [0, 2, 1, 2], state=state)
    train(net, optimizer, range(3))
    twin, twin_optimizer = copied((net, optimizer))
    assert twin_optimizer.param_groups[0]["params"][0] is twin[0].weight
    train(twin, twin_optimizer, range(3, 9))
    assert not torch.equal(net[0].weight, twin[0].weight)
    train(net, optimizer, range(3, 9))
    assert_same(net, twin)


def halve_gradients(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad /= 2


def test_states_of_another_kind_are_refused() -> None:
    net = network()
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    shared = FreezeOpt(inner, groups_of(net), [0, 1])
    for other, words in (
        (inner, 'no entry "freeze"'),
        (FreezeOpt(inner, groups_of(net), [0, 1], state="per_group"), 'saved with state="per_group"'),
        (FreezeOpt(inner, groups_of(net)[:2], [0, 1]), r"groups of \[6, 4\] parameters, these have \[6, 4, 2\]"),
    ):
        with pytest.raises(ValueError, match=words):
            shared.load_state_dict(other.state_dict())


@pytest.mark.parametrize("state", STATES)
def test_schedulers_act_on_every_group_and_see_steps_an_engine_makes(state: Any) -> None:
    net = network()
    optimizer = FreezeOpt(torch.optim.SGD(net.parameters(), lr=0.8), groups_of(net), [0, 1, 2], state=state)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(3):
        optimizer.begin_step()
        assert optimizer.active_optimizer.param_groups[0]["lr"] == 0.8 * 0.5**step
        optimizer.active_optimizer.step()
        optimizer.advance()
        scheduler.step()  # would warn, hence fail here, had the step gone unnoticed


def test_a_scheduler_keeps_acting_after_the_inner_optimizer_loaded_a_state() -> None:
    net = network()
    inner = torch.optim.SGD(net.parameters(), lr=0.8)
    optimizer = FreezeOpt(inner, groups_of(net), [0])
    inner.load_state_dict(inner.state_dict())
    optimizer.begin_step()
    assert optimizer.active_optimizer.param_groups is optimizer.param_groups


def test_a_fused_optimizer_decides_about_overflow_inside() -> None:
    net = network()
    optimizer = FreezeOpt(torch.optim.SGD(net.parameters(), lr=0.1, fused=True), groups_of(net), [1])
    for found, moves in ((1.0, False), (0.0, True)):
        optimizer.begin_step()
        backward(net, 0)
        before = net[4].weight.detach().clone()
        optimizer.active_optimizer.found_inf = torch.tensor(found)  # type: ignore[attr-defined]
        optimizer.active_optimizer.step()
        del optimizer.active_optimizer.found_inf  # type: ignore[attr-defined]
        optimizer.advance()
        optimizer.zero_grad()
        assert torch.equal(net[4].weight, before) is not moves


def test_torch_amp_scaler_works_with_a_fused_inner_optimizer() -> None:
    net, plain = network(), network()
    optimizer = FreezeOpt(torch.optim.SGD(net.parameters(), lr=0.1, fused=True), groups_of(net), [0, 2])
    reference = FreezeOpt(torch.optim.SGD(plain.parameters(), lr=0.1), groups_of(plain), [0, 2])
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(4):
        optimizer.begin_step()
        scaler.scale(net(batch(step)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    train(plain, reference, range(4))
    assert_close(net, plain)


def test_lbfgs_is_refused_with_shared_state_and_freezing_twice_or_another_group_always() -> None:
    net = network()
    optimizer = FreezeOpt(torch.optim.SGD(net.parameters(), lr=0.1), groups_of(net), [0, 1])
    assert repr(optimizer) == "FreezeOpt(SGD, 3 groups, step 0 of 2, state='shared')"
    with pytest.raises(RuntimeError, match="add it to the inner optimizer before wrapping"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(ValueError, match="LBFGS moves parameters without gradients"):
        FreezeOpt(torch.optim.LBFGS(net.parameters()), groups_of(net), [0])
    with pytest.raises(TypeError, match="is a FreezeOpt already"):
        FreezeOpt(FreezeOpt(torch.optim.SGD(net.parameters(), lr=0.1)))


def test_a_closure_is_evaluated_by_the_inner_optimizer() -> None:
    net = network()
    optimizer = FreezeOpt(torch.optim.SGD(net.parameters(), lr=0.1), groups_of(net), [2])

    def closure() -> float:
        optimizer.zero_grad()
        loss = net(batch(0)).square().mean()
        loss.backward()
        return loss.item()

    before = [p.detach().clone() for p in net.parameters()]
    assert isinstance(optimizer.step(closure), float)
    assert [*map(torch.equal, net.parameters(), before)] == [True] * 4 + [False] * 2


def rates_of(optimizer: FreezeOpt, n_steps: int) -> list[float]:
    """Return the rates of the next steps."""
    used = []
    for _ in range(n_steps):
        used.append(optimizer.active_optimizer.param_groups[0]["lr"])
        optimizer.step()
    return used


def with_rates(rates: Any, strategy: list[int]) -> FreezeOpt:
    net = network()
    inner = torch.optim.SGD(net.parameters(), lr=9.0)
    return FreezeOpt(inner, groups_of(net), strategy, state="per_group", learning_rates=rates)


def test_rates_go_to_the_groups_of_their_steps_or_whole_to_each() -> None:
    assert split_learning_rates([1, 2, 3], [0, 2, 0, 1], 3) == [[1, 3], [], [2]]
    assert split_learning_rates([1, 2, 3], [0, 1], 2) == [[1, 2, 3], [1, 2, 3]]
    assert split_learning_rates([1, 2], None, 2) == [[1, 2], [1, 2]]
    optimizer = with_rates(torch.tensor([0.5, 0.25, 0.125]), [0, 1, 0])
    assert rates_of(optimizer, 5) == [0.5, 0.25, 0.125, 0.125, 0.25]  # the last rate of a group stays


def test_rates_resume_where_each_group_stood() -> None:
    first, second = (with_rates([0.5, 0.4, 0.3, 0.2, 0.1], [0, 1, 0, 0, 1]) for _ in range(2))
    assert rates_of(first, 3) == [0.5, 0.4, 0.3]
    second.load_state_dict(first.state_dict())
    assert rates_of(first, 2) == rates_of(second, 2) == [0.2, 0.1]


def test_an_optimizer_already_in_training_hands_its_momentum_to_every_group() -> None:
    net, by_hand = network(), network()
    inner, plain = OPTIMIZERS["sgd"](net.parameters()), OPTIMIZERS["sgd"](by_hand.parameters())
    for model, optimizer in ((net, inner), (by_hand, plain)):
        backward(model, 0)
        optimizer.step()
        model.zero_grad()
    frozen = FreezeOpt(inner, groups_of(net), [2, 0], state="per_group")
    train(net, frozen, range(2))
    twins = [OPTIMIZERS["sgd"](group) for group in groups_of(by_hand)]
    for twin in (twins[2], twins[0]):
        for parameter in twin.param_groups[0]["params"]:
            twin.state[parameter] = copy.deepcopy(plain.state[parameter])
    for step, index in enumerate([2, 0]):
        backward(by_hand, step)
        twins[index].step()
        by_hand.zero_grad()
    assert_same(net, by_hand)


def test_freezing_works_under_ddp_that_looks_for_unused_parameters(one_rank: None) -> None:
    net, plain = network(), network()
    frozen = FreezeOpt(OPTIMIZERS["sgd"](net.parameters()), groups_of(net), [0, 2, 1])
    train(plain, FreezeOpt(OPTIMIZERS["sgd"](plain.parameters()), groups_of(plain), [0, 2, 1]), range(6))
    train(nn.parallel.DistributedDataParallel(net, find_unused_parameters=True), frozen, range(6))
    assert_same(net, plain)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("engine", [False, True], ids=["own step", "engine"])
def test_a_hook_runs_once_at_every_step_of_the_optimizer_that_steps(state: Any, engine: bool) -> None:
    net = network()
    inner = torch.optim.SGD(net.parameters(), lr=1.0)
    optimizer = FreezeOpt(inner, groups_of(net), [2, 0, 1], state=state)
    called: list[str] = []
    before = optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))

    def step(of: FreezeOpt) -> None:
        (of.active_optimizer if engine else of).step()
        if engine:
            of.advance()

    for _ in range(3):
        step(optimizer)
    assert called == ["before", "after"] * 3
    step(copy.deepcopy(optimizer))
    assert called == ["before", "after"] * 4
    before.remove()
    step(optimizer)
    assert called == ["before", "after"] * 4 + ["after"]


def test_gradients_that_a_hook_clips_are_clipped_while_layers_are_frozen() -> None:
    net = network()
    boosted = apply(freezing(2, p=0.7, steps=4), net, torch.optim.SGD(net.parameters(), lr=1.0))

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3)

    boosted.optimizer.register_step_pre_hook(clip)
    for step in range(4):
        old = nn.utils.parameters_to_vector(net.parameters()).detach()
        boosted.backward(100 * boosted.model(batch(step)).square().mean())
        boosted.step()
        moved = nn.utils.parameters_to_vector(net.parameters()).detach() - old
        assert float(moved.norm()) == pytest.approx(1e-3, rel=1e-2)
