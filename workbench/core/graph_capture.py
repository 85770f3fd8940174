"""Capture of work on a device, to be done again on the same memory and without Python: CUDA graphs."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from workbench.core.torch_internals import end_failed_capture

T = TypeVar("T")

_WAITS = "called a synchronizing CUDA operation"  # torch's words for a host that waits


class CudaCapture:
    """Records CUDA graphs, on a stream of its own; all recordings share their memory for intermediate results.

    Other threads may use the device meanwhile, but not draw random numbers on it.
    """

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()

    def rehearse(self, work: Callable[[], T]) -> tuple[T, bool]:
        """Do work where it will be recorded; return what it returned, and whether the host waited for the device."""
        with torch.cuda.device(self._stream.device):
            current, mode = torch.cuda.current_stream(), torch.cuda.get_sync_debug_mode()
            self._stream.wait_stream(current)
            with warnings.catch_warnings(record=True) as said, torch.cuda.stream(self._stream):
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    result = work()
                finally:
                    torch.cuda.set_sync_debug_mode(mode)
                    current.wait_stream(self._stream)
        others = [one for one in said if "synchroniz" not in str(one.message).lower()]
        for one in others:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        return result, any(_WAITS in str(one.message) for one in said)

    def record(self, work: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Record work, which is not done yet; return what it returned, and what does it.

        A RuntimeError if that cannot be recorded; the device is then as it was.
        """
        graph = torch.cuda.CUDAGraph()
        # Where a capture fails to end it leaves its stream the current one; the context before it puts that right.
        with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
            try:
                with self._capture(graph):
                    result = work()
            except RuntimeError:
                self._recover()
                raise
        return result, graph.replay

    def _capture(self, graph: torch.cuda.CUDAGraph) -> torch.cuda.graph:
        return torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")

    def _recover(self) -> None:
        """Bring the device's random numbers and its allocator back to work after a capture that failed to end.

        torch leaves both in the middle of a capture then; one that ends releases the random numbers.
        """
        with contextlib.suppress(RuntimeError):
            end_failed_capture(self._stream.device, self._pool)
        self._pool = torch.cuda.graph_pool_handle()
        with self._capture(torch.cuda.CUDAGraph()):
            torch.zeros((), device=self._stream.device)
