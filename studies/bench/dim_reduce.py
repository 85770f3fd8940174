"""What does a step of DimReduce cost beside one of SGD?

The net is a perceptron with 2.1 million weights, the components are 32 random orthonormal rows, and there is one trial
per step, so that every step costs the same. The k x n matrix has to be read at least twice: the limit is the step of
SGD, one more forward pass and two reads of that matrix. The peer writes the formulas down with plain torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.bench import Benchmark, Finding, Request, Sides, contest, require_equal
from workbench.methods.dim_reduce.method import DimReduce, flat_vector, updated_curvature

from .nets import noise, perceptron, weights_of

_GOALS = {128: 2.5, 1024: 1.45}
_GAMMA, _ALPHA, _SIGMA = 0.9, 1e-4, 1e-4
_RATE = 1e-3


def measure(
    request: Request,
    *,
    widths: Sequence[int] = (512, 1024, 1024, 512),
    components: int = 32,
    batches: Sequence[int] = (128, 1024),
) -> list[Finding]:
    """Measure a step of DimReduce against one of SGD on a perceptron, one contest for each batch size."""
    found: list[Finding] = []
    for threads in request.each_thread_count():
        for batch in batches:
            found += _contest(f"batch {batch}, {threads}", widths, components, batch, request)
    return found


def _contest(what: str, widths: Sequence[int], components: int, batch: int, request: Request) -> list[Finding]:
    device = request.chosen_device()
    size = sum(weight.numel() for weight in _Training(widths, batch, device).weights)
    matrix = _components(components, size, device)

    def sides() -> Sides:
        ours, trained, limited, plain = (_Training(widths, batch, device) for _ in range(4))
        limited_sgd, read = _sgd_step(limited), matrix.view(-1)

        def least() -> None:
            limited_sgd()
            with torch.no_grad():
                limited.loss()
            read.sum()
            read.sum()

        peers = {"plain torch": _plain_step(plain, matrix)} if request.peers else {}
        return Sides(_our_step(ours, matrix), _sgd_step(trained), least, peers)

    def guard() -> None:
        ours, plain = _Training(widths, batch, device), _Training(widths, batch, device)
        our_step, plain_step = _our_step(ours, matrix), _plain_step(plain, matrix)
        for _ in range(3):
            our_step()
            plain_step()
        require_equal(weights_of(ours.network), weights_of(plain.network), "weights", rtol=1e-4, atol=1e-6)

    return contest(
        f"DimReduce step, MLP of {size:,}, k = {components}, {what}",
        sides,
        request,
        named="SGD",
        goal=_GOALS.get(batch),
        guard=guard,
        note="one trial per step; limit: SGD, one forward pass, two reads of the components",
    )


class _Training:
    """A perceptron with one batch."""

    def __init__(self, widths: Sequence[int], batch: int, device: torch.device) -> None:
        self.network = perceptron(widths).to(device)
        self.weights = list(self.network.parameters())
        ((self.inputs, self.targets),) = noise((batch, widths[0]), device, classes=widths[-1])

    def loss(self) -> Tensor:
        return F.cross_entropy(self.network(self.inputs), self.targets)

    def gradients(self) -> tuple[Tensor, list[Tensor | None]]:
        for weight in self.weights:
            weight.grad = None
        loss = self.loss()
        loss.backward()
        return loss.detach(), [weight.grad for weight in self.weights]


def _sgd_step(training: _Training) -> Callable[[], None]:
    optimizer = torch.optim.SGD(training.weights, lr=_RATE, momentum=_GAMMA, fused=True)

    def step() -> None:
        training.gradients()
        optimizer.step()

    return step


def _our_step(training: _Training, matrix: Tensor) -> Callable[[], None]:
    reduced = DimReduce(
        training.network,
        None,
        training.weights,
        matrix,
        len(matrix),
        rho=0.5,
        gamma=_GAMMA,
        alpha=_ALPHA,
        sigma=_SIGMA,
        rank=0,
        rank_size=1,
        line_search_trials=1,
    )

    def step() -> None:
        loss, gradients = training.gradients()
        reduced.step(loss, gradients, training.loss)

    return step


def _plain_step(training: _Training, matrix: Tensor) -> Callable[[], None]:
    """Return the same step, written down formula by formula."""
    k = len(matrix)
    inverse_hessian = torch.eye(k, dtype=torch.float64, device=matrix.device)
    last_gradient = torch.zeros(k, dtype=torch.float64, device=matrix.device)
    last_step, momentum, is_first = torch.zeros_like(last_gradient), torch.zeros_like(matrix[0]), True

    def move_to(flat: Tensor) -> None:
        sizes = [weight.numel() for weight in training.weights]
        for weight, part in zip(training.weights, flat.split_with_sizes(sizes), strict=True):
            weight.copy_(part.view_as(weight))

    def step() -> None:
        nonlocal inverse_hessian, last_gradient, last_step, momentum, is_first
        loss, gradients = training.gradients()
        with torch.no_grad():
            start = flat_vector(training.weights, training.weights, matrix.dtype)
            gradient = flat_vector(gradients, training.weights, matrix.dtype)
            projected = matrix @ gradient
            gradient_k = projected.double()
            curvature = inverse_hessian
            if not is_first:
                curvature = updated_curvature(curvature, gradient_k - last_gradient, last_step)
            direction_k = -(curvature @ gradient_k)
            direction = matrix.T @ direction_k.to(matrix.dtype)
            move_to(start + direction)
            decrease = _SIGMA * float(gradient_k @ direction_k)
            taken = float(training.loss() < loss + decrease)
            if taken:
                inverse_hessian, last_gradient, last_step = curvature, gradient_k, direction_k
            is_first = False
            momentum = _GAMMA * momentum + gradient - matrix.T @ projected
            move_to(start - _ALPHA * momentum + taken * direction)

    return step


def _components(k: int, size: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(k, size, generator=generator)
    # Rows of Cholesky's factor turn the random rows into orthonormal ones, without a decomposition of the long matrix.
    root = torch.linalg.cholesky((matrix @ matrix.T).double())
    turn = torch.linalg.solve_triangular(root, torch.eye(k, dtype=torch.float64), upper=False).float()
    rows: Tensor = turn @ matrix
    return rows.to(device)


BENCHMARK = Benchmark(
    "dim_reduce", "What does a step of DimReduce cost beside one of SGD?", measure, rounds=15, place=15
)
