from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from tests.kit.chains import chain, mean_square, pairs
from tests.kit.configurations import accumulating, freezing
from tests.scaling.host_reads import forbid_host_reads
from workbench.config import ConfigError
from workbench.core.records import EventKind
from workbench.loss_scale import NonFusedOptimizerWarning
from workbench.methods.grad_freeze.method import FreezeOpt
from workbench.methods.less_bn.method import LessBNReport
from workbench.training import TraceBuffer, apply, training_loop
from workbench.training.gradient_watch import float16_gradient_parameters

FREEZING = freezing(3, kind=0, p=0.0)  # begins frozen: the first steps train a part only


def test_the_seed_chooses_the_freezing_schedule() -> None:
    config = freezing(5, p=0.2, steps=60)

    def schedule(seed: int) -> Any:
        net = chain()
        optimizer = apply(config, net, SGD(net.parameters(), lr=0.1), level="O0", seed=seed).optimizer
        assert isinstance(optimizer, FreezeOpt)
        return optimizer.strategy

    assert schedule(1) == schedule(1) != schedule(2)


@pytest.mark.parametrize("seed", [-1, 2**32, 2**63 - 1])
def test_any_seed_of_64_bits_chooses_a_schedule(seed: int) -> None:
    net = chain()
    assert isinstance(apply(FREEZING, net, SGD(net.parameters(), lr=0.1), level="O0", seed=seed).optimizer, FreezeOpt)


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan"), "1"])
def test_a_norm_to_clip_at_is_above_0(norm: Any) -> None:
    net = chain()
    with pytest.raises((TypeError, ValueError), match="`max_grad_norm` must be"):
        apply({}, net, SGD(net.parameters(), lr=0.1), level="O0", max_grad_norm=norm)


@pytest.mark.parametrize("wrapper", [None, nn.Sequential], ids=["as it was", "inside another"])
def test_a_model_that_was_boosted_is_not_boosted_again(wrapper: Any) -> None:
    net = chain()
    apply(FREEZING, net, SGD(net.parameters(), lr=0.1), level="O0")
    again = net if wrapper is None else wrapper(net)
    with pytest.raises(RuntimeError, match=r"has been boosted already, .* build the model afresh"):
        apply(FREEZING, again, SGD(again.parameters(), lr=0.1), level="O0")


def test_wrong_arguments_are_refused_in_a_sentence(tmp_path: Path) -> None:
    net = chain()
    optimizer = SGD(net.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"`model` must be a torch.nn.Module, got list"):
        apply({}, [net], optimizer)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`optimizer` must be a torch.optim.Optimizer, got Sequential"):
        apply({}, net, net)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="LBFGS computes the loss several times in a step"):
        apply({}, net, torch.optim.LBFGS(net.parameters()))
    with pytest.raises(TypeError, match="a BoostConfig, a dict or the path of a JSON file, got int"):
        apply(3, net, optimizer)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean"):
        apply({"boost": {"grad_freez": True}}, net, optimizer)
    with pytest.raises(ConfigError, match="level"):
        apply({}, net, optimizer, level="O7")
    with pytest.raises(ConfigError):
        apply(tmp_path / "nowhere.json", net, optimizer)


@pytest.mark.parametrize("freezes", [False, True], ids=["full", "freezing"])
@pytest.mark.parametrize("accumulation", [1, 2], ids=["every step", "accumulated"])
def test_a_step_and_its_trace_never_wait_for_the_device(freezes: bool, accumulation: int) -> None:
    config = freezing(3, kind=0, p=0.0, accumulate=accumulation) if freezes else accumulating(accumulation)
    config |= {"loss_scale": {"kind": "dynamic", "window": 2}, "amp": {"level": "O2", "dtype": "float16"}}
    net = chain()
    boosted = apply(config, net, SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True), level="O0")
    trace = TraceBuffer(boosted, exponents_every=2)
    loop = training_loop(boosted, mean_square, pairs(24), trace=trace, batch_size=lambda batch: len(batch[0]))
    for _ in range(12):  # one period of the schedule: what is set up once per group is set up
        next(loop)
    with forbid_host_reads():
        for _ in loop:
            pass
    records, _ = trace.drain()
    assert len(records) == 24
    assert sum(bool(record.grad_exponents) for record in records) == 12 // accumulation


def test_an_optimizer_that_is_not_fused_is_caught_by_the_same_probe() -> None:
    net = chain()
    boosted = apply({"loss_scale": {"kind": "dynamic"}}, net, SGD(net.parameters(), lr=0.1), level="O0")
    boosted.backward(mean_square(net, pairs(1)[0]))
    warned = pytest.warns(NonFusedOptimizerWarning, match="fused=True")
    with pytest.raises(AssertionError, match="makes the host wait"), forbid_host_reads(), warned:
        boosted.step()


