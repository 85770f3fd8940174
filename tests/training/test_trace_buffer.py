from __future__ import annotations

import math
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

from tests.kit.configurations import accumulating, freezing
from tests.scaling.host_reads import forbid_host_reads
from workbench.core.records import EventKind
from workbench.loss_scale.gradient_statistics import (
    exponent_counts,
    group_by_module,
    norm_and_maximum_of_finite,
    tensor_norms_and_maxima,
)
from workbench.training import TraceBuffer, apply, trace_buffer, training_loop


def make(config: dict[str, Any], **options: Any) -> tuple[nn.Sequential, Any, TraceBuffer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    boosted = apply(config, net, SGD(net.parameters(), lr=0.1, fused=True), level="O0")
    return net, boosted, TraceBuffer(boosted, **options)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def data(n: int) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 4, generator=generator), torch.randn(6, 2, generator=generator)) for _ in range(n)]


def run(boosted: Any, trace: TraceBuffer, batches: list[Any]) -> None:
    for _ in training_loop(boosted, loss, batches, trace=trace, batch_size=lambda b: len(b[0])):
        pass


def recorded(config: dict[str, Any], n: int, spoiled: dict[int, float] | None = None, **options: Any) -> Any:
    """Return the records and events of some steps, of which some have inputs that are multiplied by a number."""
    _, boosted, trace = make(config, **options)
    run(boosted, trace, [(x * (spoiled or {}).get(i, 1.0), y) for i, (x, y) in enumerate(data(n))])
    return trace.drain()


def test_the_memory_is_read_at_most_ten_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    now = iter(range(1_000_000))

    def counted(_: object) -> int:
        asked.append(0.0)
        return len(asked)

    monkeypatch.setattr(trace_buffer.devices, "memory_bytes", counted)
    monkeypatch.setattr(trace_buffer.time, "perf_counter", lambda: next(now) / 100)
    _, boosted, trace = make({})
    run(boosted, trace, data(40))
    records, _ = trace.drain()
    seconds = records[-1].seconds - records[0].seconds
    assert 1 < len(asked) <= 10 * seconds + 2 < len(records)
    assert [r.memory_bytes for r in records] == sorted(r.memory_bytes for r in records)


def test_a_step_begins_where_the_one_before_it_ended() -> None:
    records, _ = recorded({}, 5)
    assert records[0].seconds == 0.0
    for one, following in pairwise(records):
        assert one.seconds + one.step_ms / 1e3 == pytest.approx(following.seconds)


def test_records_say_what_happened_in_each_step() -> None:
    scale = {"kind": "dynamic", "init": 256.0, "window": 2}
    records, events = recorded({"loss_scale": scale}, 5, {3: math.inf}, exponents_every=2)
    assert [r.step for r in records] == [0, 1, 2, 3, 4]
    assert [r.loss_scale for r in records] == [256, 256, 512, 512, 256]
    assert [r.loss_scale_after for r in records] == [256, 512, 512, 256, 256]
    assert [r.overflow for r in records] == [False, False, False, True, False]
    assert [r.skipped for r in records] == [False, False, False, True, False]
    assert [bool(r.grad_exponents) for r in records] == [True, False, True, False, True]
    assert all(r.samples == 6 and r.learning_rate == 0.1 and r.memory_bytes > 0 for r in records)
    assert all({"time.data", "time.forward", "time.backward", "time.update"} <= set(r.columns) for r in records)
    kinds = [(e.step, e.kind) for e in events]
    assert kinds == [(1, EventKind.SCALE_UP), (3, EventKind.OVERFLOW), (3, EventKind.SCALE_DOWN)]


def test_a_step_is_recorded_without_reading_the_device_and_the_host_records_the_same() -> None:
    kept = []
    for device_only in (False, True):
        _, boosted, trace = make({"loss_scale": {"kind": "dynamic", "init": 256.0, "window": 2}})
        batches = data(4)
        batches[2] = (batches[2][0] * torch.inf, batches[2][1])
        with forbid_host_reads() if device_only else nullcontext():
            run(boosted, trace, batches)
        records, events = trace.drain()
        assert trace.drain() == ([], [])
        kept.append((records, [(event.step, event.kind, event.subject) for event in events]))
    (here, events), (there, device_events) = kept
    assert events == device_events
    for one, other in zip(here, there, strict=True):
        for name in ("loss", "loss_scale", "loss_scale_after", "overflow", "skipped", "grad_norm", "grad_amax"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6, nan_ok=True), name


