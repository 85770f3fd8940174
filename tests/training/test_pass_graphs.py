"""Forward and backward pass as one graph: the same bits as without, and left alone where a replay would be wrong."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.accelerator.recorded_graph import RecordedCapture
from workbench.config import BoostConfig
from workbench.core import devices, graph_capture
from workbench.core.wrapped_model import unwrapped
from workbench.tasks import load_task
from workbench.training import Boosted, TraceBuffer, apply, training_loop
from workbench.training.agreement import first_gradient, first_losses
from workbench.training.setup import prepare
from workbench.training.speed import measure_speed_ratio

pytestmark = pytest.mark.filterwarnings("ignore:switches that are not named")
CPU = torch.device("cpu")
MANUAL = {"boost.mode": "manual", "boost.less_bn": False, "boost.grad_freeze": False, "amp.level": "O0"}
GRAPH = {"runtime.cuda_graph": True}
FREEZING = {"grad_freeze.param_groups": 3, "grad_freeze.freeze_p": 0.5, "grad_freeze.total_steps": 60}
SCALED = {"loss_scale.kind": "dynamic", "loss_scale.init": 1024.0, "loss_scale.window": 3}

Batch = tuple[Tensor, Tensor]
CRITERION = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _graphs_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Record passes on a CPU; the model's own graph, of which a CPU has none, is not traced in vain."""
    monkeypatch.setattr(graph_capture, "CudaCapture", RecordedCapture)
    monkeypatch.setattr(devices, "has_graphs", lambda device: True)
    monkeypatch.setattr(RecordedCapture, "recordings", 0)
    with torch.compiler.set_stance("force_eager"):
        yield


def network() -> nn.Module:
    torch.manual_seed(0)
    hidden = [layer for _ in range(2) for layer in (nn.Linear(16, 16), nn.ReLU())]
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), *hidden, nn.Linear(16, 4))


def boosted_pair(values: dict[str, Any], model: nn.Module | None = None) -> Boosted:
    model = network() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    return apply(BoostConfig().with_values({**MANUAL, **values}), model, optimizer, 60, criterion=CRITERION)


def batches(number: int, *, overflow: int = -1) -> Iterator[Batch]:
    """Yield batches of 8 samples, every seventh of 5, one with an infinite sample if that is asked for."""
    generator = torch.Generator().manual_seed(1)
    for index in range(number):
        n = 5 if index % 7 == 6 else 8
        inputs = torch.randn(n, 8, generator=generator)
        if index == overflow:
            inputs[0, 0] = torch.inf
        yield inputs, torch.randint(0, 4, (n,), generator=generator)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return CRITERION(model(batch[0]), batch[1])


def trained(boosted: Boosted, given: Iterable[Any], compute_loss: Callable[..., Tensor] = loss_of) -> list[float]:
    losses = []
    for batch in given:
        boosted.forward_backward(compute_loss, batch)
        losses.append(float(boosted.step().loss))
    return losses


def assert_equal_state(one: Boosted, other: Boosted) -> None:
    torch.testing.assert_close(
        one.model.state_dict(), by_plain_name(other.model.state_dict()), rtol=0, atol=0, equal_nan=True
    )


def by_plain_name(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("_orig_mod."): value for name, value in state.items()}


CONFIGS: dict[str, tuple[dict[str, Any], int, int]] = {
    "plain": ({}, 30, 2),
    "accumulation": ({"boost.grad_accumulation": True, "grad_accumulation.grad_accumulation_step": 2}, 30, 2),
    "freezing": ({"boost.grad_freeze": True, **FREEZING}, 60, 5),
    "dynamic scale": (SCALED, 30, 2),
    "THOR": ({"optimizer.name": "thor", "optimizer.lr": 0.05, "optimizer.frequency": 5}, 30, 2),
    "weight average": ({"regularization.weight_average": "ema", "regularization.decay": 0.9}, 30, 2),
}
"""By name: values, a number of batches of two sizes, and how many kinds of passes come three times or more."""


