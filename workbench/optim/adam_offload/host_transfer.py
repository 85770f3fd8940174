"""Gradients to the host and weights back, in buckets, beside the backward pass.

A *bucket* is some parameters of one device and dtype, last ones first, as the backward pass finishes them. Its life in
one step::

    backward   with ``frees``: the last gradient of a bucket sends all of it off    leave()
               .grad is None from here on; micro-batches are added up on the host
    step       what has not left yet leaves now                                     collect()
               per bucket: wait for it, Adam on the host copy of the weights        arrived()
               the weights go back while the host works on the next bucket          give_back()
    afterwards computation waits for the weights, the host does not                 finish()

Only gradients that leave for good leave during the backward pass: a copy of one that stays may be outdated by the time
of the step without a trace, since neither the kernel that unscales gradients (torch 2.13) nor all backends of
torch.distributed change their version. Over several ranks nothing leaves before the step: the average is yet to come.

The host keeps a copy of every weight and compares it with the device's by version and place in memory, so that weights
loaded or broadcast in between are read again; a change through ``.data`` or by another optimizer's fused kernel cannot
be seen. For 16-bit weights the copy is a float32 master weight, kept where it still rounds to what the device has.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from workbench.core import devices
from workbench.core import distributed as ranks
from workbench.core.torch_internals import check_and_unscale_, dense_strides, has_gaps, version_of
from workbench.optim.host_copy import HostCopy

T = TypeVar("T", bound=Tensor)

DENSE_ONLY = "AdamOffload needs dense gradients; build the embedding with sparse=False"


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the format in which the host computes for weights of a format: float32 for 16 bits, else the same."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def needs_transfer(parameter: Tensor) -> bool:
    """Return whether Adam's kernel cannot go through a parameter where it lies, so that it travels in a bucket."""
    return not parameter.is_cpu or compute_dtype(parameter.dtype) != parameter.dtype or has_gaps(parameter)


def make_buckets(
    parameters: Sequence[T], bucket_bytes: int, kind_of: Callable[[T], Hashable] = lambda _: None
) -> list[list[T]]:
    """Divide parameters into buckets of one device, dtype and kind, last ones first, as the backward pass meets them.

    A single one may exceed the limit.
    """
    buckets: list[list[T]] = []
    open_: dict[Hashable, tuple[list[T], int]] = {}
    for parameter in reversed(parameters):
        key = parameter.device, parameter.dtype, kind_of(parameter)
        size = parameter.numel() * parameter.element_size()
        bucket, filled = open_.get(key, ([], 0))
        if not bucket or filled + size > bucket_bytes:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(parameter)
        open_[key] = bucket, filled + size
    return buckets


class CopyEvent:
    """The end of a batch of copies, which ``took`` milliseconds or lies between two events of a device's stream."""

    def __init__(self, took: float = 0.0, between: tuple[torch.Event, torch.Event] | None = None) -> None:
        self._took, self._between = took, between

    def wait(self) -> None:
        """Let the host wait until the copies have been made."""
        if self._between is not None:
            self._between[1].synchronize()

    def order_compute(self) -> None:
        """Let computation that is dispatched from now on wait for the copies; the host does not."""
        if self._between is not None:
            end = self._between[1]
            torch.accelerator.current_stream(end.device).wait_event(end)

    def milliseconds(self) -> float:
        """Return how long the copies took; ask after ``wait``."""
        return self._took if self._between is None else float(self._between[0].elapsed_time(self._between[1]))


