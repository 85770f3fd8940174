"""How often does the host wait for an accelerator in a training step?

A step is what a run does: a batch travels, a model trains, a record is written. Two instruments look at it. One sees
the operations that are dispatched: reading a number, asking for the places that are not zero, copying between host and
device without `non_blocking` or without pinned memory. It works on any device. The other, on CUDA, asks the profiler
how often the runtime was told to wait, by whomever. What a profile itself waits for is taken out: some steps are
counted, then twice as many, and the difference is theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.bench import Benchmark, Estimate, Finding, Request
from workbench.config import BoostConfig
from workbench.core.batch import move_batch
from workbench.tasks import Task, load_task
from workbench.training import TraceBuffer, training_loop
from workbench.training.setup import prepare

_SCALED = {"amp.level": "O2", "loss_scale.kind": "dynamic"}
_MANUAL = {**_SCALED, "boost.mode": "manual"}


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "O0 in float32": ({"amp.level": "O0"}, "O0"),
    "dynamic loss scale": (_SCALED, "O0"),
    "O1, dynamic loss scale": (_SCALED, "O1"),
    "group loss scales": ({**_MANUAL, "boost.loss_scale_group": True}, "O1"),
    "accumulation": (
        {**_MANUAL, "boost.grad_accumulation": True, "grad_accumulation.grad_accumulation_step": 2},
        "O1",
    ),
    "THOR, dynamic loss scale": ({**_SCALED, "optimizer.name": "thor", "optimizer.frequency": 20}, "O0"),
}
"""By name: values that are set, and the level."""

_READS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.unique_dim.default,
    torch.ops.aten.unique_consecutive.default,
    torch.ops.aten.bincount.default,
    torch.ops.aten.repeat_interleave.Tensor,
}
_INDEXING = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put_.default,
    torch.ops.aten.index_put.default,
    torch.ops.aten._index_put_impl_.default,
}
_RUNTIME = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cuMemcpy",
    "cudaMalloc",  # these four wait for the device by the way; MAGMA's queues are a source of them
    "cudaFree",
    "cudaHostAlloc",
    "cudaFreeHost",
    "hipStreamSynchronize",
    "hipDeviceSynchronize",
    "hipEventSynchronize",
    "hipMemcpyWithStream",
)
_PAGEABLE = "Pageable"  # of a copy's name on the device: the host waits inside of it, without a call of its own


def measure(request: Request) -> list[Finding]:
    """Count waits of the host per recorded training step on an accelerator, for several configurations."""
    if request.chosen_device().type == "cpu":
        note = "needs an accelerator; has not run on one"
        return [Finding("waits of the host per step", "count", None, 0.0, note, "absent")]
    return measure_waits(request, load_task("digits-resnet"))


def measure_waits(request: Request, task: Task, *, warm_up: int = 40, steps: int = 20) -> list[Finding]:
    """Count on whatever device, after steps that make what is made once; any twenty steps hold a refresh of THOR's."""
    device = request.chosen_device()
    found = []
    for name, (values, level) in CONFIGS.items():
        train = _recorded_steps(task, BoostConfig().with_values(values), level, device)
        train(warm_up)
        waits = {"dispatched": dispatched_waits(lambda train=train: train(steps))}
        if device.type == "cuda":
            waits["runtime"] = profiled_waits(train, steps)
        for instrument, counted in waits.items():
            note = ", ".join(f"{number} {what}" for what, number in counted.most_common()) or f"none in {steps} steps"
            value = Estimate.exact(counted.total() / steps)
            found.append(Finding(f"waits of the host per step, {instrument}: {name}", "count", value, 0.0, note))
    return found


def dispatched_waits(work: Callable[[], object]) -> Counter[str]:
    """Return how often each operation through which the host waits is dispatched, backward passes included."""
    with _Watch() as watch:
        work()
    return watch.waits


def profiled_waits(train: Callable[[int], object], steps: int) -> Counter[str]:
    """Return how often the runtime of CUDA was told to wait in so many steps of a function that does some."""
    _in_profile(lambda: train(1))  # the first one also begins the profiler's own work
    once, twice = (_in_profile(lambda number=number: train(number)) for number in (steps, 2 * steps))
    return twice - once


def _in_profile(work: Callable[[], object]) -> Counter[str]:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        work()
    waits = (event.name for event in profiled.events() or [])
    return Counter(name for name in waits if _PAGEABLE in name or (name.startswith(_RUNTIME) and "Async" not in name))


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.waits = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in _READS:
            if any(isinstance(one, Tensor) and one.device.type != "cpu" for one in args):
                self.waits[str(func)] += 1
        elif func in _INDEXING:
            self._see_indices(args[0], args[1])
        elif func is torch.ops.aten._to_copy.default:
            self._see_copy(args[0], result, kwargs.get("non_blocking", False))
        elif func is torch.ops.aten.copy_.default:
            self._see_copy(args[1], result, args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        return result

    def _see_indices(self, indexed: Tensor, indices: Sequence[Tensor | None]) -> None:
        given = [index for index in indices if index is not None]
        if indexed.device.type != "cpu":
            masks = [index for index in given if index.dtype in (torch.bool, torch.uint8)]
            hosts = [index for index in given if index.device.type == "cpu" and index.ndim]
            if masks or hosts:  # the number of places, or the places themselves
                self.waits["index by a mask" if masks else "index from the host"] += 1

    def _see_copy(self, source: Tensor, target: Tensor, non_blocking: bool) -> None:
        crosses = (source.device.type == "cpu") != (target.device.type == "cpu")
        host = target if target.device.type == "cpu" else source
        if crosses and not (non_blocking and host.is_pinned()):
            self.waits["copy to the host" if target.device.type == "cpu" else "copy from the host"] += 1


def _recorded_steps(task: Task, config: BoostConfig, level: str, device: torch.device) -> Callable[[int], None]:
    boosted = prepare(task, config, level=level, seed=0, device=device, steps=10_000).boosted
    trace = TraceBuffer(boosted, exponents_every=10)
    on_host = list(islice(task.batches(0), 2))
    batches = (move_batch(batch, device) for batch in cycle(on_host))
    loop = training_loop(boosted, task.compute_loss, batches, trace=trace)

    def train(steps: int) -> None:
        for _ in range(steps):
            next(loop)

    return train


BENCHMARK = Benchmark(
    "host_waits",
    "Does the host wait for an accelerator in a training step?",
    measure,
    rounds=1,
    place=11,
    group="accelerator",
)