@pytest.mark.parametrize("copied", [0, 10**6], ids=["where they lie", "copied"])
def test_norm_and_maximum_of_finite_gradients_agree_with_those_tensor_by_tensor(
    copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.loss_scale.gradient_statistics._COPIED_ELEMENTS", copied)
    torch.manual_seed(0)
    gradients = [torch.randn(3, 4), -7 * torch.rand(5), torch.zeros(2), torch.randn(4, 3).t()]
    norms, maxima = tensor_norms_and_maxima(gradients)
    assert norm_and_maximum_of_finite(gradients) == pytest.approx((float(norms.norm()), float(maxima.max())))
    assert norm_and_maximum_of_finite([torch.zeros(3)]) == (0.0, 0.0)
    for bad in (math.nan, math.inf, -math.inf, 1e30, 1e-30):  # squares of the last two leave float32
        assert norm_and_maximum_of_finite([torch.zeros(3), torch.tensor([bad])]) is None
    assert norm_and_maximum_of_finite([torch.ones(3), torch.ones(3, dtype=torch.bfloat16)]) is None
    assert norm_and_maximum_of_finite([torch.ones(3).to_sparse()]) is None


def test_norm_and_maximum_are_those_of_the_unscaled_gradient() -> None:
    net, boosted, trace = make({"loss_scale": {"kind": "fixed", "init": 1024.0}})
    batch = data(1)[0]
    expected = torch.autograd.grad(loss(net, batch), list(net.parameters()))
    run(boosted, trace, [batch])
    (record,), _ = trace.drain()
    flat = torch.cat([g.flatten() for g in expected])
    assert record.grad_norm == pytest.approx(float(flat.norm()), rel=1e-5)
    assert record.grad_amax == pytest.approx(float(flat.abs().max()), rel=1e-5)


def test_buffer_is_due_when_full_or_old() -> None:
    _, boosted, trace = make({}, capacity=3, max_seconds=1e9)
    run(boosted, trace, data(2))
    assert not trace.due()
    run(boosted, trace, data(1))
    assert trace.due()
    with pytest.raises(RuntimeError, match="full"):
        run(boosted, trace, data(1))
    _, boosted, trace = make({}, max_seconds=0.0)
    assert not trace.due()
    run(boosted, trace, data(1))
    assert trace.due()


def test_frozen_steps_leave_gradient_columns_of_the_rest() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(7)], nn.Linear(4, 2))
    boosted = apply(freezing(2, kind=0, steps=8), net, SGD(net.parameters(), lr=0.1), level="O0")
    trace = TraceBuffer(boosted, exponents_every=1)
    run(boosted, trace, data(4))
    records, _ = trace.drain()
    assert [r.frozen_groups for r in records] == [0, 1, 0, 1]
    full, frozen = len(records[0].grad_exponents), len(records[1].grad_exponents)
    assert full > frozen > 0
    assert all(math.isfinite(r.grad_norm) for r in records)


def test_exponents_are_floor_of_log2() -> None:
    values = torch.tensor([1.0, 1.99, 2.0, 0.5, -4.0, 0.0, 1e-45, math.inf, math.nan, 2.0**-24])
    counts = exponent_counts([values]).numpy()
    expected = np.zeros(257, dtype=int)
    for exponent in (0, 0, 1, -1, 2, -24):
        expected[exponent + 127] += 1
    expected[256] = 1  # the zero
    expected[0] = 1  # the denormal
    expected[255] = 2
    assert (counts == expected).all()
    assert exponent_counts([values.half()]).sum() == 10
    assert exponent_counts([]).sum() == 0


