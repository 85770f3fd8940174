"""Questions at sizes too small to mean anything: every line is measured, and a side that computes else is refused."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Adam

from tests.kit.tiny_questions import MEASURES
from workbench.bench import Finding, Request, chosen
from workbench.bench.questions import (
    accumulation,
    adam,
    adasum,
    benchmarks,
    dim_reduce,
    freeze,
    host_waits,
    less_bn,
    loss_scale,
    muon,
    offload,
    online,
    pca,
    run_cost,
    step_cost,
    tensors,
)
from workbench.core.devices import has_fast_bfloat16
from workbench.methods.dim_reduce.method import flat_vector
from workbench.methods.grad_freeze.freeze_optimizer import FreezeOpt
from workbench.optim.adam_offload.optimizer import AdamOffload
from workbench.training import Boosted

pytestmark = pytest.mark.filterwarnings("ignore:grad_freeze is not in effect")
REQUEST = Request(2, peers=True, device=torch.device("cpu"), threads=(1,))
WITHOUT_PEERS = ("pca", "dim_reduce", "online")  # which have some that are installed here
HERE: dict[str, Callable[[Request], Sequence[Finding]]] = {
    **MEASURES,
    "adasum": partial(adasum.measure, sizes=(500,), tensors=5, bucket=0),
    "offload": partial(offload.measure_encoder, encoder=offload.Encoder(layers=1, width=16, batch=2, tokens=4)),
    "adam": partial(adam.measure, sizes=((64, 4),), goals=(1e9,)),
    "run_cost": partial(run_cost.measure, steps=20),
    "step_cost": partial(step_cost.measure, optimizers=["SGD with momentum"], steps=20),
}
SCHEDULES = [f"freezing {name} 0.5, 1 thread" for name in ("interval", "continuous")]
# What each line begins or ends with.
LINES: dict[str, list[str]] = {
    "levels": [f"levels, 1 thread: {side} / O0" for side in ("O1", "O0 in channels_last", "O1 in channels_last")]
    + ["levels, 1 thread"],
    "freeze": [
        f"{schedule}{line}"
        for schedule in SCHEDULES
        for line in (
            ": ours / limit",
            ": requires_grad of all, set every step / limit",
            ": switching / step",
            ", operations of torch: ours / limit",
        )
    ],
    "less_bn": [f": {side} / edited by hand" for side in ("ours", "no BatchNorm", "all BatchNorms")]
    + ["operations of torch: ours / edited by hand"],
    "convolution": [
        f"convolution, {network} in {name}, 1 thread: by shape / library"
        for network in ("residual", "depthwise")
        for name in ("float32", "bfloat16")[: 1 + has_fast_bfloat16(REQUEST.device)]
    ],
    "accumulation": ["accumulation 3 x 2, 1 thread: ours / native .grad", "separate buffers / native .grad", "", ""],
    "scaled tail": ["", ""],
    "scaled step": ["", "scaled step, 1 x 8 batch 4, 1 thread: GradScaler"],
    "group scales": [""],
    "adasum": [
        f"AdaSum of 500 in 5, 1 thread: {side} / formula in {place} memory"
        for place in ("kept", "new")
        for side in ("ours", "limit")
    ],
    "pca": ["PCA of 6 x 3,000", "PCA of 6 x 3,000", "PCA of 6 x 3,000, 3 components: memory"],
    "dim_reduce": ["DimReduce step", "DimReduce step"],
    "thor": [
        f"THOR {line}"
        for line in ("step, ResNet-8", "step, MLP", "refresh, 10 layers", "refresh, 5 layers")
        for _ in range(3)
    ],
    "online": ["online step, 200 x 4", "online step, 200 x 4", "online step, hashed"],
    "offload": ["ours / Adam on the device", "ours with offload_gradients / Adam on the device", "", ""],
    "run_cost": ["a run behind a DataLoader", "reading its batches"],
    "step_cost": ["", "", ""],
}
ABSENT = ("kfac_pytorch", "SOAP", "torchao", "exported")


def asked(name: str) -> Sequence[Finding]:
    left_behind = FakeTensorMode().from_tensor(torch.ones(3))  # has no memory, which nobody may count
    found = HERE[name](dataclasses.replace(REQUEST, peers=name not in WITHOUT_PEERS))
    del left_behind
    return found


@functools.cache
def measured(name: str) -> Sequence[Finding]:
    """Ask once for all tests that look at the answer."""
    return asked(name)


@pytest.mark.parametrize("name", LINES)
def test_every_line_is_measured(name: str) -> None:
    found = measured(name)
    for finding, words in zip(found, LINES[name], strict=True):
        assert finding.what.startswith(words) or finding.what.endswith(words)
        if finding.verdict == "absent":
            assert any(absent in finding.what for absent in ABSENT), finding
            continue
        assert finding.estimate.low <= finding.estimate.high, finding
        assert finding.estimate.low > 0 or finding.unit == "s", finding  # a difference of times, which may be less
        if "operations of torch: ours" in finding.what:
            assert finding.estimate.value <= 1.0, finding.note


def test_what_lines_say_besides_their_numbers() -> None:
    of_freezing = measured("freeze")
    assert [one.estimate.rounds for one in of_freezing] == [2, 2, 2, 1] * 2
    assert [one.goal for one in of_freezing[:3]] == [freeze.GOAL, None, freeze.SWITCHING_GOAL]
    assert measured("less_bn")[0].note == "3 of 6 BatchNorms stay"
    assert measured("scaled tail")[0].verdict == measured("scaled step")[0].verdict == "met"
    assert measured("levels")[-1].verdict == "absent"  # without studies
    held, (*_, torchao, state) = measured("accumulation")[-1], measured("offload")
    assert torchao.verdict == "absent"  # its offloading needs a device to offload from
    assert held.estimate.value == 1.0  # gradients, and nothing beside them
    assert held.note.startswith("1.00 times the parameters")
    assert state.estimate.value == pytest.approx(2.0, rel=0.05)  # both moments: the host is the device here
    assert state.verdict == "missed"
    of_steps = measured("step_cost")
    assert [(one.unit, one.goal) for one in of_steps] == [("x", 1.02), ("s", 8e-6), ("x", 0.90)]
    assert [tensors.words((1_000_000, 60)), tensors.words((64, 4))] == ["1 M in 60", "64 in 4"]


# What computes something else, in the place of what is measured.


class Summing(accumulation._Boosted):
    def micro_batch(self, index: int) -> None:
        super().micro_batch(index)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(2)


class Hoarding(accumulation._Boosted):
    def micro_batch(self, index: int) -> None:
        super().micro_batch(index)
        self.kept = [torch.zeros_like(parameter) for parameter in self.model.parameters()]

    def window(self) -> None: ...


class SkippingNothing(loss_scale.ScaledTail):
    def __call__(self) -> None:
        self._found_inf.zero_()
        self.scaling.unscale_(self.parameters, self._found_inf)
        self.optimizer.step()


def hasty(parameters: list[nn.Parameter]) -> Any:
    return AdamOffload(parameters, learning_rate=1.1 * adam._RATE, eps=1e-15).step


def shifted(model: nn.Module, boosted: Callable[[nn.Module], Boosted] = less_bn._boosted) -> Boosted:
    made = boosted(model)
    with torch.no_grad():
        next(made.model.parameters()).mul_(1.1)
    return made


def wrong_adagrad(table: Tensor) -> Callable[..., object]:
    return lambda rows, weights, gradient: table.index_copy_(0, rows, weights - gradient)


def without_its_first(schedule: Any, frozen: Callable[[Any], Any] = freeze._Schedule.frozen_groups) -> Any:
    return frozen(schedule)[1:]


@pytest.mark.parametrize(
    ("name", "owner", "attribute", "wrong"),
    [
        ("adasum", adasum, "adasum_sets_", lambda ours, theirs: None),
        ("pca", pca, "principal_components", lambda *_, **__: SimpleNamespace(components=np.eye(3, 3000))),
        ("dim_reduce", dim_reduce, "flat_vector", lambda *given: 2 * flat_vector(*given)),
        ("online", online, "_adagrad_rows", wrong_adagrad),
        ("offload", offload, "_ours", lambda weights: Adam(weights, lr=2e-4, fused=True)),
        ("freeze", freeze._Schedule, "frozen_groups", without_its_first),
        ("freeze", FreezeOpt, "enter_group", lambda self, index: None),
        ("less_bn", less_bn, "_boosted", shifted),
        ("accumulation", accumulation, "_Boosted", Summing),
        ("scaled tail", loss_scale, "ScaledTail", SkippingNothing),
        ("adam", adam, "_ours", hasty),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_side_that_computes_something_else_is_not_timed(
    name: str, owner: Any, attribute: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulation, "_held_bytes", lambda side: 1)  # which is not asked here
    monkeypatch.setattr(owner, attribute, wrong)
    found = asked(name)
    assert found[0].verdict == "differs"
    if name in ("freeze", "less_bn", "offload", "scaled tail"):  # of which nothing else can be said then
        assert {one.verdict for one in found} == {"differs"}
    assert owner is not FreezeOpt or "weights differ" in found[0].note


def test_step_cost_times_nothing_where_weights_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_cost, "_DYNAMIC", {"boost": {"mode": "disable_all"}, "loss_scale": {"kind": "fixed"}})
    monkeypatch.setattr(step_cost._Loop, "_scaled", lambda loop: None)
    *_, scale = step_cost.measure(Request(1), optimizers=["Adam"], steps=20)
    assert (scale.verdict, scale.estimate) == ("differs", None)


@pytest.mark.long
def test_buffers_of_their_own_would_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulation, "_Boosted", Hoarding)
    held = asked("accumulation")[-1]
    assert held.estimate is not None
    assert held.verdict == "missed"


# What needs peers, an accelerator, or ranks


@pytest.mark.long
def test_host_adam_is_measured_in_both_formats_and_absent_peers_are_named() -> None:
    found = asked("adam")
    assert [finding.estimate is not None for finding in found if ": ours /" in finding.what] == [True, True]
    sides = {finding.what.split(": ")[1].split(" /")[0] for finding in found}
    assert sides == {"ours", "limit", "DeepSpeed", "torchao"}


@pytest.mark.slow
def test_muon_is_measured_beside_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "_of_transformer", lambda: [torch.randn(4, 8)])
    found = muon.measure(REQUEST, steps=(3,), images=(2, 3, 8, 8))
    assert [finding.estimate is not None for finding in found if ": ours /" in finding.what] == [True, True]
    assert any("torch.optim.Muon" in finding.what for finding in found)
    monkeypatch.setattr(muon, "_EXACTNESS", 0.0)
    assert [finding.verdict for finding in muon.measure(REQUEST, steps=(3,), images=(2, 3, 8, 8))] == ["differs"] * 2


@pytest.mark.long
def test_adasum_joins_four_ranks() -> None:
    found = adasum.measure(REQUEST, sizes=(), tensors=5, bucket=4000)
    assert [finding.what.rpartition(": ")[2] for finding in found] == ["ours / all_reduce", "bytes sent / ring"]
    assert 1.0 < found[1].estimate.value < 1.1  # three products per tensor weigh more beside so small a bucket


def test_the_angle_between_subspaces() -> None:
    plane = np.eye(2, 5)
    turned = plane.copy()
    turned[1] = [0, np.cos(0.3), 0, np.sin(0.3), 0]
    assert pca.subspace_angle(plane, plane[::-1]) == pytest.approx(0.0, abs=1e-12)
    assert pca.subspace_angle(plane, turned) == pytest.approx(0.3)
    assert pca.subspace_angle(plane, np.eye(2, 5, 3)) == pytest.approx(np.pi / 2)


@pytest.mark.parametrize("name", [benchmark.name for benchmark in chosen(["accelerator"])])
def test_without_an_accelerator_that_is_said(name: str) -> None:  # how it measures is tested in tests/accelerator
    found = benchmarks()[name].measure(REQUEST)
    assert [finding.verdict for finding in found] == ["absent"]
    assert "has not run" in found[0].note


def test_what_a_profile_waits_for_itself_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    done = 0

    class Profile:
        def __init__(self, **_: Any) -> None:
            self.before = done

        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *_: object) -> None: ...

        def events(self) -> list[Any]:
            names = ["cudaStreamSynchronize", "cudaLaunchKernel", "cudaMemcpyAsync"] * (done - self.before)
            return [SimpleNamespace(name=name) for name in [*names, "cudaDeviceSynchronize"]]  # its own, at the end

    def train(steps: int) -> None:
        nonlocal done
        done += steps

    monkeypatch.setattr(host_waits, "profile", Profile)
    assert host_waits.profiled_waits(train, 5) == Counter({"cudaStreamSynchronize": 5})
