"""Lanes between a device and the host: copies in order, beside the computation, awaited where their result is used.

On an accelerator a lane is a stream of its own; on the CPU, where there is no distance, copies happen at once. One
interface serves both, so that everything built on lanes runs, and is tested, without an accelerator.
"""

from __future__ import annotations

import time
from typing import Protocol

import torch
from torch import Tensor

from workbench.core import devices

__all__ = ["AcceleratorLane", "HostLane", "Lane", "Mark", "host_empty", "lane_for"]


class Mark(Protocol):
    """A place in a lane: the end of a batch of copies."""

    def wait(self) -> None:
        """Let the host wait until the copies have been made."""
        ...

    def order_compute(self) -> None:
        """Let computation that is dispatched from now on wait for the copies; the host does not."""
        ...

    def milliseconds(self) -> float:
        """Return how long the copies took; ask after ``wait``."""
        ...


class Lane(Protocol):
    """Copies batches of tensors, one after the other."""

    def copy_(self, targets: list[Tensor], sources: list[Tensor]) -> Mark:
        """Copy, after what has been dispatched to the device so far; equal shapes and dtypes.

        Sources may be released by the caller at once, but not changed before the mark was awaited.
        """
        ...


class HostLane:
    """Copies at once."""

    def copy_(self, targets: list[Tensor], sources: list[Tensor]) -> Mark:
        """Copy and return a mark that is reached already."""
        begin = time.perf_counter()
        torch._foreach_copy_(targets, sources)
        return _Reached((time.perf_counter() - begin) * 1e3)


class AcceleratorLane:
    """Copies on a stream of its own. Tested on a stand-in for an accelerator; not run on a real one so far.

    Args:
        device: The accelerator.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.Stream(device)

    def copy_(self, targets: list[Tensor], sources: list[Tensor]) -> Mark:
        """Dispatch copies behind the computation dispatched so far."""
        self._stream.wait_stream(torch.accelerator.current_stream(self.device))
        begin, end = (torch.Event(self.device, enable_timing=True) for _ in range(2))
        with self._stream:
            begin.record(self._stream)
            torch._foreach_copy_(targets, sources, non_blocking=True)
            end.record(self._stream)
        for source in sources:
            if source.device == self.device:
                source.record_stream(self._stream)  # its memory is not given away before the copy was made
        return _StreamMark(self.device, begin, end)


def lane_for(device: torch.device) -> Lane:
    """Return a new lane between a device and the host."""
    return HostLane() if device.type == "cpu" else AcceleratorLane(device)


def host_empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return uninitialised host memory that a device can copy from and to without the host's help (pinned).

    Args:
        shape: Shape.
        dtype: Format.
        device: Device at the other end; for the CPU, and one that pins no memory, memory is as usual.
    """
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=devices.pins_memory(device))


class _Reached:
    def __init__(self, milliseconds: float) -> None:
        self._milliseconds = milliseconds

    def wait(self) -> None:
        pass

    def order_compute(self) -> None:
        pass

    def milliseconds(self) -> float:
        return self._milliseconds


class _StreamMark:
    def __init__(self, device: torch.device, begin: torch.Event, end: torch.Event) -> None:
        self._device = device
        self._begin = begin
        self._end = end

    def wait(self) -> None:
        self._end.synchronize()

    def order_compute(self) -> None:
        torch.accelerator.current_stream(self._device).wait_event(self._end)

    def milliseconds(self) -> float:
        return float(self._begin.elapsed_time(self._end))
