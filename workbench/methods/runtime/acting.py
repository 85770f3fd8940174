"""The runtime in training: a model in another format, compiled; settings of the process while it trains."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from workbench.config import Plan
from workbench.core import devices
from workbench.core.wrapped_model import is_compiled, unwrapped
from workbench.methods.protocol import Method, Preparation
from workbench.methods.runtime.compilation import compiled, compiling
from workbench.methods.runtime.method import (
    channels_last_,
    convolution_beyond_memory,
    cudnn_benchmark,
    in_channels_last,
    matmul_precision,
    threads,
)
from workbench.methods.runtime.section import Reading, RuntimeSection

__all__ = ["RuntimeMethod"]


class RuntimeMethod(Method):
    """Changes how long training takes, and numbers within rounding only."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._asked = asked = self.config.part(RuntimeSection)
        self._mode = "off" if plan.why_not("runtime.compile") else asked.compile
        self._cuda_graph = asked.cuda_graph and not plan.why_not("runtime.cuda_graph")
        self._channels_last = asked.memory_format == "channels_last"

    @staticmethod
    def is_in_effect(plan: Plan) -> bool:
        """Return whether anything is carried out otherwise than by default."""
        return plan.is_in_effect("runtime")

    def refusal(self, model: nn.Module) -> str:
        """Refuse to compile what is compiled, and to lay out what would overwrite memory."""
        compiles = self._mode != "off" or self._cuda_graph
        if compiles and is_compiled(model):
            return "the model is compiled already; set `runtime.compile` to off, or give apply() the plain model"
        on_cpu = _device_of(model).type == "cpu"
        if on_cpu and (compiles or self._channels_last) and (name := convolution_beyond_memory(unwrapped(model))):
            return (
                f"convolution {name!r} (1 x 1 with a stride, few input channels) would write beyond its memory in "
                "channels_last on a CPU (torch 2.13); set `runtime.memory_format` to contiguous and `runtime.compile` "
                "to off"
            )
        return ""

    def prepare(self, preparation: Preparation) -> None:
        """Bring the model into the memory format, and say what this device has no use for."""
        vain = list(self._vain(_device_of(preparation.model)))
        if self._channels_last and not channels_last_(preparation.model):
            vain.append(
                "`runtime.memory_format` has no effect: no weight of the model is 4-D, as those of convolutions"
            )
        for sentence in vain:
            warnings.warn(sentence, stacklevel=2)

    def _vain(self, device: torch.device) -> Iterator[str]:
        if self._cuda_graph and not devices.has_graphs(device):
            yield f"`runtime.cuda_graph` has no effect: {device.type} has no CUDA graphs"
        if self._asked.cudnn_benchmark and not devices.has_cudnn(device):
            yield f"`runtime.cudnn_benchmark` has no effect: cuDNN does not compute on {device.type}"
        if self._asked.matmul_precision != "highest" and not devices.has_fast_products(device):
            yield "`runtime.matmul_precision` has no effect: this device multiplies float32 in one way only"

    def compiled(self, model: nn.Module) -> nn.Module:
        """Return the model compiled, where that is asked for."""
        cuda_graph = self._cuda_graph and devices.has_graphs(_device_of(model))
        if self._mode == "off" and not cuda_graph:
            return model
        return compiled(
            model,
            self._mode,
            cuda_graph=cuda_graph,
            channels_last=self._channels_last,
            key=(self.plan.key(), repr(unwrapped(model))),
        )

    def reading(self) -> Reading:
        """Return how batches are read."""
        return self._asked.data

    def batches(self, batches: Iterable[Any], passes: int) -> Iterable[Any]:
        """Bring images into the memory format."""
        return map(in_channels_last, batches) if self._channels_last else batches

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Hold the settings of the process while it trains."""
        asked = self._asked
        with contextlib.ExitStack() as stack:
            if asked.threads is not None:
                stack.enter_context(threads(asked.threads))
            if asked.matmul_precision != "highest":
                stack.enter_context(matmul_precision(asked.matmul_precision))
            if asked.cudnn_benchmark:
                stack.enter_context(cudnn_benchmark())
            if self._mode != "off" or self._cuda_graph:
                stack.enter_context(compiling())
            yield


def _device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
