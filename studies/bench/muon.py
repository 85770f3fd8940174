"""How long does Muon's update of a network's hidden matrices take beside ``torch.optim.Muon``'s?

The matrices are those of the transformer of ``topics-gpt`` and of a ResNet-20, whose kernels torch's is given as
matrices, with the gradients of one batch. Ours takes five of its own polynomials, or the three that are its default.

torch multiplies in bfloat16, which a processor without instructions for it does many times slower than float32. There
the base is torch's formula in float32, and torch's own is one of the peers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.bench import Benchmark, Finding, Request, Side, Sides, contest, fair_clock, is_installed, require_equal
from workbench.core import devices
from workbench.optim.muon.optimizer import Muon, parameter_groups
from workbench.optim.muon.orthogonal import orthogonalised
from workbench.tasks.loading import load_task

from .nets import noise, residual_net

_RATE, _MOMENTUM, _DECAY = 0.02, 0.95, 0.1
_GOALS = {5: 0.8, 3: 0.5}
_STEPS_OF_TORCH = 5
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # torch's
_EXACTNESS = 1e-3
_IN_FLOAT32 = "torch's formula in float32"
_CPU = torch.device("cpu")


def measure(
    request: Request, *, steps: Sequence[int] = (5, 3), images: tuple[int, ...] = (16, 3, 32, 32)
) -> list[Finding]:
    """Measure an update of all hidden matrices as a multiple of torch's, by network and number of polynomials."""
    request = dataclasses.replace(request, device=_CPU)
    given = {"topics-gpt": _of_transformer(), "ResNet-20": _of_residual_net(images)}
    found: list[Finding] = []
    for threads in request.each_thread_count():
        for network, gradients in given.items():
            for n in steps:
                found += contest(
                    f"Muon's update, {len(gradients)} matrices of {network}, {n} iterations, {threads}",
                    lambda gradients=gradients, n=n: _sides(gradients, n, request.peers),
                    request,
                    named="torch.optim.Muon" if devices.has_fast_bfloat16(_CPU) else _IN_FLOAT32,
                    goal=_GOALS.get(n),
                    guard=lambda gradients=gradients, n=n: _compare(gradients, n),
                    clock=fair_clock(_CPU),
                )
    return found


def _of_transformer() -> list[Tensor]:
    torch.manual_seed(0)
    task = load_task("topics-gpt")
    model = task.new_model()
    task.compute_loss(model, next(task.batches(0))).backward()
    return _gradients(model)


def _of_residual_net(images: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    model = residual_net()
    ((inputs, targets),) = noise(images, _CPU)
    F.cross_entropy(model(inputs), targets).backward()
    return _gradients(model)


def _gradients(model: nn.Module) -> list[Tensor]:
    hidden = parameter_groups(model)[0]["params"]
    return [parameter.grad for _, parameter in hidden]


def _sides(gradients: Sequence[Tensor], steps: int, peers: bool) -> Sides:
    def ours(parameters: list[nn.Parameter]) -> Side:
        group = {"params": parameters, "matrices": True}
        return Muon([group], _RATE, momentum=_MOMENTUM, weight_decay=_DECAY, ns_steps=steps).step

    def torchs(parameters: list[nn.Parameter]) -> Side:
        return torch.optim.Muon(parameters, _RATE, _DECAY, _MOMENTUM, ns_steps=_STEPS_OF_TORCH).step

    def pytorch_optimizers(parameters: list[nn.Parameter]) -> Side:
        from pytorch_optimizer import Muon as Theirs

        group = {"params": parameters, "use_muon": True}
        return Theirs([group], lr=_RATE, momentum=_MOMENTUM, weight_decay=_DECAY, ns_steps=_STEPS_OF_TORCH).step

    flat = [gradient.flatten(1) for gradient in gradients]
    there: dict[str, Side | None] = {}
    base = _stepper(flat, torchs)
    plain = _stepper(flat, _Plain)
    if devices.has_fast_bfloat16(_CPU):
        there[_IN_FLOAT32] = plain
    else:
        base, there["torch.optim.Muon"] = plain, base
    installed = is_installed("pytorch_optimizer")
    there["pytorch_optimizer"] = _stepper(flat, pytorch_optimizers) if installed else None
    return Sides(_stepper(gradients, ours), base, peers=there if peers else {})


def _stepper(gradients: Sequence[Tensor], make: Callable[[list[nn.Parameter]], Side]) -> Side:
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return make(parameters)


class _Plain:
    """``torch.optim.Muon`` line by line, but for the number format of its products."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._pairs = [(parameter, torch.zeros_like(parameter)) for parameter in parameters]

    @torch.no_grad()
    def __call__(self) -> None:
        a, b, c = _COEFFICIENTS
        for parameter, buffer in self._pairs:
            gradient = parameter.grad
            assert gradient is not None
            buffer.lerp_(gradient, 1 - _MOMENTUM)
            update = gradient.lerp(buffer, _MOMENTUM)
            is_tall = len(update) > update.shape[1]
            matrix = update.T if is_tall else update
            matrix.div_(matrix.norm().clamp(min=1e-7))
            for _ in range(_STEPS_OF_TORCH):
                gram = matrix @ matrix.T
                inner = torch.addmm(gram, gram, gram, beta=b, alpha=c)
                matrix = torch.addmm(matrix, inner, matrix, beta=a)
            parameter.mul_(1 - _RATE * _DECAY)
            rate = _RATE * math.sqrt(max(1, len(parameter) / parameter.shape[1]))
            parameter.add_(matrix.T if is_tall else matrix, alpha=-rate)


def _compare(gradients: Sequence[Tensor], steps: int) -> None:
    """Check an update against the polynomials in float64, and the plain formula against torch's in bfloat16."""
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    Muon([{"params": parameters, "matrices": True}], 1.0, momentum=0.0, weight_decay=0.0, ns_steps=steps).step()
    for number, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        matrix = gradient.flatten(1).double()
        is_tall = len(matrix) > matrix.shape[1]
        exact = orthogonalised((matrix.T if is_tall else matrix)[None], steps)[0]
        exact = (exact.T if is_tall else exact) * math.sqrt(max(1.0, len(matrix) / matrix.shape[1]))
        require_equal(-parameter.flatten(1), exact, f"update of matrix {number}", rtol=0.0, atol=_EXACTNESS)


BENCHMARK = Benchmark(
    "muon",
    "What does Muon's update cost beside torch's?",
    measure,
    rounds=12,
    place=8,
    shown=tuple(
        f"Muon's update, {matrices}, {n} iterations, 1 thread: ours /"
        for matrices in ("12 matrices of topics-gpt", "21 matrices of ResNet-20")
        for n in (5, 3)
    ),
)
