"""The training loop: a generator of outcomes that knows none of its consumers.

Notebook, panel, objective and command are consumers of one stream, and each may stop it by not asking for the next.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from workbench.core.batch import tensors_of
from workbench.training.boosted import Boosted
from workbench.training.outcome import StepOutcome
from workbench.training.trace_buffer import TraceBuffer


def training_loop(
    boosted: Boosted,
    compute_loss: Callable[[nn.Module, Any], Tensor],
    batches: Iterable[Any],
    *,
    steps: int | None = None,
    scheduler: LRScheduler | None = None,
    schedule: Literal["attempted", "applied"] = "attempted",
    trace: TraceBuffer | None = None,
    batch_size: Callable[[Any], int] | None = None,
) -> Iterator[StepOutcome]:
    """Train and yield one outcome per micro-batch; its tensors stay on the device, where ``batches`` already are.

    Training ends after ``steps`` micro-batches, or with the batches. A learning-rate ``scheduler`` on
    ``boosted.optimizer`` is stepped at window ends: ``"attempted"`` after skipped updates, too, ``"applied"`` waits for
    the device to know. What the ``trace`` records is the consumer's to drain; ``batch_size`` counts the samples in a
    batch, None takes the length of its first tensor.
    """
    model = boosted.model
    count = batch_size or samples_in
    stream = iter(batches) if steps is None else islice(batches, steps)
    while True:
        began = time.perf_counter()
        try:
            batch = next(stream)
        except StopIteration:
            return
        loaded = time.perf_counter()
        if boosted.replay_pass(compute_loss, batch):
            forwarded = time.perf_counter()  # both passes
        else:
            with boosted.autocast():
                loss = compute_loss(model, batch)
            forwarded = time.perf_counter()
            boosted.backward(loss)
        backed = time.perf_counter()
        outcome = boosted.step(functools.partial(compute_loss, model, batch))
        if scheduler is not None and outcome.applied and (schedule == "attempted" or not boosted.skips(outcome)):
            scheduler.step()
        updated = time.perf_counter()
        if trace is not None:
            # On asynchronous devices these are dispatch times; their sum over a run is still the run's time.
            columns = {
                "time.data": (loaded - began) * 1e3,
                "time.forward": (forwarded - loaded) * 1e3,
                "time.backward": (backed - forwarded) * 1e3,
                "time.update": (updated - backed) * 1e3,
            }
            trace.record(outcome, count(batch), columns)
        yield outcome


def samples_in(batch: Any) -> int:
    """Return the length of the first tensor of a batch; 0 where there is none."""
    tensor = next(tensors_of(batch), None)
    return len(tensor) if tensor is not None and tensor.ndim else 0
