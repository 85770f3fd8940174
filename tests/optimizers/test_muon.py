"""Muon against formulas written out in float64, and as an optimizer among torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kit.twins import assert_close, assert_same, values
from workbench.config import OptimizerConfig
from workbench.methods.grad_freeze.freeze_optimizer import FreezeOpt
from workbench.optim import build_optimizer, change_optimizer_
from workbench.optim.muon.optimizer import Muon, parameter_groups
from workbench.optim.muon.orthogonal import Factors, orthogonal_factors, orthogonalised, polynomials, reach


class Net(nn.Module):
    """An embedding, convolutions (tall, oblong, twice the same shape, depthwise), a normalization and an output."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.conv = nn.ModuleList([nn.Conv1d(4, 6, 3, padding=1), nn.Conv1d(6, 6, 3, padding=1), nn.Conv1d(6, 6, 3)])
        self.depthwise = nn.Conv1d(6, 6, 3, padding=1, groups=6)
        self.norm = nn.LayerNorm((6, 5))
        self.tall = nn.Linear(30, 40)
        self.head = nn.Linear(40, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.table(tokens).mT
        for conv in (*self.conv, self.depthwise):
            features = torch.tanh(conv(features))
        return self.head(torch.tanh(self.tall(self.norm(features).flatten(1))))  # type: ignore[no-any-return]


def network(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(5, (16, 7), generator=generator), torch.randint(3, (16,), generator=generator)


def backward(net: nn.Module, step: int) -> None:
    tokens, targets = batch(step)
    net.zero_grad()
    F.cross_entropy(net(tokens), targets).backward()


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[int]) -> None:
    for step in steps:
        backward(net, step)
        optimizer.step()


# The polynomials


@pytest.mark.parametrize("steps", [1, 3, 8])
@pytest.mark.parametrize("columns", [6, 9, 40], ids=["square", "direct", "on the Gram matrix"])
def test_singular_values_within_reach_end_near_one_and_vectors_stay(steps: int, columns: int) -> None:
    torch.manual_seed(1)
    u = torch.linalg.qr(torch.randn(3, 6, 6, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(3, columns, 6, dtype=torch.float64)).Q
    lowest = min(2.0 * reach(steps), 0.9)  # the bound on the largest is at most 6 ** (1 / 8) = 1.25 of it
    values = torch.logspace(0, 1, 6, base=lowest, dtype=torch.float64) * 300.0
    made = orthogonalised(u * values @ v.mT, steps)
    left = u.mT @ made @ v
    assert torch.allclose(left, torch.diag_embed(left.diagonal(dim1=1, dim2=2)), atol=1e-6)
    assert left.diagonal(dim1=1, dim2=2).min() >= 0.8 - 1e-6
    assert left.diagonal(dim1=1, dim2=2).max() <= 1.2 + 1e-6


def test_each_polynomial_takes_the_interval_that_its_predecessor_leaves() -> None:
    values = torch.linspace(reach(3), 1.0, 5000, dtype=torch.float64)
    for a, b, c in polynomials(3):
        values = a * values + b * values**3 + c * values**5
    assert values.min() >= 0.8 - 1e-6
    assert values.max() <= 1.2 + 1e-6
    assert reach(5) < reach(4) / 3 < reach(3) / 9


@pytest.mark.parametrize("columns", [8, 64])
def test_short_formats_agree_with_float64(columns: int) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(4, 8, columns, dtype=torch.float64) * 1e-7
    exact = orthogonalised(matrices, 3)
    assert torch.allclose(orthogonalised(matrices.float(), 3).double(), exact, atol=2e-5)
    assert torch.allclose(orthogonalised(matrices.bfloat16(), 3).double(), exact, atol=0.1)


@pytest.mark.parametrize("size", [0.0, 1e-25, 1e15])
def test_no_size_of_a_gradient_gives_what_is_no_number(size: float) -> None:
    made = orthogonalised(torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(0)) * size, 5)
    assert made.isfinite().all()
    assert bool(made.any()) is (size > 0)


@pytest.mark.parametrize("steps", [3, 6, 10])
def test_rounding_does_not_grow_on_matrices_of_low_rank(steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(8, 16, 3, generator=generator) @ torch.randn(8, 3, 144, generator=generator)
    made, exact = orthogonalised(matrices, steps), orthogonalised(matrices.double(), steps)
    assert torch.linalg.matrix_norm(made, 2).max() < 1.21
    if steps <= 6:  # ten lift rounding itself into sight
        assert torch.linalg.matrix_norm(made.double() - exact, 2).max() < 0.02
    decay = torch.logspace(0, -8, 96)
    matrices = torch.randn(3, 96, 96, generator=generator) * decay @ torch.randn(3, 96, 288, generator=generator)
    made, exact = orthogonalised(matrices, 5), orthogonalised(matrices.double(), 5)
    assert torch.linalg.matrix_norm(made.double() - exact, 2).max() < 1e-3


@pytest.mark.parametrize("steps", [1, 3, 4, 5])
def test_batches_of_equally_many_rows_are_made_orthogonal_together_as_each_alone(steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(2, 6, columns, generator=generator, dtype=torch.float64) for columns in (6, 20, 54)]
    together = [factors.product() for factors in orthogonal_factors(batches, steps)]
    for batch, made in zip(batches, together, strict=True):
        assert torch.allclose(made, orthogonalised(batch, steps), atol=1e-10)


def test_matrices_too_small_or_large_to_be_multiplied_as_they_are_come_out_alike() -> None:
    matrices = torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(0))
    (unseen,) = orthogonal_factors([matrices], 3, may_look=False)
    for made in (*(orthogonalised(matrices * size, 3) for size in (2.0**-50, 2.0**50)), unseen.product()):
        assert torch.allclose(made, orthogonalised(matrices, 3), atol=1e-5)


# Which parameters


def names(group: dict[str, object]) -> list[str]:
    return [name for name, _ in group["params"]]  # type: ignore[attr-defined]


def test_hidden_matrices_are_found_by_their_modules_unless_tied_to_an_embedding_or_the_output() -> None:
    matrices, rest = parameter_groups(network())
    assert names(matrices) == ["conv.0.weight", "conv.1.weight", "conv.2.weight", "tall.weight"]
    assert {"table.weight", "depthwise.weight", "norm.weight", "head.weight", "tall.bias"} <= set(names(rest))
    assert len(names(matrices)) + len(names(rest)) == len(list(network().parameters()))
    others = nn.ModuleList([nn.MultiheadAttention(8, 2), nn.GRU(8, 8), nn.Linear(8, 2)])
    of_attention, of_gru = ("0.in_proj_weight", "0.out_proj.weight"), ("1.weight_ih_l0", "1.weight_hh_l0")
    assert names(parameter_groups(others)[0]) == [*of_attention, *of_gru]
    tied = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight, tied[2].weight = tied[0].weight, tied[3].weight
    (group,) = parameter_groups(tied)
    assert not group["matrices"]


# One update


def reference_step(
    weight: Tensor, gradients: list[Tensor], lr: float, momentum: float, decay: float, *, nesterov: bool
) -> Tensor:
    """Return a weight after Muon's steps with exact orthogonal factors, float64."""
    weight, average = weight.double(), torch.zeros_like(weight, dtype=torch.float64)
    for gradient in gradients:
        average = momentum * average + (1 - momentum) * gradient.double()
        update = momentum * average + (1 - momentum) * gradient.double() if nesterov else average
        u, _, v = torch.linalg.svd(update.flatten(1), full_matrices=False)
        rows, columns = update.flatten(1).shape
        weight = (1 - lr * decay) * weight - lr * max(1.0, rows / columns) ** 0.5 * (u @ v).reshape(weight.shape)
    return weight


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_updates_follow_the_formula(nesterov: bool, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    shapes = [(6, 5, 3, 3), (6, 5, 3, 3), (20, 2, 2, 2), (4, 4, 1, 1)]
    parameters = [nn.Parameter(torch.randn(shape).to(memory_format=layout)) for shape in shapes]
    began = [parameter.detach().clone() for parameter in parameters]
    gradients = [[torch.randn(shape) for shape in shapes] for _ in range(3)]
    # Ten polynomials reach 1e-6 or so; what is left is their ripple.
    optimizer = Muon(parameters, lr=0.1, momentum=0.8, weight_decay=0.2, nesterov=nesterov, ns_steps=10)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.to(memory_format=layout)
        optimizer.step()
    for place, parameter in enumerate(parameters):
        expected = reference_step(began[place], [step[place] for step in gradients], 0.1, 0.8, 0.2, nesterov=nesterov)
        moved = (expected - began[place].double()).norm()
        assert (parameter.double() - expected).norm() < 0.2 * moved  # 0.2 is the ripple of the singular values
        assert (parameter.double() - expected).norm() > 0


def test_one_update_is_exact_with_the_polynomials_of_the_package() -> None:
    weight = nn.Parameter(torch.randn(4, 9, generator=torch.Generator().manual_seed(0)))
    began, gradient = weight.detach().double(), torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
    optimizer = Muon([weight], lr=0.05, momentum=0.9, weight_decay=0.1, ns_steps=3)
    weight.grad = gradient
    optimizer.step()
    update = (0.9 * 0.1 + 0.1) * gradient.double()
    u, lifted, v = torch.linalg.svd(update, full_matrices=False)
    lifted = lifted / (1.01 * (lifted**8).sum() ** (1 / 8))
    for a, b, c in polynomials(3):
        lifted = a * lifted + b * lifted**3 + c * lifted**5
    expected = (1 - 0.05 * 0.1) * began - 0.05 * (u * lifted) @ v
    assert torch.allclose(weight.double(), expected, atol=1e-6)


def test_the_rest_moves_exactly_as_under_adamw() -> None:
    ours, theirs = network(), network()
    optimizer = Muon(ours, lr=0.0, aux_lr=0.01, weight_decay=0.1, betas=(0.8, 0.9), eps=1e-6)
    rest = [one for _, one in parameter_groups(theirs)[1]["params"]]
    adamw = torch.optim.AdamW(rest, lr=0.01, weight_decay=0.1, betas=(0.8, 0.9), eps=1e-6, fused=True)
    train(ours, optimizer, range(4))
    train(theirs, adamw, range(4))
    assert_same(ours, theirs)


def test_matrices_of_one_shape_move_as_each_would_alone() -> None:
    together, alone = network(), network()
    train(together, Muon(together), [0])
    backward(alone, 0)
    matrices = {one for _, one in parameter_groups(alone)[0]["params"]}
    for parameter in alone.parameters():
        Muon([{"params": [parameter], "matrices": parameter in matrices}]).step()
    assert_close(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_adding_the_product_as_it_goes_moves_weights_as_separate_passes_do(
    layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []
    for large in (0, 1 << 60):
        monkeypatch.setattr("workbench.optim.muon.optimizer._LARGE", large)
        generator = torch.Generator().manual_seed(0)
        shapes = [(6, 5, 3, 3), (6, 5, 3, 3), (40, 2, 2, 2), (4, 4, 1, 1)]
        weights = [torch.randn(shape, generator=generator).to(memory_format=layout) for shape in shapes]
        parameters = [nn.Parameter(weight) for weight in [*weights, torch.randn(9, 12, generator=generator)[:, ::2]]]
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        Muon(parameters, lr=0.1, weight_decay=0.3).step()
        moved.append([parameter.detach() for parameter in parameters])
    torch.testing.assert_close(*moved, rtol=1e-5, atol=1e-6)


def test_bfloat16_is_taken_where_the_device_multiplies_it_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    formats: list[torch.dtype] = []

    def watched(batches: list[Tensor], steps: int, **options: bool) -> list[Factors]:
        formats.extend(batch.dtype for batch in batches)
        return orthogonal_factors(batches, steps, **options)

    monkeypatch.setattr("workbench.optim.muon.optimizer.orthogonal_factors", watched)
    for fast in (False, True):
        monkeypatch.setattr("workbench.optim.muon.optimizer.has_fast_bfloat16", lambda device, fast=fast: fast)
        parameters = [nn.Parameter(torch.randn(256, 256)), nn.Parameter(torch.randn(8, 8))]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        Muon(parameters).step()
    assert formats == [torch.float32, torch.float32, torch.bfloat16, torch.float32]


# As an optimizer


def test_parameters_without_a_gradient_stay_and_keep_no_state() -> None:
    net = network()
    optimizer = Muon(net)
    net.conv[1].requires_grad_(False)
    net.head.bias.requires_grad_(False)
    train(net, optimizer, range(2))
    assert_same(net.conv[1], network().conv[1])
    assert torch.equal(net.head.bias, network().head.bias)
    assert net.conv[1].weight not in optimizer.state
    assert not torch.equal(net.conv[2].weight, network().conv[2].weight)


@pytest.mark.parametrize("state", ["shared", "per_group"])
def test_freezing_wraps_it(state: str) -> None:
    net = network()
    everything = list(net.parameters())
    optimizer = FreezeOpt(Muon(net), [everything, everything[-4:]], [0, 1], state=state)  # type: ignore[arg-type]
    optimizer.begin_step()
    train(net, optimizer, [0])
    before = values(net)
    train(net, optimizer, [1])
    stays = [torch.equal(before[name], parameter) for name, parameter in net.named_parameters()]
    assert stays == [True] * (len(everything) - 4) + [False] * 4


def test_a_configuration_builds_it_and_changes_one_that_a_task_brings() -> None:
    section = OptimizerConfig(name="Muon", lr=0.1, aux_lr=0.02, momentum=0.9, ns_steps=2, betas=(0.8, 0.9))
    optimizer = build_optimizer(section, network())
    assert isinstance(optimizer, Muon)
    first, second = optimizer.param_groups
    assert (first["matrices"], first["lr"], first["momentum"], first["ns_steps"]) == (True, 0.1, 0.9, 2)
    assert (second["matrices"], second["lr"], second["betas"]) == (False, 0.02, (0.8, 0.9))
    change_optimizer_(optimizer, OptimizerConfig(lr=0.3))
    change_optimizer_(optimizer, OptimizerConfig(aux_lr=0.04))
    assert [group["lr"] for group in optimizer.param_groups] == [0.3, 0.04]


def test_plain_parameters_are_told_apart_by_shape() -> None:
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (4,), (1, 4), (4, 1), (2, 1, 3))]
    optimizer = Muon([{"params": parameters, "weight_decay": 0.5}])
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 3]
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.5}
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(5))]})
    assert optimizer.param_groups[-1]["lr"] == optimizer.param_groups[1]["lr"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda one: Muon([one], lr=-1.0), "`lr`"),
        (lambda one: Muon([one], aux_lr=float("nan")), "`aux_lr`"),
        (lambda one: Muon([one], momentum=1.0), "`momentum` must lie in"),
        (lambda one: Muon([one], betas=(0.9, 1.0)), "`betas` must lie in"),
        (lambda one: Muon([one], ns_steps=0), "`ns_steps` must be at least 1, got 0"),
        (lambda one: Muon([one], ns_steps=2.5), "`ns_steps` must be a whole number"),
        (lambda one: Muon([]), "no parameter to train"),
        (lambda one: Muon([{"params": [nn.Parameter(one[0])], "matrices": True}]), "no matrix"),
        (lambda one: Muon([{"params": [nn.Parameter(one * 1j)], "matrices": True}]), "is complex"),
        (
            lambda one: Muon([one]).add_param_group({"params": [nn.Parameter(one[0]), nn.Parameter(one.clone())]}),
            "either matrices or other parameters",
        ),
    ],
)
def test_what_cannot_work_is_refused(make: Callable[[nn.Parameter], object], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        make(nn.Parameter(torch.zeros(3, 3)))
