"""Training on an accelerator: the losses of a CPU, and a host that never waits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.accelerator.recorded_graph import RecordedCapture
from tests.accelerator.standin import forget_waits, waits
from tests.kit.runs import run_task
from workbench.bench.questions import host_waits
from workbench.config import BoostConfig
from workbench.core import devices, graph_capture
from workbench.core.batch import move_batch
from workbench.core.distributed import joined
from workbench.optim.embeddings import EvictingEmbedding, HashEmbedding
from workbench.runs import read_run
from workbench.tasks import load_task
from workbench.training import Boosted, StepOutcome, TraceBuffer, apply, speed, training_loop
from workbench.training.checkpoint import load_checkpoint, save_checkpoint
from workbench.training.setup import prepare

pytestmark = [
    pytest.mark.accelerator,
    pytest.mark.filterwarnings("ignore:less_bn had no effect"),
    pytest.mark.filterwarnings("ignore:grad_freeze is not in effect"),
    pytest.mark.filterwarnings("ignore:SGD cannot skip"),  # on the CPU, whose fused kernel is broken for 16-bit weights
]
CPU = torch.device("cpu")
SCALED = {"amp.level": "O2", "loss_scale.kind": "dynamic", "loss_scale.init": 1024.0}
MANUAL = {"boost.mode": "manual"}

CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, "O0"),
    "O1": ({}, "O1"),
    "dynamic_scale": (SCALED, "O0"),
    "fixed_scale": ({**SCALED, "loss_scale.kind": "fixed"}, "O0"),
    "O3_weights": ({**SCALED, "amp.level": "O3"}, "O0"),
    "group_scales": ({**MANUAL, **SCALED, "boost.loss_scale_group": True, "loss_scale.groups": 3}, "O1"),
    "freezing": (
        {**MANUAL, "boost.grad_freeze": True, "grad_freeze.param_groups": 3, "grad_freeze.freeze_p": 0.3},
        "O1",
    ),
    "accumulation": ({**MANUAL, "boost.grad_accumulation": True, "grad_accumulation.grad_accumulation_step": 2}, "O1"),
    "thor": ({**SCALED, "optimizer.name": "thor", "optimizer.lr": 0.05, "optimizer.frequency": 3}, "O0"),
    "adam": ({**SCALED, "optimizer.name": "Adam"}, "O0"),
}
HALF = {"dynamic_scale", "fixed_scale", "O3_weights", "thor", "adam"}  # float16 rounds elsewhere otherwise


def new_boosted(name: str, device: torch.device, **more: Any) -> Boosted:
    values, level = CONFIGS[name]
    config = BoostConfig().with_values(values | more)
    return prepare(load_task("digits-lenet"), config, level=level, seed=0, device=device, steps=100).boosted


class Training:
    """A recorded training on some batches, over and over."""

    def __init__(self, boosted: Boosted) -> None:
        self.boosted = boosted
        self.trace = TraceBuffer(boosted, exponents_every=2)
        task = load_task("digits-lenet")
        batches = [move_batch(batch, boosted.device) for batch in islice(task.batches(0), 4)]
        self.loop = training_loop(boosted, task.compute_loss, cycle(batches), trace=self.trace)

    def steps(self, number: int) -> list[StepOutcome]:
        return [next(self.loop) for _ in range(number)]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_losses_are_those_of_a_cpu(name: str, accelerator: torch.device) -> None:
    here, there = (Training(new_boosted(name, device)).steps(12) for device in (CPU, accelerator))
    tolerance = 0.02 if name in HALF else 1e-4
    for ours, theirs in zip(there, here, strict=True):
        assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=tolerance)
        assert float(ours.loss_scale_after) == float(theirs.loss_scale_after)
        assert ours.frozen_groups == theirs.frozen_groups


# Group scales refuse graphs, and casts of O3 are hooks.
@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in ("group_scales", "O3_weights")])
def test_replayed_passes_train_as_passes_do(
    name: str, accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not devices.has_graphs(accelerator):
        monkeypatch.setattr(devices, "has_graphs", lambda device: True)
        monkeypatch.setattr(devices, "is_capturing", lambda device: False)
        monkeypatch.setattr(graph_capture, "CudaCapture", RecordedCapture)
    losses = []
    for more in ({}, {"runtime.cuda_graph": True}):
        boosted = new_boosted(name, accelerator, **more)
        losses.append([float(outcome.loss) for outcome in Training(boosted).steps(12)])
        assert boosted.replays_passes == bool(more)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_host_never_waits_in_a_step_and_its_record(name: str, standin: torch.device) -> None:
    training = Training(new_boosted(name, standin))
    training.steps(12)  # state is made, groups are found, THOR has refreshed
    training.trace.drain()
    forget_waits()
    seen = host_waits.dispatched_waits(lambda: training.steps(12))
    assert waits() == []
    assert seen == Counter()
    training.trace.drain()
    assert set(waits()) == {"copy to the host"}


def test_a_rate_that_is_a_tensor_is_not_waited_for_and_recorded_as_it_was(standin: torch.device) -> None:
    task = load_task("digits-lenet")
    model = task.new_model().to(standin)
    rate = torch.tensor(0.01, device=standin)
    boosted = apply(BoostConfig(), model, torch.optim.Adam(model.parameters(), lr=rate, fused=True), level="O0")
    training = Training(boosted)
    training.steps(3)
    training.trace.drain()
    forget_waits()
    training.steps(1)
    rate.mul_(0.5)
    training.steps(1)
    assert waits() == []
    records, _ = training.trace.drain()
    assert waits() == ["copy to the host"] * 2  # the rows, and the exponents of one of them
    assert [record.learning_rate for record in records] == pytest.approx([0.01, 0.005])


@pytest.mark.parametrize("task", ["digits-resnet", "digits-autoencoder", "topics-gpt", "clicks"])
def test_every_task_trains_and_is_recorded(task: str, accelerator: torch.device, tmp_path: Path) -> None:
    made = load_task(task)
    short = replace(made, evaluate=lambda seed: list(islice(made.evaluation_batches(seed), 1)))
    result = run_task(short, BoostConfig().with_values(SCALED), level="O1", steps=2, device=accelerator, out=tmp_path)
    written = read_run(result.path)
    assert len(written.steps) == 2
    assert written.steps["grad_norm"].notna().all()


def test_a_checkpoint_goes_on_there_and_on_a_cpu(accelerator: torch.device, tmp_path: Path) -> None:
    file = tmp_path / "state.pt"
    whole = Training(new_boosted("dynamic_scale", accelerator))
    whole.steps(4)
    save_checkpoint(file, whole.boosted)
    expected = [float(outcome.loss) for outcome in whole.steps(4)]
    for device, tolerance in ((accelerator, 1e-5), (CPU, 0.02)):
        resumed = Training(new_boosted("dynamic_scale", device))
        load_checkpoint(file, resumed.boosted)
        assert [float(outcome.loss) for outcome in resumed.steps(4)] == pytest.approx(expected, rel=tolerance)


def test_a_checkpoint_keeps_the_random_numbers_of_the_device(accelerator: torch.device, tmp_path: Path) -> None:
    file = tmp_path / "state.pt"
    boosted = new_boosted("plain", accelerator)
    torch.manual_seed(1)
    save_checkpoint(file, boosted)
    drawn = torch.rand(4, device=accelerator)
    torch.manual_seed(2)
    load_checkpoint(file, boosted)
    assert torch.equal(torch.rand(4, device=accelerator), drawn)


def test_a_run_on_the_second_of_two_devices_is_that_on_the_first(standin: torch.device) -> None:
    def losses(name: str, index: int) -> list[float]:
        training = Training(new_boosted(name, torch.device(standin.type, index)))
        outcomes = training.steps(8)
        training.trace.drain()
        return [float(outcome.loss) for outcome in outcomes]

    for name in ("group_scales", "thor", "adam"):
        assert losses(name, 1) == losses(name, 0)
    assert torch.accelerator.current_device_index() == 0


def test_a_device_chosen_by_its_number_is_current_while_it_is_used(standin: torch.device) -> None:
    with joined(f"{standin.type}:1") as device:
        assert device.index == torch.accelerator.current_device_index() == 1
    assert torch.accelerator.current_device_index() == 0
    with joined("auto"):
        assert torch.accelerator.current_device_index() == 0


@pytest.mark.parametrize("name", ["plain", "freezing", "accumulation", "thor"])
def test_several_windows_are_timed_between_two_synchronisations(
    name: str, standin: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "_WARM_UP_SECONDS", (0.03, 0.06))
    values, level = CONFIGS[name]
    config = BoostConfig().with_values({**values, **({"optimizer.frequency": 4} if name == "thor" else {})})
    side = speed.TimedSide(
        load_task("digits-lenet"), config, level, device=standin, seed=0, at_least=2, before_window=None
    )
    time = 0.0

    def clock() -> float:  # whatever is timed takes 5 ms
        nonlocal time
        time += 0.005
        return time

    side.clock = clock
    side.warm_up()
    windows = 3 if name == "thor" else 10  # 50 ms, or what lies between two refreshes
    assert side.repeats == windows
    began = side.position
    forget_waits()
    seconds = side.block()
    spans = waits().count("device.synchronize") / 2
    steps = spans * windows * side.boosted.window.n_steps
    assert side.position - began == steps
    if name != "thor":
        assert seconds == pytest.approx(0.005 / (windows * side.boosted.window.n_steps))


def test_batches_travel_without_a_wait(standin: torch.device) -> None:
    move_batch({"x": torch.ones(3), "y": [torch.zeros(2, dtype=torch.int64)]}, standin)
    assert waits() == []


def test_a_default_device_changes_nothing(accelerator: torch.device, tmp_path: Path) -> None:
    def losses(folder: str) -> list[float]:
        config = BoostConfig().with_values({**SCALED, "optimizer.name": "adam_offload"})
        result = run_task(
            load_task("digits-lenet"), config, level="O1", steps=4, device=accelerator, out=tmp_path / folder
        )
        return [float(loss) for loss in read_run(result.path).steps["loss"]]

    usual = losses("usual")
    with torch.device(accelerator):
        assert losses("with") == pytest.approx(usual, rel=0.02)


def test_tables_of_ids_work_there(accelerator: torch.device) -> None:
    ids = torch.tensor([[3, 5], [3, 10**12]])
    for table in (HashEmbedding(16, 4, n_hashes=2), EvictingEmbedding(16, 4)):
        here = table(ids)
        there = table.to(accelerator)(ids.to(accelerator))
        torch.testing.assert_close(there.cpu(), here)
        there.sum().backward()
