"""What does a step of THOR cost beside one of SGD, and a refresh of its factors beside one batched Cholesky?

A turn is a whole cycle of refreshes: ``frequency`` steps, one of which refreshes. The networks are a ResNet-8 for
images of 32 x 32 and a perceptron with four hidden layers. A refresh is compared with what it cannot do without: the
Cholesky factors and inverses of all blocks in one batch, each padded to 128 rows. On an accelerator the shape of
ResNet-50 is refreshed as well, and the refreshes of all are told in milliseconds, too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.bench import (
    Benchmark,
    Finding,
    Request,
    Sides,
    contest,
    interleaved,
    is_installed,
    median_of,
    require_equal,
    timed,
)
from workbench.core import devices
from workbench.optim.thor.collection import Tally
from workbench.optim.thor.optimizer import Thor

from .nets import CLASSES, RESNET_50, BottleneckNet, Images, noise, perceptron, residual_net, sgd

_GOALS = {("ResNet-8", 20): 1.15, ("ResNet-8", 200): 1.03, ("MLP", 20): 1.90}
_GOAL_OF_REFRESH = 1.1
_GOAL_ON_AN_ACCELERATOR = 1e-3  # seconds, all layers
_LEAST_REFRESHES = 20
_RATE, _MOMENTUM, _DAMPING = 1e-4, 0.9, 0.03


def measure(
    request: Request,
    *,
    image: int = 32,
    images: int = 32,
    width: int = 512,
    rows: int = 128,
    frequencies: tuple[int, ...] = (20, 200),
    large: Images = RESNET_50,
) -> list[Finding]:
    """Measure whole cycles of THOR against as many steps of SGD, and the refresh alone.

    The ResNet trains so many images of a height and width, refreshed at each of the frequencies, the perceptron rows
    of a width at the first; the refresh of the large network is timed on accelerators only.
    """
    device = request.chosen_device()

    def residual() -> Training:
        torch.manual_seed(0)
        return Training(residual_net(n_blocks=1), (images, 3, image, image), device)

    def hidden() -> Training:
        return Training(perceptron([width] * 5 + [CLASSES]), (rows, width), device)

    def bottlenecks() -> Training:
        return Training(BottleneckNet(large), (2, 3, large.side, large.side), device)

    found: list[Finding] = []
    for threads in request.each_thread_count():
        for frequency in frequencies:
            found += _steps(f"ResNet-8 batch {images}", "ResNet-8", residual, frequency, threads, request)
        found += _steps(f"MLP 4 x {width} batch {rows}", "MLP", hidden, frequencies[0], threads, request)
        refreshed = {"ResNet-8": residual, f"MLP 4 x {width}": hidden}
        if device.type != "cpu":
            refreshed["ResNet-50 shape"] = bottlenecks
        for name, new in refreshed.items():
            found += _refresh(f"{name}, {threads}", new, request)
            if device.type != "cpu":
                found.append(_refresh_time(f"{name}, {threads}", new(), request))
    return found


class Training:
    """A network with one batch."""

    def __init__(self, network: nn.Module, shape: tuple[int, ...], device: torch.device) -> None:
        self.network, self.device = network.to(device), device
        ((self.inputs, self.targets),) = noise(shape, device)

    def backward(self) -> None:
        """Fill the gradients."""
        self.network.zero_grad()
        F.cross_entropy(self.network(self.inputs), self.targets).backward()

    def cycle(self, steps: int, *optimizers: torch.optim.Optimizer) -> Callable[[], None]:
        """Return so many steps as one piece of work."""

        def work() -> None:
            for _ in range(steps):
                self.backward()
                for optimizer in optimizers:
                    optimizer.step()

        return work

    def sgd(self) -> torch.optim.Optimizer:
        """Return the base's optimizer."""
        return sgd(self.network.parameters(), lr=_RATE, momentum=_MOMENTUM, weight_decay=0.0)


def _steps(
    what: str, goal_of: str, new: Callable[[], Training], frequency: int, threads: str, request: Request
) -> list[Finding]:
    def sides() -> Sides:
        by_thor, by_sgd = new(), new()
        thor = Thor(by_thor.network, _RATE, _DAMPING, _MOMENTUM, frequency=frequency)
        peers = _peers(new, frequency) if request.peers and frequency < 100 else {}
        return Sides(by_thor.cycle(frequency, thor), by_sgd.cycle(frequency, by_sgd.sgd()), peers=peers)

    return contest(
        f"THOR step, {what}, refresh every {frequency}, {threads}",
        sides,
        request,
        named="SGD",
        goal=_GOALS.get((goal_of, frequency)),
        note="whole cycles of refreshes",
    )