def test_norms_and_maxima_per_tensor() -> None:
    norms, maxima = tensor_norms_and_maxima([torch.tensor([3.0, -4.0]), torch.tensor([[-7.0]])])
    assert norms.tolist() == [5.0, 7.0]
    assert maxima.tolist() == [4.0, 7.0]
    norms, _ = tensor_norms_and_maxima([torch.tensor([1.0, math.nan]), torch.tensor([math.inf]), torch.ones(2)])
    assert norms.isfinite().tolist() == [False, False, True]
    large = torch.full((4,), 60000.0, dtype=torch.float16)  # of a norm that float16 does not hold
    norms, maxima = tensor_norms_and_maxima([large])
    assert (norms.dtype, norms.tolist(), maxima.tolist()) == (torch.float32, [2 * float(large[0])], [float(large[0])])
    _, maxima = tensor_norms_and_maxima([large, torch.tensor([-1e5])])
    assert (maxima.dtype, maxima.tolist()) == (torch.float32, [float(large[0]), 1e5])


def test_a_complex_number_counts_as_two() -> None:
    values = torch.tensor([[3.0, -4.0], [0.5, 12.0]])
    pair = [torch.view_as_complex(values), values]
    norms, maxima = tensor_norms_and_maxima(pair)
    assert norms[0] == norms[1]
    assert maxima.tolist() == [12.0, 12.0]
    assert torch.equal(exponent_counts(pair[:1]), exponent_counts(pair[1:]))


def test_groups_follow_the_module_tree_and_are_few() -> None:
    net = nn.Sequential(nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(40)]))
    groups = group_by_module(net)
    assert set(groups) == {name for name, _ in net.named_parameters()}
    assert 4 <= len(set(groups.values())) <= 16
    order = list(dict.fromkeys(groups.values()))
    assert [groups[name] for name, _ in net.named_parameters()] == sorted(groups.values(), key=order.index)


@pytest.mark.parametrize(
    ("accumulation", "init", "n", "spoiled", "floors", "overflows"),
    [
        ({}, 4.0, 8, (0, 1, 2, 3, 5, 6, 7), [1, 5], [0, 1, 2, 3, 5, 6, 7]),
        # Windows 0, 1, 2 and 5 overflow; windows 3 and 4 let the scale grow again.
        (accumulating(2), 2.0, 12, (0, 3, 4, 10), [1], [1, 3, 5, 11]),
    ],
    ids=["every step", "accumulation"],
)
def test_the_floor_is_reported_once_per_visit(
    accumulation: dict[str, Any], init: float, n: int, spoiled: Any, floors: list[int], overflows: list[int]
) -> None:
    config = accumulation | {"loss_scale": {"kind": "dynamic", "init": init, "window": 1}}
    _, events = recorded(config, n, dict.fromkeys(spoiled, math.inf))
    assert [e.step for e in events if e.kind is EventKind.SCALE_FLOOR] == floors
    assert [e.step for e in events if e.kind is EventKind.OVERFLOW] == overflows


@pytest.mark.parametrize(
    ("scale", "kinds", "skipped"),
    [
        ({"kind": "none"}, [(1, "diverged")], []),
        ({"kind": "fixed", "init": 16.0}, [(1, "overflow")], [1]),  # a fixed scale has no floor to report
        (
            {"kind": "fixed", "init": 16.0, "drop_overflow_update": False},
            [(1, "overflow"), (1, "diverged"), (2, "overflow"), (3, "overflow")],
            [],
        ),
    ],
    ids=["no scale", "fixed", "fixed and nothing dropped"],
)
def test_overflows_and_divergence_are_events(
    scale: dict[str, Any], kinds: list[tuple[int, str]], skipped: list[int]
) -> None:
    records, events = recorded({"loss_scale": scale}, 4, {1: math.inf})
    assert [(e.step, e.kind) for e in events] == kinds
    assert [r.step for r in records if r.skipped] == skipped
    assert {r.step for r in records if r.overflow} == {step for step, kind in kinds if kind == "overflow"}
    if len(kinds) > 1:
        assert events[0].message.endswith("the update was applied anyway")
