"""AdaSum: combine the updates of several servers so that agreement is averaged and independence is added.

Two vectors that point the same way carry the same news, and their average is wanted; orthogonal ones carry different
news, and their sum is. Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021,
arXiv:2006.02924, interpolates between the two for each parameter tensor. Inside a server of ``device_number`` ranks
values are averaged plainly; between servers they meet in a binary tree.

The tree is computed by recursive vector halving and doubling: in round *i* server *s* and server *s* XOR 2^i exchange
halves of what they hold, so that after the last round each holds one finished part, and the parts travel back the same
way. What is halved is one flat bucket: a border may cut a tensor anywhere, because the inner products are summed over
all who hold a part. Every element is computed by exactly one rank, hence all ranks end with the same bits.

Behaviour taken from MindSpore 2.7.0, ``mindspore.boost.AdaSum``, which halves every tensor by itself; there a tensor
that cannot be halved in each round comes out mixed, or the ranks wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributed

from workbench.core.arguments import checked_count

#: Added to each inner product by every node that takes part in it: zero vectors are averaged, not divided by zero.
EPSILON = 1e-12
#: Elements per ``torch.dot``. In float32 a CPU adds up one long chain per vector lane: the square of 60 million normal
#: numbers came out 3e-3 too small in one go, 3e-7 in runs of this length, in the same time. Float64 would do as well,
#: but not every accelerator has it.
_RUN = 1 << 17
_ONE = {dtype: torch.ones(1, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64)}


# Two servers, or two halves of the tree


def adasum_weights(products: Any, n_nodes: int) -> tuple[Any, Any]:
    """Return the factors 1 - a.b / (2 a.a) and 1 - a.b / (2 b.b) of the products a.b, a.a, b.b, numbers or tensors."""
    across, own, other = (product + EPSILON * n_nodes for product in products)
    return 1 - across / (2 * own), 1 - across / (2 * other)


def adasum_pair(a: Tensor, b: Tensor, *, n_nodes: int = 2) -> Tensor:
    """Combine two values of one parameter tensor, of one shape and floating-point dtype.

    (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b: the average of parallel vectors, the sum of orthogonal ones.
    ``n_nodes`` nodes hold the two together. Computed in float32, or float64 for float64; NaN or inf in either makes
    NaN, and so do norms whose square exceeds the dtype computed in (1.8e19 in float32).
    """
    _require_floating("a", a)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ValueError(
            f"`a` and `b` must agree in shape and dtype, got {tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}"
        )
    wide_a, wide_b = a.to(_wide(a.dtype)), b.to(_wide(b.dtype))
    own, other = adasum_weights(_products(wide_a.flatten(), wide_b.flatten()), n_nodes)
    combined: Tensor = wide_a * own + wide_b * other
    return combined.to(a.dtype)


@torch.no_grad()
def adasum_sets_(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Combine two sets of updates by :func:`adasum_pair`, tensor by tensor, in place of the first."""
    if len(ours) != len(theirs):
        raise ValueError(f"`theirs` must hold one tensor for each of `ours` ({len(ours)}), got {len(theirs)}")
    for a, b in zip(ours, theirs, strict=True):
        is_flat_float = a.dtype in _ONE and a.is_contiguous()
        if a.shape != b.shape or a.dtype is not b.dtype or not is_flat_float or not b.is_contiguous():
            a.copy_(adasum_pair(a, b))
            continue
        mine, other = (a, b) if a.ndim == 1 else (a.view(-1), b.view(-1))
        _mix_(mine, other, *adasum_weights(_inner_products(mine, other), n_nodes=2))


def adasum_tree(values: Sequence[Tensor]) -> Tensor:
    """Combine the values of 2, 4, 8, ... servers, pairs, then pairs of pairs: the meaning of :func:`adasum_reduce_`."""
    _require_power_of_two("values", len(values))
    level, n_nodes = list(values), 1
    while len(level) > 1:
        n_nodes *= 2
        level = [adasum_pair(a, b, n_nodes=n_nodes) for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0]


# All servers


@dataclass(frozen=True)
class ServerLinks:
    """What rank server * n_devices + device sends and receives: to its like in another server, and inside its own."""

    server: int
    device: int  # place in the server
    n_servers: int  # a power of two from 2 on
    n_devices: int  # ranks per server
    process_group: distributed.ProcessGroup | None = None  # all ranks; None is the default group
    server_group: distributed.ProcessGroup | None = None  # this server's ranks; None when it has only one
    _kept: dict[torch.dtype, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def n_ranks(self) -> int:
        """Number of ranks that take part."""
        return self.n_servers * self.n_devices

    def __deepcopy__(self, memo: dict[int, object]) -> ServerLinks:
        return self  # nothing here that counts changes, and process groups cannot be copied

    def exchange(self, mine: Tensor, server: int, into: Tensor | None = None) -> Tensor:
        """Send a contiguous tensor to another server and return what that one sends, in ``into`` or a new tensor."""
        peer = server * self.n_devices + self.device
        if self.process_group is not None:  # point-to-point peers are counted in the whole world
            peer = distributed.get_global_rank(self.process_group, peer)
        theirs = torch.empty_like(mine) if into is None else into
        operations = [
            distributed.P2POp(distributed.isend, mine, peer, self.process_group),
            distributed.P2POp(distributed.irecv, theirs, peer, self.process_group),
        ]
        for work in distributed.batch_isend_irecv(operations):
            work.wait()
        return theirs

    def room(self, like: Tensor, size: int) -> Tensor:
        """Return a flat tensor for what comes from elsewhere; on a CPU the same memory at every call.

        There the system would hand new memory over page by page, which took a third of the time of all exchanges.
        """
        if not like.is_cpu:
            return like.new_empty(size)
        kept = self._kept.get(like.dtype)
        if kept is None or len(kept) < size:
            kept = self._kept[like.dtype] = like.new_empty(size)
        return kept[:size]

    def sum_inside_(self, values: Tensor) -> None:
        """Replace a tensor by its sum over the ranks of this server."""
        if self.n_devices > 1:
            distributed.all_reduce(values, group=self.server_group)

    def gather_inside_(self, flat: Tensor) -> None:
        """Fill a flat tensor's ``n_devices`` equal parts, each from the rank of this server whose share it is."""
        if self.n_devices > 1:
            shares = list(flat.chunk(self.n_devices))
            distributed.all_gather(shares, shares[self.device].clone(), group=self.server_group)


def connect_servers(
    rank: int, device_number: int, group_number: int, process_group: distributed.ProcessGroup | None = None
) -> ServerLinks:
    """Check the numbers (see `AdaSum`) against the process group and make the servers' own groups; on every rank."""
    numbers = {"rank": (rank, None), "device_number": (device_number, 1), "group_number": (group_number, None)}
    for name, (value, least) in numbers.items():
        checked_count(name, value, least, kind="an integer")
    _require_power_of_two("group_number", group_number)
    _require_process_group()
    n_ranks = distributed.get_world_size(process_group)
    if n_ranks != device_number * group_number:
        raise ValueError(
            f"`group_number` * `device_number` must be the number of ranks, got {group_number} * {device_number} "
            f"with {n_ranks} ranks; start {group_number * device_number} or change one of the two"
        )
    if rank != distributed.get_rank(process_group):
        raise ValueError(f"`rank` must be this process's rank, {distributed.get_rank(process_group)}, got {rank}")
    server, device = divmod(rank, device_number)
    server_group = None
    if device_number > 1:
        members = list(range(server * device_number, (server + 1) * device_number))
        if process_group is not None:
            members = [distributed.get_global_rank(process_group, member) for member in members]
        # Each server makes its own: ranks outside `process_group` are not here to take part.
        server_group = distributed.new_group(members, use_local_synchronization=True)
    return ServerLinks(server, device, group_number, device_number, process_group, server_group)


@torch.no_grad()
def adasum_reduce_(flat: Tensor, lengths: Sequence[int], links: ServerLinks) -> Tensor:
    """Replace a bucket by :func:`adasum_tree` of the servers' averages, tensor by tensor; on every rank the same bits.

    It holds this rank's tensors, of so many elements each, padded to a multiple of the number of ranks. Per round half
    of what is left goes each way, and three inner products per tensor (AdasumRVH).
    """
    if flat.numel() % links.n_ranks or flat.numel() < sum(lengths):
        raise ValueError(
            f"`flat` must hold the {sum(lengths)} elements of its tensors, padded to a multiple of the number of ranks "
            f"({links.n_ranks}), got {flat.numel()}"
        )
    if flat.numel() == 0:
        return flat
    if links.n_devices > 1:
        flat.div_(links.n_devices)  # before the sum, which might leave float16's range
        links.sum_inside_(flat)
    share = flat.numel() // links.n_devices
    low, high = links.device * share, (links.device + 1) * share
    rounds = links.n_servers.bit_length() - 1
    room = links.room(flat, (high - low) // 2)
    for i in range(rounds):
        middle = (low + high) // 2
        keep, give = (low, middle), (middle, high)
        if links.server >> i & 1:
            keep, give = give, keep
        low, high = keep
        theirs = links.exchange(flat[slice(*give)], links.server ^ 1 << i, room[: high - low])
        _combine_(flat[low:high], theirs, low, lengths, links, i)
    for i in reversed(range(rounds)):
        mine, size = flat[low:high], high - low
        if links.server >> i & 1:
            low -= size
            links.exchange(mine, links.server ^ 1 << i, flat[low : low + size])
        else:
            high += size
            links.exchange(mine, links.server ^ 1 << i, flat[high - size : high])
    links.gather_inside_(flat)
    return flat


def _combine_(mine: Tensor, theirs: Tensor, start: int, lengths: Sequence[int], links: ServerLinks, i: int) -> None:
    """Combine the part that this rank keeps in round i, which begins at element ``start`` of the bucket."""
    wide, theirs = mine.to(_wide(mine.dtype)), theirs.to(_wide(mine.dtype))
    parts = list(_parts(start, start + mine.numel(), lengths))
    span = slice(parts[0][0], parts[-1][0] + 1) if parts else slice(0)
    is_second = bool(links.server >> i & 1)
    ours, others = ([flat[part] for _, part in parts] for flat in (wide, theirs))
    products = wide.new_zeros(3, len(lengths))
    if parts:
        found = [_inner_products(*pair) for pair in zip(ours, others, strict=True)]
        across_own_other = torch.stack([torch.as_tensor(numbers, dtype=products.dtype) for numbers in found], dim=1)
        products[:, span] = across_own_other[[0, 2, 1]] if is_second else across_own_other
    # The servers that differ in the lowest i + 1 bits hold the parts of one pair. Doubling adds in the same order
    # everywhere, up to swapped summands, so that all of them get the same bits.
    for j in range(i + 1):
        products += links.exchange(products, links.server ^ 1 << j)
    links.sum_inside_(products)
    own, other = adasum_weights(products, n_nodes=2 << i)
    if is_second:
        own, other = other, own
    factors = torch.stack([own, other])[:, span]
    of_both = factors.tolist() if factors.is_cpu else factors
    for one, theirs_too, of_own, of_other in zip(ours, others, *of_both, strict=True):
        _mix_(one, theirs_too, of_own, of_other)
    if wide is not mine:
        mine.copy_(wide)


def _parts(low: int, high: int, lengths: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Yield index and place, from ``low``, of the tensors between two places of the bucket, also of empty ones."""
    start = 0
    for index, length in enumerate(lengths):
        stop = start + length
        if stop > low and start < high:
            yield index, slice(max(start, low) - low, min(stop, high) - low)
        start = stop


class AdaSum:
    """Replaces the updates that the servers made by their AdaSum.

    Args:
        rank: This process's rank (the reference's text calls it the number of devices; its code uses the rank).
        device_number: Ranks per server, 1 or more; consecutive ranks share a server.
        group_number: Servers, a power of two from 2 on.
        parameter_tuple: The parameters to be combined, in the same order on all ranks.
        process_group: The ranks that take part; None means all.

    Raises:
        ValueError: When the ranks are not ``device_number`` * ``group_number``.
        RuntimeError: When torch.distributed was not initialized.
    """

    def __init__(
        self,
        rank: int,
        device_number: int,
        group_number: int,
        parameter_tuple: Sequence[Tensor],
        *,
        process_group: distributed.ProcessGroup | None = None,
    ) -> None:
        for index, parameter in enumerate(parameter_tuple):
            _require_floating(f"parameter_tuple[{index}]", parameter)
        self.shapes = [parameter.shape for parameter in parameter_tuple]
        self.links = connect_servers(rank, device_number, group_number, process_group)

    @torch.no_grad()
    def __call__(
        self, delta_weights: Sequence[Tensor], parameters: Sequence[Tensor], old_parameters: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Write old weights minus combined updates into the parameters and return these, the same bits on all ranks.

        ``delta_weights`` are the old weights, equal on all ranks, minus those after the local update; zeros for a
        parameter that was not updated. All of one dtype travel in one bucket.
        """
        given = {"delta_weights": delta_weights, "parameters": parameters, "old_parameters": old_parameters}
        for name, tensors in given.items():
            if len(tensors) != len(self.shapes):
                n = len(self.shapes)
                raise ValueError(f"`{name}` must hold one tensor per parameter ({n}), got {len(tensors)}")
            for index, (tensor, shape) in enumerate(zip(tensors, self.shapes, strict=True)):
                if tensor.shape != shape:
                    raise ValueError(
                        f"`{name}[{index}]` must have the parameter's shape {tuple(shape)}, got {tuple(tensor.shape)}"
                    )
        buckets: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for index, delta in enumerate(delta_weights):
            _require_floating(f"delta_weights[{index}]", delta)
            buckets.setdefault((delta.device, delta.dtype), []).append(index)
        for indices in buckets.values():
            deltas = [delta_weights[index] for index in indices]
            lengths = [delta.numel() for delta in deltas]
            padding = deltas[0].new_zeros(-sum(lengths) % self.links.n_ranks)
            flat = torch.cat([*(delta.flatten() for delta in deltas), padding])
            combined = torch.split_with_sizes(adasum_reduce_(flat, lengths, self.links)[: sum(lengths)], lengths)
            for index, delta in zip(indices, combined, strict=True):
                parameters[index].copy_(old_parameters[index] - delta.view(self.shapes[index]))
        return tuple(parameters)


# Under DistributedDataParallel


class AdaSumState:
    """The ranks that :func:`adasum_hook` combines gradients of; every rank creates one before training.

    Args:
        device_number: Ranks per server; gradients are averaged inside a server. With 1 every rank is its own server.
        process_group: The group that DistributedDataParallel uses; None means all ranks.
    """

    def __init__(self, device_number: int = 1, process_group: distributed.ProcessGroup | None = None) -> None:
        _require_process_group()
        n_ranks = distributed.get_world_size(process_group)
        is_count = isinstance(device_number, int) and device_number > 0  # connect_servers reports what else is wrong
        servers = n_ranks // device_number if is_count else n_ranks
        self.links = connect_servers(distributed.get_rank(process_group), device_number, servers, process_group)


def adasum_hook(
    state: AdaSumState,
    bucket: distributed.GradBucket,  # type: ignore[name-defined]  # public, but torch's stubs do not name it
) -> torch.futures.Future[Tensor]:
    """Combine gradients by AdaSum where DistributedDataParallel would average them.

    ``model.register_comm_hook(AdaSumState(), adasum_hook)``. Each parameter is combined by itself, however DDP groups
    them into buckets. The exchange is finished when the hook returns, and NaN or inf of one rank reaches all.
    """
    buffer = bucket.buffer()
    lengths = [gradient.numel() for gradient in bucket.gradients()]
    missing = -buffer.numel() % state.links.n_ranks
    flat = torch.cat([buffer, buffer.new_zeros(missing)]) if missing else buffer
    combined = adasum_reduce_(flat, lengths, state.links)[: buffer.numel()]
    # A future that carries a tensor of an accelerator has to know whose streams to wait for.
    future: torch.futures.Future[Tensor] = torch.futures.Future(
        devices=None if buffer.device.type == "cpu" else [buffer.device]
    )
    future.set_result(combined)
    return future


if distributed.is_available():
    # DistributedDataParallel compares the annotations of a hook with these objects; ours are texts (PEP 563).
    adasum_hook.__annotations__ |= {
        "bucket": distributed.GradBucket,  # type: ignore[attr-defined]  # see above
        "return": torch.futures.Future[Tensor],
    }


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Return a.b, a.a and b.b of flat tensors, shape ``[3]``; summed run by run, see :data:`_RUN`."""
    whole = a.numel() // _RUN * _RUN
    runs = [(x[:whole].view(-1, _RUN), y[:whole].view(-1, _RUN)) for x, y in ((a, b), (a, a), (b, b))] if whole else []
    sums = [torch.linalg.vecdot(x, y).sum() for x, y in runs] or [a.new_zeros(())] * 3
    if whole < a.numel():
        rest = [torch.dot(x[whole:], y[whole:]) for x, y in ((a, b), (a, a), (b, b))]
        sums = [total + more for total, more in zip(sums, rest, strict=True)]
    return torch.stack(sums)


def _inner_products(a: Tensor, b: Tensor) -> Tensor | tuple[float, float, float]:
    """Return :func:`_products`; on a CPU, where reading a number costs nothing, as three numbers."""
    if not a.is_cpu:
        return _products(a, b)
    runs = [(a, b)] if len(a) <= _RUN else zip(torch.split(a, _RUN), torch.split(b, _RUN), strict=True)
    across = own = other = 0.0
    for x, y in runs:
        across += torch.dot(x, y).item()
        own += torch.dot(x, x).item()
        other += torch.dot(y, y).item()
    return across, own, other


def _mix_(a: Tensor, b: Tensor, own: Any, other: Any) -> None:
    """Replace a flat tensor a by own a + other b; the factors are numbers on a CPU, else tensors of one element."""
    if isinstance(own, Tensor):
        a.mul_(own).addcmul_(b, other)
        return
    # An outer product with a vector of one element: the only kernel that scales both and adds in one pass.
    a.unsqueeze(0).addr_(_ONE[a.dtype], b, beta=own, alpha=other)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return where inner products are summed: in float16 the square of 256 is inf, in bfloat16 256 + 1 is 256."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _require_process_group() -> None:
    if not distributed.is_available() or not distributed.is_initialized():
        raise RuntimeError("AdaSum needs several ranks; call torch.distributed.init_process_group first")


def _require_floating(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise TypeError(f"`{name}` must be of a floating-point dtype, got {tensor.dtype}")


def _require_power_of_two(name: str, number: int) -> None:
    if number < 2 or number & (number - 1):
        raise ValueError(f"`{name}` must be a power of two from 2 on (2, 4, 8, ...) for AdaSum, got {number}")
