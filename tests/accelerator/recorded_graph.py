"""What a CUDA graph does, on any device: the operations of a step, done again on the same memory and without Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

__all__ = ["RecordedCapture", "captured"]

T = TypeVar("T")

_WARM_UP = 3


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """Do a step some times, record the operations of one more, and return what does them again.

    As with a CUDA graph, what the host decided while recording stays decided, and numbers it passed stay as they were.
    Unlike there, the recorded step has been done.

    Args:
        step: A step that keeps its tensors.
    """
    for _ in range(_WARM_UP - 1):
        step()
    recorder = _Recorder()
    with recorder:
        step()
    return recorder.replay


class RecordedCapture:
    """Stands for `workbench.core.graph_capture.CudaCapture`: what it records has not been done either."""

    recordings = 0

    def __init__(self, device: torch.device) -> None:
        del device

    def rehearse(self, work: Callable[[], T]) -> tuple[T, bool]:
        return work(), False

    def record(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        type(self).recordings += 1
        recorder, numbers = _Recorder(), torch.get_rng_state()
        with recorder:
            result = work()
        recorder.undo()
        torch.set_rng_state(numbers)
        return result, recorder.replay


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # what was written to, as it was

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for argument, value in zip(func._schema.arguments, args, strict=False):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            is_written |= argument.name.startswith("running_")  # of BatchNorms, which torch does not say
            if is_written and isinstance(value, Tensor):
                self._before.setdefault(id(value), (value, value.clone()))
        result = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, result))  # keeps every tensor, so that no memory is used twice
        return result

    @torch.no_grad()
    def undo(self) -> None:
        for tensor, value in self._before.values():
            tensor.copy_(value)

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, result in self._calls:
            if func.is_view:
                continue  # still looks at the memory that it looked at
            again = func(*args, **kwargs)
            places = {id(one) for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor)}
            for old, new in zip(tree_flatten(result)[0], tree_flatten(again)[0], strict=True):
                if isinstance(old, Tensor) and id(old) not in places:
                    old.copy_(new)
