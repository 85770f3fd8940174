"""BatchNorms that estimate mean and variance of their inputs while a model is trained, for its evaluation."""

from __future__ import annotations

from torch import Tensor, nn

from workbench.core.torch_internals import BatchNorm


def norms_with_statistics(model: nn.Module) -> list[BatchNorm]:
    """Return the modules of a model that keep running statistics of their inputs."""
    norms = (module for module in model.modules() if isinstance(module, BatchNorm))
    return [norm for norm in norms if norm.track_running_stats and norm.running_mean is not None]


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return running mean and variance of each BatchNorm, in the order of the model's buffers."""
    statistics = ((norm.running_mean, norm.running_var) for norm in norms_with_statistics(model))
    return [value for pair in statistics for value in pair if value is not None]