class CopyStream:
    """Copies batches of tensors in order, beside the computation of an accelerator; on the CPU at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = None if device.type == "cpu" else torch.Stream(device)

    def copy_(self, targets: list[Tensor], sources: list[Tensor]) -> CopyEvent:
        """Copy, after what has been dispatched to the device so far; equal shapes and dtypes.

        Sources may be released by the caller at once, but not changed before the event was awaited.
        """
        stream = self._stream
        if stream is None:
            began = time.perf_counter()
            torch._foreach_copy_(targets, sources)
            return CopyEvent((time.perf_counter() - began) * 1e3)
        stream.wait_stream(torch.accelerator.current_stream(self.device))
        begin, end = (torch.Event(self.device, enable_timing=True) for _ in range(2))
        with stream:
            begin.record(stream)
            torch._foreach_copy_(targets, sources, non_blocking=True)
            end.record(stream)
        for source in sources:
            if source.device == self.device:
                source.record_stream(stream)  # its memory is not given away before the copy was made
        return CopyEvent(between=(begin, end))


class Bucket:
    """The host's side of some parameters of one device and dtype.

    Gradients leave on one stream and weights return on another, as links carry both directions at once. With ``frees``
    the device forgets gradients that have left.
    """

    def __init__(
        self, number: int, parameters: list[Tensor], leaving: CopyStream, returning: CopyStream, frees: bool
    ) -> None:
        self.number = number
        self.frees = frees
        self.parameters = parameters
        self._leaving, self._returning = leaving, returning
        dtype = parameters[0].dtype
        self._widens = compute_dtype(dtype) != dtype
        self._landing = self._views(dtype)
        self.weights = self._views(compute_dtype(dtype))
        self._outgoing = self._views(dtype) if self._widens else self.weights
        self._seen: list[tuple[int, int] | None] = [None] * len(parameters)
        self._left: CopyEvent | None = None
        self.returned: CopyEvent | None = None
        self._landed: list[int] = []  # or about to
        self._sums: list[Tensor | None] = [None] * len(parameters)
        self.waiting: set[int] | None = None
        self.transfer_ms = 0.0

    def leave(self) -> None:
        """Send off every gradient there is."""
        found = {i: gradient for i, p in enumerate(self.parameters) if (gradient := p.grad) is not None}
        if not found:
            return
        chosen, gradients = list(found), list(found.values())
        if any(gradient.layout != torch.strided for gradient in gradients):
            raise RuntimeError(DENSE_ONLY)
        if self.frees:
            self._wait()
            self._add_up(self._landed)  # what lies where the next ones land
        self._left = self._leaving.copy_([self._landing[i] for i in chosen], gradients)
        self._landed = chosen
        if self.frees:
            for i in chosen:
                self.parameters[i].grad = None

    def arrived(self) -> dict[int, Tensor]:
        """Wait, and return the host's gradients by position, in the weights' format there, to be changed freely."""
        self._wait()
        self._add_up([i for i in self._landed if self._sums[i] is not None or self._widens])
        gradients = {i: total for i, total in enumerate(self._sums) if total is not None}
        return gradients | {i: self._landing[i] for i in self._landed}

    def holds(self, index: int) -> bool:
        """Return whether a gradient lies on the host or is on its way."""
        return self._sums[index] is not None or index in self._landed

    def put_sum(self, index: int, gradient: Tensor) -> None:
        """Take a gradient that was saved inside an accumulation window."""
        self._sums[index] = gradient.to(self.weights[index].dtype, copy=True)

    def discard(self) -> None:
        """Forget the gradients; a copy still under way ends before those of the next step, on that stream, begin."""
        self._left = None
        self._landed = []
        self._sums = [None] * len(self.parameters)
        self.waiting = None

    def read_weights(self) -> None:
        """Let the host's copy follow the device where that was changed by others."""
        if self.returned is not None:
            self.returned.wait()
        places = [_place(parameter) for parameter in self.parameters]
        stale = [i for i, place in enumerate(places) if place != self._seen[i]]
        if not stale:
            return
        self._leaving.copy_([self._outgoing[i] for i in stale], [self.parameters[i].detach() for i in stale]).wait()
        for i in stale:
            if self._widens:
                known, found = self.weights[i], self._outgoing[i]
                keep = (known.to(found.dtype) == found) & torch.tensor(self._seen[i] is not None, device="cpu")
                known.copy_(torch.where(keep, known, found.to(known.dtype)))
            self._seen[i] = places[i]

    def give_master(self, index: int, master: Tensor) -> None:
        """Take a saved master weight; it counts where it rounds to what the device has."""
        self.weights[index].copy_(master)
        self._seen[index] = (-1, -1)

    def give_back(self, chosen: list[int]) -> None:
        """Send updated weights to the device; the host goes on."""
        parameters, outgoing = [self.parameters[i] for i in chosen], [self._outgoing[i] for i in chosen]
        if self._widens:
            torch._foreach_copy_(outgoing, [self.weights[i] for i in chosen])
        self.returned = self._returning.copy_(parameters, outgoing)
        for i in chosen:
            self._seen[i] = _place(self.parameters[i])

    def _wait(self) -> None:
        if self._left is not None:
            self._left.wait()
            self.transfer_ms += self._left.milliseconds()
            self._left = None

    def _add_up(self, landed: list[int]) -> None:
        """Move gradients that have landed into the sums of their window."""
        for i in landed:
            total = self._sums[i]
            arrived = self._landing[i].to(self.weights[i].dtype, copy=total is None)
            self._sums[i] = arrived if total is None else total.add_(arrived)
        self._landed = [i for i in self._landed if i not in landed]

    def _views(self, dtype: torch.dtype) -> list[Tensor]:
        """Return host tensors laid out as the parameters, in one piece of memory, pinned where the device pins any."""
        sizes = [parameter.numel() for parameter in self.parameters]
        flat = devices.host_room(sum(sizes), dtype, self.parameters[0].device)
        return [
            torch.as_strided(piece, p.shape, dense_strides(p), piece.storage_offset())
            for piece, p in zip(torch.split_with_sizes(flat, sizes), self.parameters, strict=True)
        ]