@pytest.mark.parametrize("name", CONFIGS)
def test_replays_train_with_the_bits_of_passes(name: str) -> None:
    values, n, kinds = CONFIGS[name]
    overflow = 15 if "loss_scale.kind" in values else -1
    plain, replayed = boosted_pair(values), boosted_pair({**values, **GRAPH})
    expected = trained(plain, batches(n, overflow=overflow))
    assert RecordedCapture.recordings == 0
    found = trained(replayed, batches(n, overflow=overflow))
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert RecordedCapture.recordings == kinds
    assert_equal_state(plain, replayed)
    assert float(plain.loss_scale) == float(replayed.loss_scale)


def test_the_loop_and_its_trace_see_the_same_steps() -> None:
    records = []
    for values in ({}, GRAPH):
        boosted = boosted_pair(values)
        trace = TraceBuffer(boosted)
        assert len(list(training_loop(boosted, loss_of, batches(12), trace=trace))) == 12
        records.append([(one.loss, one.grad_norm, one.samples) for one in trace.drain()[0]])
    assert RecordedCapture.recordings == 1
    assert records[0] == records[1]


def test_a_copy_captures_its_own_passes() -> None:
    first = boosted_pair(GRAPH)
    trained(first, batches(6))
    twin = copy.deepcopy(first)
    before = copy.deepcopy(by_plain_name(first.model.state_dict()))
    losses = trained(twin, islice(batches(12), 7, 12))
    torch.testing.assert_close(by_plain_name(first.model.state_dict()), before, rtol=0, atol=0)
    assert trained(first, islice(batches(12), 7, 12)) == losses


def test_a_state_that_is_loaded_is_gone_on_from() -> None:
    first = boosted_pair({**SCALED, **GRAPH})
    trained(first, batches(6))
    state = copy.deepcopy(first.state_dict())
    losses = trained(first, batches(6))
    first.load_state_dict(state)
    assert trained(first, batches(6)) == losses


class Counting(nn.Module):
    """Weighs its output by how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = network(), 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(inputs) * (1.0 + 0.1 * self.calls)


class Remembering(nn.Module):
    """Adds a mean of what came before, in a buffer that is another tensor each time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.inner(inputs)
        self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean(0)
        return outputs + self.mean


class CountingInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.held = network(), {"calls": np.int64(0)}

    def forward(self, inputs: Tensor) -> Tensor:
        self.held["calls"] += 1
        return self.inner(inputs) * float(1.0 + 0.1 * self.held["calls"])


class DrawingItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.numbers = network(), np.random.default_rng(0)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs) * float(1.0 + self.numbers.random())


def with_dropout() -> nn.Module:
    return nn.Sequential(network(), nn.Dropout(0.5))  # of a CPU, whose generator is the host's


class DropsLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.extra = network(), nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.inner(inputs)
        return self.extra(outputs) if random.random() < 0.5 else outputs


def with_a_hook() -> nn.Module:
    model = network()
    model[0].register_forward_hook(lambda module, args, output: output * 1.0)
    return model


@pytest.mark.filterwarnings("ignore:the CUDA graph is that of the model alone")  # where nothing has to be said
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Counting, ""),  # each count is another kind of pass
        (Remembering, ""),
        (CountingInside, "changes on the host what it holds"),
        (DrawingItself, "changes on the host what it holds"),
        (with_dropout, "draws random numbers on the host"),
        (DropsLayers, "draws random numbers on the host"),
        (with_a_hook, "hooks of the model act in Python"),
    ],
)
def test_what_a_replay_would_leave_out_is_not_captured(make: Callable[[], nn.Module], why: str) -> None:
    losses = []
    for values in ({}, GRAPH):
        random.seed(2)
        boosted = boosted_pair(values, make())
        torch.manual_seed(3)
        if not values:
            losses.append(trained(boosted, batches(12)))
            continue
        said = pytest.warns(UserWarning, match=f"the CUDA graph is that of the model alone.*{why}")
        with said if why else contextlib.nullcontext():
            losses.append(trained(boosted, batches(12)))
    assert RecordedCapture.recordings == 0
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)


def both_ways(before_step: Callable[[Boosted, int, Batch], object]) -> list[list[float]]:
    """Train without graphs and with them, with something before each step; return the losses."""
    results = []
    for values in ({}, GRAPH):
        boosted, losses = boosted_pair(values), []
        for index, batch in enumerate(batches(12)):
            before_step(boosted, index, batch)
            losses += trained(boosted, [batch])
        results.append(losses)
    return results