def test_only_parameters_behind_a_cast_have_float16_gradients() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 6)
            self.linear = nn.Linear(6, 6)
            self.norm = nn.LayerNorm(6)
            self.shared = nn.Parameter(torch.ones(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.linear(self.table(x)))
            return (y @ self.shared).float() * self.shared.sum()  # cast in one use, not in the other

    net = Mixed()
    with torch.autocast("cpu", torch.float16):
        loss = net(torch.arange(5)).mean()
    names = {id(p): name for name, p in net.named_parameters()}
    assert {names[id(p)] for p in float16_gradient_parameters(loss)} == {"linear.weight", "linear.bias"}
    assert float16_gradient_parameters(loss.detach()) == []


def test_the_trace_records_the_largest_float16_gradient() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    nn.init.constant_(net[1].weight, 0.01)  # a small scale makes the gradient of the scale the largest
    nn.init.constant_(net[2].weight, 30.0)
    config = {"amp": {"level": "O2", "dtype": "float16"}, "loss_scale": {"kind": "fixed", "init": 1.0}}
    boosted = apply(config, net, SGD(net.parameters(), lr=0.0, fused=True), level="O0")
    seen: dict[str, float] = {}
    trace = TraceBuffer(boosted)
    observe = boosted.observer

    def look(parameters: list[nn.Parameter]) -> None:
        seen.update({name: float(p.grad.abs().max()) for name, p in net.named_parameters() if p.grad is not None})
        observe(parameters)

    boosted.observer = look
    for _ in training_loop(boosted, mean_square, pairs(1), trace=trace):
        pass
    (record,), _ = trace.drain()
    assert record.grad_amax == pytest.approx(max(seen.values()))
    expected = max(value for name, value in seen.items() if not name.startswith("1."))
    assert record.columns["amp.float16_grad_amax"] == pytest.approx(expected)
    assert expected < 0.9 * record.grad_amax


def test_a_wrapper_that_would_not_notice_is_refused(one_rank: None) -> None:
    net = chain()
    wrapped = DistributedDataParallel(net)
    with pytest.raises(RuntimeError, match=r"find_unused_parameters=True.*boosted.distribute\(\)"):
        apply(FREEZING, wrapped, SGD(net.parameters(), lr=0.1), level="O0")
    with pytest.raises(RuntimeError, match="LessBN replaces modules"):
        apply({"boost": {"mode": "manual", "less_bn": True}}, wrapped, SGD(net.parameters(), lr=0.1), level="O0")
    assert apply({}, wrapped, SGD(net.parameters(), lr=0.1), level="O0").model is wrapped


def test_distribute_needs_a_process_group() -> None:
    net = chain()
    with pytest.raises(RuntimeError, match="init_process_group"):
        apply(FREEZING, net, SGD(net.parameters(), lr=0.1), level="O0").distribute()


def test_the_trace_of_a_distributed_model_has_its_own_names(one_rank: None) -> None:
    net = chain()
    config = FREEZING | {"loss_scale": {"kind": "dynamic"}}
    boosted = apply(config, net, SGD(net.parameters(), lr=0.1, fused=True), level="O0")
    boosted.distribute(ddp=True)
    trace = TraceBuffer(boosted, exponents_every=1)
    net[-1].bias.register_hook(lambda gradient: gradient * torch.inf)
    for _ in training_loop(boosted, mean_square, pairs(1), trace=trace):
        pass
    (record,), events = trace.drain()
    assert [e.subject for e in events if e.kind is EventKind.OVERFLOW] == ["30"]
    assert not any("module" in histogram.group for histogram in record.grad_exponents)


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.filterwarnings("ignore:less_bn had no effect")
def test_what_finds_nothing_to_do_is_not_in_effect_and_changes_nothing() -> None:
    model = perceptron()
    optimizer = SGD(model.parameters(), lr=0.1)
    layers = list(model)
    with pytest.warns(UserWarning, match="grad_freeze is not in effect because this network can be cut into 2 groups"):
        boosted = apply({}, model, optimizer)
    assert boosted.plan.in_effect() == ()
    assert "nothing switched on" in repr(boosted)
    assert [entry.name for entry in boosted.plan.dropped] == ["less_bn", "grad_freeze"]
    assert boosted.optimizer is optimizer  # neither freezing nor centralized gradients
    assert list(model) == layers


def test_a_network_reduced_before_is_still_in_effect() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    object.__setattr__(model, "less_bn_report", LessBNReport(("2",), ("1",), ()))
    config = {"boost": {"mode": "manual", "grad_freeze": False}, "less_bn": {"fn_flag": False, "gc_flag": False}}
    with pytest.warns(UserWarning, match="LessBN was already applied"):
        boosted = apply(config, model, SGD(model.parameters(), lr=0.1))
    assert boosted.plan.less_bn


def test_switches_left_to_the_level_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    config = {"boost": {"mode": "manual", "less_bn": False, "adasum": False}, "grad_freeze": {"param_groups": 3}}
    for _ in range(2):
        model = chain()
        boosted = apply(config, model, SGD(model.parameters(), lr=0.1))
    assert isinstance(boosted.optimizer, FreezeOpt)
    told = "switches that are not named take the default of level O1: grad_freeze on; grad_accumulation, dim_reduce, "
    assert [record.getMessage() for record in caplog.records] == [told + "loss_scale_group off"]
    caplog.clear()
    model = chain()
    apply(boosted.plan.explicit_config(), model, SGD(model.parameters(), lr=0.1))
    assert not caplog.records
