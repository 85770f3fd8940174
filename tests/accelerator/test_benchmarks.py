"""Every benchmark that measures on a device, there, at sizes too small to mean anything."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch

from tests.accelerator.recorded_graph import captured
from tests.accelerator.standin import waits
from tests.kit import tiny_questions
from tests.kit.tiny_questions import NET
from workbench.bench import Finding, Request
from workbench.bench.questions import captured_step, host_waits, large_levels, nets, offload
from workbench.core import host_values
from workbench.tasks import load_task

pytestmark = [
    pytest.mark.accelerator,
    pytest.mark.filterwarnings("ignore:grad_freeze is not in effect"),
    pytest.mark.filterwarnings("ignore:less_bn had no effect"),
    pytest.mark.filterwarnings("ignore:An output with one or more elements was resized"),  # torch's, for its fallback
]
IMAGES, TEXT = nets.Images((1, 1), 4, 2, 16, 10), nets.Text(1, 16, 2, 2, 8)
MEASURES = {**tiny_questions.MEASURES, "thor": partial(tiny_questions.MEASURES["thor"], large=IMAGES)}


def ours(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if ": ours /" in finding.what]


@pytest.mark.long  # all questions of the developers' benchmarks
@pytest.mark.parametrize("name", MEASURES)
def test_it_measures_there(name: str, accelerator: torch.device) -> None:
    found = MEASURES[name](Request(1, device=accelerator))
    assert [one.what for one in found if one.verdict == "differs"] == []
    assert any(one.estimate is not None for one in found)
    assert [one.what for one in ours(found) if one.estimate is None] == []


def test_refreshes_are_told_in_time_there(accelerator: torch.device) -> None:
    found = MEASURES["thor"](Request(1, device=accelerator))
    seconds = [one for one in found if one.unit == "s"]
    assert [one.goal for one in seconds] == [1e-3] * 3
    assert "ResNet-50 shape" in seconds[-1].what


def test_offloading_leaves_no_state_there(accelerator: torch.device) -> None:
    found = offload.measure_encoder(Request(1, device=accelerator), offload.Encoder(1, 16, 2, 4))
    assert found[0].estimate is not None
    assert found[-1].estimate.value == 0.0
    assert found[-1].verdict == "met"


def test_large_networks_under_levels_and_exports(accelerator: torch.device) -> None:
    tasks = [IMAGES.task(), TEXT.task()]
    studies = Path(__file__).parents[2] / "studies"
    found = large_levels.measure_tasks(Request(1, device=accelerator), tasks, studies=studies)
    assert all(one.estimate is not None for one in found)
    per_task = Counter(one.what.split(":")[0] for one in found)
    assert len(per_task) == 2
    assert min(per_task.values()) >= 4  # float32, O1, and at least two exports
    assert all("loss scale" in one.note for one in found if "O1" in one.what or "exported" in one.what)


def test_no_step_waits(accelerator: torch.device) -> None:
    found = host_waits.measure_waits(Request(1, device=accelerator), load_task("digits-lenet"), warm_up=12, steps=6)
    assert {one.verdict for one in found} == {"met"}
    assert len(found) >= len(host_waits.CONFIGS)


def test_a_wait_is_seen(standin: torch.device) -> None:
    there = torch.ones(3, device=standin)

    def careless() -> None:
        there.sum().item()
        there.cpu()
        torch.ones(3).to(standin)
        there.copy_(torch.ones(3))
        torch.ones(3).nonzero()  # on the host: nobody waits
        there.nonzero()
        _ = there[there > 0]
        there[there > 2] = 0.0
        _ = there[torch.tensor([1, 2])]
        torch.ones(3).to(standin, non_blocking=True)  # from memory that is not pinned
        torch.ones(3, dtype=torch.int64, device=standin).bincount()
        _ = there[torch.arange(2, device=standin)]  # nothing that the host has to know

    seen = host_waits.dispatched_waits(careless)
    assert seen["copy from the host"] == 3
    assert seen.total() == 10
    assert len(waits()) >= 9


def test_a_wait_in_a_backward_pass_is_seen(standin: torch.device) -> None:
    weight = torch.ones(2, device=standin, requires_grad=True)
    weight.register_hook(lambda gradient: gradient * gradient.sum().item())
    seen = host_waits.dispatched_waits(lambda: (2 * weight).sum().backward())
    assert seen.total() == len(waits()) == 1


def test_the_profiler_sees_a_wait(accelerator: torch.device) -> None:
    if accelerator.type != "cuda":
        pytest.skip("only CUDA's runtime is asked")
    there = torch.ones(3, device=accelerator)
    assert host_waits.profiled_waits(lambda steps: [there.sum().item() for _ in range(steps)], 7).total() >= 7
    assert host_waits.profiled_waits(lambda steps: [there.sum() for _ in range(steps)], 7).total() == 0


def test_a_replayed_step_is_the_step(standin: torch.device) -> None:
    (found,) = captured_step.measure_capture(Request(1, device=standin), NET, captured)
    assert found.estimate is not None


def test_a_graph_keeps_what_it_writes_to(standin: torch.device) -> None:
    training = captured_step.Training(NET, standin, capturable=True)
    alive = weakref.ref(training)
    again = captured_step.Captured(lambda: None, training.step)
    del training
    gc.collect()
    assert alive() is not None
    del again
    gc.collect()
    assert alive() is None


def test_a_step_fits_into_a_cuda_graph(accelerator: torch.device) -> None:
    if accelerator.type != "cuda":
        pytest.skip("needs CUDA")
    (found,) = captured_step.measure(Request(1, device=accelerator))
    assert found.estimate is not None


def test_what_the_host_decides_cannot_be_replayed(standin: torch.device) -> None:
    with mock.patch.object(host_values, "reads_without_waiting", return_value=True):
        (found,) = captured_step.measure_capture(Request(1, device=standin), NET, captured)
    assert found.verdict == "differs"


@pytest.mark.parametrize("is_tensor", [True, False])
def test_a_replay_follows_a_rate_that_is_a_tensor_and_no_other(is_tensor: bool, standin: torch.device) -> None:
    training = captured_step.Training(NET, standin, capturable=True)
    (group,) = training.boosted.optimizer.param_groups
    group["lr"] = torch.tensor(1e-3, device=standin) if is_tensor else 1e-3
    again = captured(training.step)
    group["lr"] *= 0  # a tensor in place
    before = {name: value.clone() for name, value in training.state().items()}
    again()
    stays = all(torch.equal(value, before[name]) for name, value in training.state().items() if name != "loss scale")
    assert stays is is_tensor
