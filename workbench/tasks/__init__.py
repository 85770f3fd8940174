"""Tasks: what is trained, on what data, and how it is judged; built in, or the user's own.

``Task`` is the definition, ``load_task`` finds one by name. Built in are ``digits-lenet``, ``digits-resnet``,
``digits-autoencoder`` and ``topics-gpt``: real data that every machine with our dependencies already has; and
``clicks``, an endless synthetic stream with drift. ``criteo:PATH`` reads a click log of yours,
``cifar10:FOLDER`` the published python batches.
"""

from __future__ import annotations

from workbench.core.batch import batch_size_of, move_batch
from workbench.core.metrics import METRIC_NAMES, MetricAccumulator
from workbench.tasks.batches import ShuffledBatches
from workbench.tasks.errors import TaskError
from workbench.tasks.loading import BUILT_IN, load_task
from workbench.tasks.task import Task

__all__ = [
    "BUILT_IN",
    "METRIC_NAMES",
    "MetricAccumulator",
    "ShuffledBatches",
    "Task",
    "TaskError",
    "batch_size_of",
    "load_task",
    "move_batch",
]