def test_what_is_set_between_steps_is_in_effect_in_the_next_one() -> None:
    def modes(model: nn.Module, index: int) -> None:
        model[1].train(index < 6)

    def numbers(model: nn.Module, index: int) -> None:
        model[1].momentum = 0.1 if index < 6 else 0.5

    def buffers(model: nn.Module, index: int) -> None:
        if index == 6:
            model[1].running_mean = torch.ones(16)

    def hooks(model: nn.Module, index: int) -> None:
        if index == 6:
            model[0].register_forward_hook(lambda module, args, output: output * 2.0)

    for change in (modes, numbers, buffers, hooks):
        plain, replayed = both_ways(lambda boosted, index, _, change=change: change(unwrapped(boosted.model), index))
        assert plain == replayed
    assert RecordedCapture.recordings >= 4


def test_parameters_that_come_later_are_trained() -> None:
    results = []
    for values in ({}, GRAPH):
        boosted, temperature = boosted_pair(values), nn.Parameter(torch.ones(4))

        def scaled(model: nn.Module, batch: Batch, temperature: nn.Parameter = temperature) -> Tensor:
            return CRITERION(model(batch[0]) * temperature, batch[1])

        given = list(batches(20))
        losses = trained(boosted, given[:8], scaled)
        boosted.optimizer.add_param_group({"params": [temperature]})
        results.append((losses + trained(boosted, given[8:], scaled), temperature.tolist()))
    assert results[0] == results[1]
    assert results[0][1] != [1.0] * 4


def test_an_interrupted_pass_leaves_nothing_behind() -> None:
    def interrupt(boosted: Boosted, index: int, batch: Batch) -> None:
        if index in (1, 8):
            with pytest.raises(IndexError):
                boosted.forward_backward(loss_of, (batch[0], torch.full_like(batch[1], 99)))

    plain, replayed = both_ways(interrupt)
    torch.testing.assert_close(replayed, plain)


@pytest.mark.filterwarnings("ignore:.*it changes the batch")
def test_batches_that_a_copy_would_not_be_are_left_to_the_caller() -> None:
    @dataclasses.dataclass
    class Masked:
        inputs: Tensor
        targets: Tensor
        mask: Tensor = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            self.mask = (self.inputs > 0).float()

    def masked(model: nn.Module, batch: Masked) -> Tensor:
        return CRITERION(model(batch.inputs * batch.mask), batch.targets)

    def changing(model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch[0].add_(1.0))[:, :1] - batch[1][:, :1]).square().mean()

    for make, compute_loss in ((lambda pair: Masked(*pair), masked), (lambda pair: (pair[0], pair[0]), changing)):
        trained(boosted_pair(GRAPH), map(make, batches(5)), compute_loss)
    assert RecordedCapture.recordings == 0


def test_views_of_the_same_memory_are_captured() -> None:
    """As of the windows of a text that stays on the device, each the other's next byte."""
    wide = [(torch.cat([window, window[:, :1]], dim=1), targets) for window, targets in batches(6)]
    given = [((both[:, :-1], both[:, 1:]), targets) for both, targets in wide]
    plain, replayed = (trained(boosted_pair(values), given, sum_of_both) for values in ({}, GRAPH))
    assert RecordedCapture.recordings == 1
    assert plain == replayed


def sum_of_both(model: nn.Module, batch: tuple[tuple[Tensor, Tensor], Tensor]) -> Tensor:
    (one, other), targets = batch
    return CRITERION(model(one) + model(other), targets)


def test_there_is_room_for_a_pass_that_comes_again_after_many_that_do_not() -> None:
    boosted = boosted_pair(GRAPH)
    for pair in zip(batches(30), range(30), strict=True):
        trained(boosted, [pair], lambda model, batch: loss_of(model, batch[0]))
    assert not boosted.replays_passes
    trained(boosted, batches(6))
    assert boosted.replays_passes


class Waiting(RecordedCapture):
    def rehearse(self, work: Callable[[], Any]) -> tuple[Any, bool]:
        return work(), True


