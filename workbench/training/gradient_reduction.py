"""Average gradients over ranks at the end of a window, in flat buckets.

Compared with DistributedDataParallel: only gradients of the freezing group in force travel, nothing is sent inside an
accumulation window, and the model stays as it is. In return nothing is hidden behind the backward pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from workbench.optim.adam_offload.host_transfer import make_buckets

_BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's size: large enough for bandwidth, small enough to overlap copies


def broadcast_from_first(tensors: Iterable[Tensor]) -> None:
    """Give all ranks the values of the first one, in place."""
    for tensor in tensors:
        if tensor.is_contiguous():
            distributed.broadcast(tensor.detach(), 0)
        else:
            # An expanded buffer repeats one place in memory along a stride of 0; torch refuses to write it twice.
            own = tensor.detach()[tuple(slice(1) if stride == 0 else slice(None) for stride in tensor.stride())]
            dense = own.contiguous()
            distributed.broadcast(dense, 0)
            own.copy_(dense)


def largest_over_ranks(flags: Tensor) -> None:
    """Replace flags by their largest values over ranks."""
    distributed.all_reduce(flags, op=distributed.ReduceOp.MAX)


@contextlib.contextmanager
def without_sync(model: DistributedDataParallel, precision: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    """Surround a forward pass whose gradients are not sent yet: only a window's sum is worth it."""
    with precision, model.no_sync():
        yield


def require_same_tensors(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse, on every rank, parameters and buffers that are not alike on all of them, before one is received."""
    own = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors]
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, own)
    for rank, other in enumerate(gathered):
        if other == gathered[0]:
            continue
        one, two = next((a, b) for a, b in zip_longest(gathered[0], other) if a != b)
        raise RuntimeError(
            "distribute() needs the same model on every rank, but "
            f"rank 0 has {len(gathered[0])} parameters and buffers, rank {rank} has {len(other)}, and the first that "
            f"differ are {_described(one)} and {_described(two)}. Build the model and call apply() in the same way on "
            "every rank"
        )


def _described(tensor: tuple[str, tuple[int, ...], str] | None) -> str:
    return "nothing" if tensor is None else f"{tensor[0]} {list(tensor[1])} ({tensor[2]})"


class GradientReduction:
    """Replaces gradients by their average over ranks.

    A gradient that is missing on some rank counts as zero there, one that is missing on all is left out. Which are
    there travels with them, so only a rank that lacks one waits for its accelerator to tell.

    With ``by_rows``, for an optimizer that takes nothing else (SparseAdam), gradients stay sparse, and of tables of
    embeddings only the rows that were looked up travel; otherwise sparse gradients become dense.
    """

    def __init__(self, group: distributed.ProcessGroup | None = None, *, by_rows: bool = False) -> None:
        self.group, self.by_rows = group, by_rows
        self.n_ranks = distributed.get_world_size(group)

    @torch.no_grad()
    def reduce_(self, parameters: Sequence[nn.Parameter]) -> None:
        """Average ``.grad`` of some parameters, the same on every rank and in the same order, in place.

        Those with a ``comm_fusion`` mark (AutoBoost's ``gradient_split_groups``) share buckets with their equals.
        """
        if self.by_rows:
            for parameter in parameters:
                parameter.grad = self._average_of_rows(parameter)
            return
        pending = []
        for bucket in _buckets(parameters):
            missing = [place for place, parameter in enumerate(bucket) if parameter.grad is None]
            gradients = [_dense_gradient(parameter) for parameter in bucket]
            present = gradients[0].new_ones(len(bucket))
            if missing:
                present[missing] = 0
            flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), present])
            flat.div_(self.n_ranks)  # before the sum, which might leave float16's range
            work = distributed.all_reduce(flat, group=self.group, async_op=True)
            pending.append((bucket, missing, gradients, flat, work))
        for bucket, missing, gradients, flat, work in pending:
            if work is not None:
                work.wait()
            *parts, present = torch.split_with_sizes(flat, [*(one.numel() for one in gradients), len(bucket)])
            shaped = [part.view(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]
            torch._foreach_copy_(gradients, shaped)
            there = present.tolist() if missing else []
            for place in missing:
                if not there[place]:
                    bucket[place].grad = None

    def _average_of_rows(self, parameter: nn.Parameter) -> Tensor | None:
        """Return the average of gradients ``[n_rows, ...]``, sparse by rows; None where no rank has a row."""
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if not gradient.is_sparse or gradient.sparse_dim() != 1:
            gradient = gradient.to_dense().to_sparse(1)
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values() / self.n_ranks
        counts = torch.cat(self._from_all_ranks(torch.tensor([len(rows)], device=rows.device))).tolist()
        if not any(counts):
            return None

        def of_all_ranks(own: Tensor) -> Tensor:
            padding = own.new_zeros(max(counts) - len(own), *own.shape[1:])  # all send equally much
            sent = self._from_all_ranks(torch.cat([own, padding]))
            return torch.cat([one[:count] for one, count in zip(sent, counts, strict=True)])

        every = of_all_ranks(rows)[None], of_all_ranks(values), gradient.shape
        return torch.sparse_coo_tensor(*every, check_invariants=False).coalesce()  # of tensors that were valid

    def _from_all_ranks(self, tensor: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self.n_ranks)]
        distributed.all_gather(gathered, tensor, group=self.group)
        return gathered

    def __deepcopy__(self, memo: dict[int, object]) -> GradientReduction:
        """Copy for copied parameters: process groups cannot be copied."""
        return GradientReduction(self.group, by_rows=self.by_rows)


def _buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    return make_buckets(parameters, _BUCKET_BYTES, lambda one: getattr(one, "comm_fusion", 0))


def _dense_gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()
    return parameter.grad
