"""Memory formats, settings of the whole process that are put back, and the method that puts them to use."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from workbench.config import Plan
from workbench.core import devices
from workbench.core.batch import mapped
from workbench.core.warning import warn
from workbench.core.wrapped_model import is_compiled, unwrapped
from workbench.methods.protocol import Method, Preparation
from workbench.methods.runtime.compilation import compiled, compiling
from workbench.methods.runtime.convolution import use_faster_convolutions_
from workbench.methods.runtime.section import Reading, RuntimeSection

_VECTOR = 16


def in_channels_last(batch: Any) -> Any:
    """Return a batch (see :mod:`workbench.core.batch`) whose images keep the channels of a pixel together."""

    def turned(tensor: Tensor) -> Tensor:
        is_image = tensor.ndim == 4 and tensor.is_floating_point()
        return tensor.contiguous(memory_format=torch.channels_last) if is_image else tensor

    return mapped(batch, turned)


def convolution_beyond_memory(model: nn.Module) -> str:
    """Return the name of a convolution that would write beyond its memory in channels_last on a CPU; empty if none.

    The gradient of a 1 x 1 kernel with a stride and fewer input channels than a vector holds (8 of AVX2, 16 of AVX-512,
    which we could not try) overwrites the heap there: ``jit_1x1:avx2`` of oneDNN in torch 2.13, float32, found with
    glibc's ``MALLOC_CHECK_=3`` over 1,700 shapes. Compiled graphs lay convolutions out so by themselves.
    """
    for name, found in model.named_modules():
        is_narrow = isinstance(found, nn.Conv2d) and found.groups == 1 and 1 < found.in_channels < _VECTOR
        if is_narrow and set(found.kernel_size) == {1} and max(found.stride) > 1:
            return str(name)  # torch leaves it untyped
    return ""


def _require_input_gradient(norm: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Let the input of a GroupNorm require a gradient, which is not used, where only the norm's own weights do.

    A forward pre-hook. In channels_last on a CPU, torch 2.13 computes that gradient although none was asked for, and
    crashes with a segmentation fault: behind frozen layers, and where images come straight from the loader.
    """
    x, *others = inputs
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not isinstance(x, Tensor) or x.requires_grad:
        return None  # compiled, its gradient is computed otherwise
    if x.ndim != 4 or x.is_contiguous() or not any(weight.requires_grad for weight in norm.parameters()):
        return None
    return (x.detach().requires_grad_(), *others)


class RuntimeMethod(Method):
    """Changes how long training takes, and numbers within rounding only."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._asked = asked = self.config.part(RuntimeSection)
        self._mode = "off" if plan.why_not("runtime.compile") else asked.compile
        self._cuda_graph = asked.cuda_graph and not plan.why_not("runtime.cuda_graph")
        self._channels_last = asked.memory_format == "channels_last"
        self._by_shape = asked.convolution == "by_shape" and not plan.why_not("runtime.convolution")
        self.needs_shapes = self._mode != "off" or self._cuda_graph or self._channels_last or self._by_shape

    def refusal(self, model: nn.Module) -> str:
        """Refuse to compile what is compiled, and to lay out what would overwrite memory."""
        compiles = self._mode != "off" or self._replays(model)
        if compiles and is_compiled(model):
            return "the model is compiled already; set `runtime.compile` to off, or give apply() the plain model"
        on_cpu = devices.device_of(model).type == "cpu"
        if on_cpu and (compiles or self._channels_last) and (name := convolution_beyond_memory(unwrapped(model))):
            return (
                f"convolution {name!r} (1 x 1 with a stride, few input channels) would write beyond its memory in "
                "channels_last on a CPU (torch 2.13); set `runtime.memory_format` to contiguous and `runtime.compile` "
                "to off"
            )
        return ""

    def prepare(self, preparation: Preparation) -> None:
        """Bring the model into the memory format, and say what this device has no use for."""
        device, asked = devices.device_of(preparation.model), self._asked
        vain = {}
        if self._cuda_graph and not devices.has_graphs(device):
            vain["cuda_graph"] = f"{device.type} has no CUDA graphs"
        if asked.cudnn_benchmark and not devices.has_cudnn(device):
            vain["cudnn_benchmark"] = f"cuDNN does not compute on {device.type}"
        if self._by_shape and device.type != "cpu":
            vain["convolution"] = f"only convolutions on a CPU are computed by shape, not on {device.type}"
        elif self._by_shape and not use_faster_convolutions_(preparation.model):
            vain["convolution"] = "the model has no convolution over images that could be computed otherwise"
        if asked.matmul_precision != "highest" and not devices.has_fast_products(device):
            vain["matmul_precision"] = "this device multiplies float32 in one way only"
        if self._channels_last:
            for tensor in (*preparation.model.parameters(), *preparation.model.buffers()):
                if tensor.ndim == 4:  # Module.to() refuses the 5-D ones of volumes
                    tensor.data = tensor.data.to(memory_format=torch.channels_last)
            if device.type == "cpu":
                for norm in preparation.model.modules():
                    if isinstance(norm, nn.GroupNorm):
                        norm.register_forward_pre_hook(_require_input_gradient)
            if all(parameter.ndim != 4 for parameter in preparation.model.parameters()):
                vain["memory_format"] = "no weight of the model is 4-D, as those of convolutions"
        for name, reason in vain.items():
            warn(f"`runtime.{name}` has no effect: {reason}")

    def compiled(self, model: nn.Module) -> nn.Module:
        """Return the model compiled, where that is asked for."""
        cuda_graph = self._replays(model)
        return model if self._mode == "off" and not cuda_graph else self._compiled(model, cuda_graph=cuda_graph)

    def captured(self, model: nn.Module) -> nn.Module | None:
        """Return the model, compiled where that is asked for, if passes are to be replayed."""
        if not self._replays(model):
            return None
        return model if self._mode == "off" else self._compiled(model, cuda_graph=False)

    def _replays(self, model: nn.Module) -> bool:
        return self._cuda_graph and devices.has_graphs(devices.device_of(model))

    def _compiled(self, model: nn.Module, *, cuda_graph: bool) -> nn.Module:
        key = (self.plan.step_key(), repr(unwrapped(model)))  # lengths and rates do not change a model's graph
        return compiled(model, self._mode, cuda_graph=cuda_graph, channels_last=self._channels_last, key=key)

    def reading(self) -> Reading:
        """Return how batches are read."""
        return self._asked.data

    def batches(self, batches: Iterable[Any], passes: int) -> Iterable[Any]:
        """Bring images into the memory format."""
        return map(in_channels_last, batches) if self._channels_last else batches

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Hold the settings of the process while it trains."""
        asked, cudnn = self._asked, torch.backends.cudnn
        with contextlib.ExitStack() as stack:
            if asked.threads is not None:
                stack.enter_context(_meanwhile(torch.get_num_threads, devices.use_threads, asked.threads))
            if asked.matmul_precision != "highest":
                read, write = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
                stack.enter_context(_meanwhile(read, write, asked.matmul_precision))
            if asked.cudnn_benchmark:
                write = functools.partial(setattr, cudnn, "benchmark")
                stack.enter_context(_meanwhile(lambda: cudnn.benchmark, write, True))
            if self._mode != "off" or self._cuda_graph:
                stack.enter_context(compiling())
            yield


@contextlib.contextmanager
def _meanwhile(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Iterator[None]:
    """Let a setting of the process have a value, and put back what it was."""
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)