class Failing(RecordedCapture):
    def record(self, work: Callable[[], Any]) -> Any:
        work()
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("capture", "why"), [(Waiting, "the host waits"), (Failing, "could not be captured .operation not permitted")]
)
def test_a_pass_that_cannot_be_captured_is_done_as_usual(
    capture: type, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_capture, "CudaCapture", capture)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))  # without what a failed capture had counted
    plain, replayed = boosted_pair({}, copy.deepcopy(model)), boosted_pair(GRAPH, model)
    expected = trained(plain, batches(6))
    with pytest.warns(UserWarning, match=why):
        losses = trained(replayed, batches(6))
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)


def test_a_function_made_anew_for_each_step_is_never_captured() -> None:
    boosted = boosted_pair(GRAPH)
    for batch in batches(20):
        trained(boosted, [batch], lambda model, _, batch=batch: loss_of(model, batch))
    assert RecordedCapture.recordings == 0


def test_what_a_batch_holds_besides_tensors_belongs_to_its_kind() -> None:
    def weighted(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return loss_of(model, batch["pair"]) * batch["weight"]

    given = [{"pair": pair, "weight": 1.0 + index % 2} for index, pair in enumerate(batches(20))]
    plain, replayed = (trained(boosted_pair(values), given, weighted) for values in ({}, GRAPH))
    assert plain == replayed
    assert RecordedCapture.recordings == 2


def test_agreement_is_asked_of_the_replays() -> None:
    task = load_task("digits-lenet")
    asked = [
        (task, BoostConfig().with_values({"boost.mode": "disable_all", "amp.level": "O0", **values}), "O0", 0, CPU)
        for values in ({}, GRAPH)
    ]
    losses = [first_losses(*one, n=6) for one in asked]
    assert RecordedCapture.recordings == 1
    torch.testing.assert_close(losses[1], losses[0])
    gradients = [first_gradient(*one) for one in asked]
    assert RecordedCapture.recordings == 2
    torch.testing.assert_close(gradients[1], gradients[0])


def test_the_gradient_of_a_replay_is_compared_without_its_scale_and_window() -> None:
    task = load_task("digits-lenet")
    values = {**MANUAL, "boost.grad_accumulation": True, "grad_accumulation.grad_accumulation_step": 2, **SCALED}
    plain, replayed = (
        first_gradient(task, BoostConfig().with_values({**values, **more}), "O1", 0, CPU) for more in ({}, GRAPH)
    )
    torch.testing.assert_close(plain, replayed)


def test_inputs_that_an_average_is_estimated_from_are_not_left_out() -> None:
    values = {"optimizer.name": "ScheduleFreeAdamW", "optimizer.lr": 0.01}
    evaluated = []
    for more in ({}, GRAPH):
        boosted = boosted_pair({**values, **more})
        trained(boosted, batches(8))
        with boosted.evaluating(), torch.no_grad():
            evaluated.append(boosted.model.eval()(next(batches(1))[0]))
    assert not boosted.replays_passes
    torch.testing.assert_close(evaluated[1], evaluated[0], rtol=1e-4, atol=1e-5)


def test_what_capturing_takes_is_paid_by_every_run() -> None:
    baseline = (BoostConfig().with_values({"boost.mode": "disable_all", "amp.level": "O0"}), "O0")
    for values, again in (({}, False), (GRAPH, True)):
        candidate = (baseline[0].with_values(values), "O0")
        sides, task = (baseline, candidate), load_task("digits-lenet")
        measured = measure_speed_ratio(task, *sides, device=CPU, rounds=1, steps_per_block=4, precision=9.0)
        assert measured.cold_again == again


def test_a_pass_is_forgotten_between_windows_only() -> None:
    boosted = boosted_pair({})
    with pytest.raises(RuntimeError, match="follows the pass"):
        boosted.forget_pass()
    loss = boosted.forward_backward(loss_of, next(batches(1)))
    assert boosted.forget_pass() is loss
    assert all(parameter.grad is None for parameter in boosted.model.parameters())


def test_a_run_is_prepared_with_graphs_where_they_are_asked_for() -> None:
    task = load_task("digits-lenet")
    config = BoostConfig().with_values({"boost.mode": "disable_all", "amp.level": "O0", **GRAPH})
    prepared = prepare(task, config, level="O0", seed=0, device=CPU, steps=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop = training_loop(prepared.boosted, prepared.task.compute_loss, prepared.batches(0), steps=5)
        assert len(list(loop)) == 5
    assert RecordedCapture.recordings == 1