class HostTransfer:
    """All buckets of an optimizer, of limited size in bytes; ``frees`` says whether gradients leave for good.

    Without parameters nothing travels.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor] = (),
        bucket_bytes: int = 0,
        frees: bool = False,
        make_stream: Callable[[torch.device], CopyStream] = CopyStream,
    ) -> None:
        self.frees = frees
        streams: dict[torch.device, tuple[CopyStream, CopyStream]] = {}
        self.buckets: list[Bucket] = []
        for members in make_buckets(parameters, bucket_bytes):
            device = members[0].device
            if device not in streams:
                streams[device] = make_stream(device), make_stream(device)
            self.buckets.append(Bucket(len(self.buckets), members, *streams[device], frees))
        self.place = {p: (bucket, i) for bucket in self.buckets for i, p in enumerate(bucket.parameters)}
        self._handles: dict[Tensor, RemovableHandle] = {}

    def listen(self) -> None:
        """Let gradients leave during backward passes from now on, if they leave for good; RuntimeError where others do.

        To be repeated now and then: a parameter that does not require a gradient cannot be listened to yet.
        """
        if not self.frees:
            return
        this = weakref.ref(self)  # parameters outlive optimizers, and must not keep their buffers

        def on_gradient(parameter: Tensor) -> None:
            transfer = this()
            if transfer is not None:
                transfer._gradient_is_ready(parameter)

        for parameter in self.place:
            if parameter in self._handles or not parameter.requires_grad:
                continue
            other = getattr(parameter, "_gradient_leaves_to", lambda: None)()
            if other is not None and other is not self and parameter in other._handles:
                raise RuntimeError(
                    "two optimizers with `offload_gradients` update the same parameter, and the first would take the "
                    "gradient away from the second; use one optimizer for all groups, with one state per parameter"
                )
            listen: Any = parameter.register_post_accumulate_grad_hook  # torch has no types there
            self._handles[parameter] = listen(on_gradient)
            parameter._gradient_leaves_to = this  # type: ignore[attr-defined]

    def stop_listening(self) -> None:
        """Leave backward passes alone again."""
        for handle in self._handles.values():
            handle.remove()
        self._handles = {}

    def collect(self) -> set[Tensor]:
        """Send what has not left yet, and return the parameters that have gradients."""
        for bucket in self.buckets:
            bucket.leave()
            bucket.waiting = None
        return self.holding()

    def holding(self) -> set[Tensor]:
        """Return the parameters whose gradients lie on the host or are on their way."""
        return {parameter for parameter, (bucket, i) in self.place.items() if bucket.holds(i)}

    def discard(self) -> None:
        """Forget gradients that left."""
        for bucket in self.buckets:
            bucket.discard()

    def held_gradients(self) -> dict[Tensor, Tensor]:
        """Return the gradients that left for good, on the host, by parameter; waits for those on their way."""
        if not self.frees:
            return {}
        return {bucket.parameters[i]: total for bucket in self.buckets for i, total in bucket.arrived().items()}

    def unscale_(self, scale_of: Callable[[Any], Tensor], found_inf: Tensor) -> None:
        """Divide the gradients that left for good by their scale, and set ``found_inf`` where one is not finite."""
        away = self.holding() if self.frees else set()
        if not away:
            return
        scales = {scale.data_ptr(): scale for scale in (scale_of(parameter) for parameter in away)}
        if len(scales) > 1:
            raise RuntimeError("`offload_gradients` does not work with a loss scale per group; use one scale for all")
        scale = HostCopy(next(iter(scales.values())))  # arrives while gradients are waited for
        batches: dict[torch.dtype, list[Tensor]] = {}
        for gradient in self.held_gradients().values():
            batches.setdefault(gradient.dtype, []).append(gradient)
        factor = scale.read().to(torch.float32).reshape(()).reciprocal()
        flag = torch.zeros((), device="cpu")
        for gradients in batches.values():
            check_and_unscale_(gradients, flag, factor)
        if flag.item() != 0:
            found_inf.fill_(1.0)

    def finish(self) -> float:
        """Let computation wait for the weights, forget gradients; return how long those travelled, milliseconds."""
        travelled = sum(bucket.transfer_ms for bucket in self.buckets)
        for bucket in self.buckets:
            if bucket.returned is not None:
                bucket.returned.order_compute()
            bucket.discard()
            bucket.transfer_ms = 0.0
        return travelled

    def _gradient_is_ready(self, parameter: Tensor) -> None:
        if ranks.world_size() > 1:
            return
        bucket, index = self.place[parameter]
        if bucket.waiting is None:
            bucket.waiting = {i for i, member in enumerate(bucket.parameters) if member.requires_grad}
        bucket.waiting.discard(index)
        if not bucket.waiting:
            bucket.waiting = None
            with torch.no_grad():
                bucket.leave()


def _place(parameter: Tensor) -> tuple[int, int]:
    return parameter.data_ptr(), version_of(parameter)