def _peers(new: Callable[[], Training], frequency: int) -> dict[str, Callable[[], object] | None]:
    peers: dict[str, Callable[[], object] | None] = {"SOAP": None, "kfac_pytorch": None}
    if is_installed("pytorch_optimizer"):
        from pytorch_optimizer import SOAP

        training = new()
        soap = SOAP(training.network.parameters(), lr=_RATE, precondition_frequency=frequency)
        peers["SOAP"] = training.cycle(frequency, soap)
    if is_installed("kfac"):
        from kfac.preconditioner import KFACPreconditioner

        training = new()
        factored = KFACPreconditioner(
            training.network, factor_update_steps=frequency, inv_update_steps=frequency, lr=_RATE
        )
        peers["kfac_pytorch"] = training.cycle(frequency, factored, training.sgd())
    return peers


class Refresh:
    """A refresh of all layers, and what else can be done with blocks of the same sizes."""

    def __init__(self, training: Training) -> None:
        thor = Thor(training.network, _RATE, _DAMPING, _MOMENTUM, frequency=2)
        training.backward()
        thor.step()
        self.thor, self.engine = thor, thor.preconditioner
        blocks = self.engine.blocks
        self.block_size = blocks.block_size
        self.factors = [view for f in range(len(blocks.sizes)) for _, _, view in blocks.views(f, blocks.factors)]
        self.stack = torch.stack([_padded(view, self.block_size) for view in self.factors])

    def ours(self) -> None:
        """Refresh as the optimizer does."""
        for layer in self.engine.layers:
            layer.tally = Tally(calls=1, a_rows=1, g_rows=1, g_used=1, terms=1)  # sums that are factors already
        self.engine.arm()
        self.engine.refresh([_DAMPING] * len(self.engine.layers), None, None, step=0, events=None)

    def compare(self) -> None:
        """Check that each inverse is that of its factor with something added to the diagonal."""
        self.ours()
        blocks = self.engine.blocks
        inverses = [view for f in range(len(blocks.sizes)) for _, _, view in blocks.views(f, blocks.inverses)]
        for factor, inverse in zip(self.factors, inverses, strict=True):
            damped = torch.linalg.inv(inverse.double())
            added = (damped - factor).diagonal().mean()
            wanted = factor.double() + added * torch.eye(len(factor), dtype=torch.float64, device=factor.device)
            scale = float(wanted.abs().max())
            require_equal(damped / scale, wanted / scale, "damped factor", rtol=0.0, atol=1e-4)

    def factorised(self) -> Tensor:
        """Return Cholesky's factors of all blocks in one call."""
        damped = self.stack.clone()
        damped.diagonal(dim1=-2, dim2=-1).add_(_DAMPING)
        return torch.linalg.cholesky(damped)

    def sides(self, peers: bool) -> Sides:
        """Return ours, Cholesky and inverse in two calls, and other ways."""
        others = {"Cholesky alone": self.factorised, "eigh": lambda: torch.linalg.eigh(self.stack)}
        return Sides(self.ours, lambda: torch.cholesky_inverse(self.factorised()), peers=others if peers else {})


def _refresh(what: str, new: Callable[[], Training], request: Request) -> list[Finding]:
    refresh = Refresh(new())
    return contest(
        f"THOR refresh, {len(refresh.engine.layers)} layers of {what}",
        lambda: Refresh(new()).sides(request.peers),
        request,
        named=f"Cholesky and inverse of {len(refresh.stack)} blocks of {refresh.block_size}",
        goal=_GOAL_OF_REFRESH,
        guard=refresh.compare,
    )


def _refresh_time(what: str, training: Training, request: Request) -> Finding:
    refresh = Refresh(training)

    def work() -> None:
        refresh.ours()
        devices.synchronize(training.device)

    seconds = [row[0] for row in interleaved([timed(work)], max(request.rounds, _LEAST_REFRESHES), warm_up=3)]
    layers = len(refresh.engine.layers)
    return Finding(f"THOR refresh, {layers} layers of {what}", "s", median_of(seconds), _GOAL_ON_AN_ACCELERATOR)


def _padded(block: Tensor, size: int) -> Tensor:
    whole = torch.eye(size, dtype=block.dtype, device=block.device)
    whole[: len(block), : len(block)] = block
    return whole


BENCHMARK = Benchmark(
    "thor",
    "What do a step and a refresh of THOR cost?",
    measure,
    rounds=7,
    place=16,
    shown=("THOR step, ResNet-8 batch 32, refresh every 200, 1 thread: ours / SGD",),
)
