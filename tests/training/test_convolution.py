"""Convolutions by shape: the library's results within rounding, computed otherwise where shapes say that is faster."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from tests.kit import tasks
from workbench.config import BoostConfig
from workbench.methods.runtime.convolution import (
    LIMITS,
    FasterConv2d,
    Limits,
    found_by_passes,
    use_faster_convolutions_,
)
from workbench.training import apply
from workbench.training.task_look import look_at

CPU = torch.device("cpu")
EVERYWHERE = Limits(0, 0, whole=1e9, gradient=1e9)
GRADIENT_ALONE = Limits(0, 0, whole=0.0, gradient=1e9)


@pytest.fixture(params=[EVERYWHERE, GRADIENT_ALONE], ids=["all passes", "the kernel's gradient"])
def of_any_shape(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let convolutions of any shape be products, in all passes or in one."""
    monkeypatch.setattr(FasterConv2d, "limits", dict.fromkeys(LIMITS, request.param))


def is_product(convolution: nn.Conv2d, images: Tensor) -> bool:
    """Return whether a convolution is computed by our function, as the graph of its output says."""
    convolution = copy.deepcopy(convolution)
    use_faster_convolutions_(convolution)
    output = convolution(images)
    while "Convolution" not in (name := output.grad_fn.name() if isinstance(output, Tensor) else output.name()):
        output = (output.grad_fn if isinstance(output, Tensor) else output).next_functions[0][0]
    return name.startswith("_Convolution")


def passes(convolution: nn.Module, images: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    images = images.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        output = convolution(images)
    output.backward(torch.linspace(-1.0, 1.0, output.numel()).view_as(output).to(output.dtype))
    weights = {name: one.grad for name, one in convolution.named_parameters() if one.grad is not None}
    assert images.grad is not None
    return {"output": output.detach().float(), "images": images.grad, **weights}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "padding": 1, "stride": 2, "bias": False},
        {"kernel_size": (2, 3), "padding": (0, 1), "stride": (1, 2)},
        {"kernel_size": 1, "bias": False},
        {"kernel_size": 1, "padding": 2},  # wider than the kernel
    ],
)
def test_products_are_the_librarys_results_within_rounding(
    options: dict[str, Any], layout: torch.memory_format, dtype: torch.dtype, of_any_shape: None
) -> None:
    torch.manual_seed(0)
    library = nn.Conv2d(5, 7, **options).to(memory_format=layout)
    ours = copy.deepcopy(library)
    assert use_faster_convolutions_(ours)
    images = torch.randn(3, 5, 6, 4).to(memory_format=layout)
    assert is_product(ours, images)
    found, wanted = passes(ours, images, dtype), passes(library, images, dtype)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(
            found[name] / scale, value / scale, rtol=0, atol=1e-5 if dtype == torch.float32 else 2e-2
        )


def test_products_have_second_derivatives_and_work_under_torch_func(of_any_shape: None) -> None:
    def penalty(network: nn.Module) -> Tensor:
        x = images.clone().requires_grad_()
        (slope,) = torch.autograd.grad(network(x).square().sum(), x, create_graph=True)
        (of_weight,) = torch.autograd.grad(slope.square().sum(), network.weight)
        return of_weight

    def of_one(weight: Tensor, image: Tensor) -> Tensor:
        found = torch.func.functional_call(ours, {"weight": weight}, (image[None],))
        return found.square().sum()  # type: ignore[no-any-return]

    torch.manual_seed(0)
    images = torch.randn(2, 3, 4, 4)
    library = nn.Conv2d(3, 4, 3, padding=1, bias=False)
    ours = copy.deepcopy(library)
    use_faster_convolutions_(ours)
    torch.testing.assert_close(penalty(ours), penalty(library))
    each = torch.func.vmap(torch.func.grad(of_one), (None, 0))(ours.weight.detach(), images)
    library(images).square().sum().backward()
    torch.testing.assert_close(each.sum(0), library.weight.grad)


def test_frozen_kernels_get_no_gradient(of_any_shape: None) -> None:
    ours = nn.Conv2d(3, 4, 3)
    use_faster_convolutions_(ours)
    ours.weight.requires_grad_(False)
    ours(torch.randn(2, 3, 5, 5)).sum().backward()
    assert ours.weight.grad is None
    assert ours.bias is not None
    assert ours.bias.grad is not None


@pytest.mark.parametrize(
    ("convolution", "shape", "dtype", "multiplied"),
    [
        (nn.Conv2d(512, 512, 3, padding=1), (64, 512, 4, 4), torch.bfloat16, True),
        (nn.Conv2d(512, 512, 3, padding=1), (64, 512, 4, 4), torch.float32, True),
        (nn.Conv2d(512, 512, 3, padding=1), (64, 512, 16, 16), torch.bfloat16, False),
        (nn.Conv2d(256, 256, 3, padding=1), (64, 256, 4, 4), torch.bfloat16, True),
        (nn.Conv2d(256, 256, 3, padding=1), (64, 256, 4, 4), torch.float32, False),
        (nn.Conv2d(64, 64, 3, padding=1), (64, 64, 2, 2), torch.bfloat16, True),
        (nn.Conv2d(64, 64, 3, padding=1), (32, 64, 2, 2), torch.bfloat16, False),  # too little work
        (nn.Conv2d(512, 512, 3, padding=1), (64, 512, 4, 4), torch.float64, False),
        (nn.Conv2d(512, 512, 3, padding=1), (512, 4, 4), torch.float32, False),  # one image
    ],
)
def test_shapes_decide(convolution: nn.Conv2d, shape: tuple[int, ...], dtype: torch.dtype, multiplied: bool) -> None:
    convolution = copy.deepcopy(convolution).to(dtype)
    assert is_product(convolution, torch.zeros(shape, dtype=dtype)) == multiplied
    if dtype == torch.bfloat16:  # as casts decide, too
        with torch.autocast("cpu", dtype=dtype):
            assert is_product(convolution.float(), torch.zeros(shape)) == multiplied


DEPTHWISE: list[dict[str, Any]] = [
    {"groups": 8, "stride": 2},
    {"groups": 8, "dilation": 2, "padding": "same"},
    {"groups": 4, "kernel_size": 5, "padding_mode": "circular", "padding": 1},
]


@pytest.mark.parametrize("options", DEPTHWISE)
def test_groups_of_few_channels_are_computed_in_float32_under_bfloat16(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    library = nn.Conv2d(8, 8, **{"kernel_size": 3, **options}).to(memory_format=torch.channels_last)
    ours = copy.deepcopy(library)
    assert use_faster_convolutions_(ours)
    images = torch.randn(3, 8, 6, 6).to(memory_format=torch.channels_last)
    in_float32 = passes(library, images, torch.float32)
    library.zero_grad()
    rounded = {name: one.float() for name, one in passes(ours, images, torch.bfloat16).items()}
    assert rounded.keys() == in_float32.keys()
    assert torch.equal(rounded["output"], in_float32["output"].bfloat16().float())
    for name, value in in_float32.items():
        torch.testing.assert_close(rounded[name], value, rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(images.bfloat16()).dtype == torch.bfloat16
    assert torch.equal(ours(images), library(images)), "and as ever without autocast"


@pytest.mark.parametrize(
    "options",
    [
        {"groups": 2, "in_channels": 16, "stride": 2},
        {"groups": 4},
        {"dilation": 2},
        {"padding": "same"},
        {"padding": 1, "padding_mode": "circular"},
    ],
)
def test_other_convolutions_stay_the_librarys(options: dict[str, Any]) -> None:
    assert not use_faster_convolutions_(
        nn.Sequential(nn.Conv2d(**{"in_channels": 4} | options, out_channels=4, kernel_size=3), nn.Conv1d(4, 4, 3))
    )


class Late(nn.Module):
    """Few positions for the channels: 512 of them, and images of 2 x 2."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.late = nn.Conv2d(1, 256, 3, stride=4), nn.Conv2d(256, 256, 3, padding=1)
        self.head = nn.Linear(256, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.late(F.relu(self.first(x))).mean((2, 3)))  # type: ignore[no-any-return]


def asked(**runtime: Any) -> BoostConfig:
    return BoostConfig().with_values(
        {"boost.mode": "disable_all", "runtime": {"memory_format": "channels_last", **runtime}}
    )


def test_training_is_the_same_within_rounding_and_the_parameters_are() -> None:
    torch.manual_seed(0)
    library = Late()
    ours = copy.deepcopy(library)
    losses = []
    for model, runtime in ((library, {}), (ours, {"convolution": "by_shape"})):
        weights = [*model.parameters()]
        boosted = apply(asked(**runtime), model, SGD(model.parameters(), lr=0.1), level="O0")
        assert all(one is other for one, other in zip(model.parameters(), weights, strict=True))
        for x, y in tasks.images(6):
            losses.append(loss := F.cross_entropy(boosted.model(x), y))
            boosted.backward(loss)
            boosted.step()
    assert isinstance(ours.late, FasterConv2d)
    assert not isinstance(library.late, FasterConv2d)
    torch.testing.assert_close(losses[6:], losses[:6])
    torch.testing.assert_close(dict(ours.state_dict()), dict(library.state_dict()))


def test_it_is_left_out_where_it_cannot_act() -> None:
    grouped = nn.Conv2d(4, 4, 3, groups=4)
    with pytest.warns(UserWarning, match=r"`runtime.convolution` has no effect: the model has no convolution over"):
        apply(asked(convolution="by_shape"), grouped, SGD(grouped.parameters(), lr=0.1), level="O0")
    for more, why in (
        ({"compile": "default"}, "a compiled model's convolutions are the library's"),
        ({"memory_format": "contiguous"}, "kernels would be put into channels_last in every pass; set it for good"),
    ):
        plan = asked(convolution="by_shape", **more).resolve("O0")
        found = [(one.name, one.reason.rpartition("because ")[2]) for one in plan.dropped]
        assert found in ([("runtime.convolution", why)], [("runtime", why)])


def narrow() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize(("network", "products"), [(Late, True), (narrow, False)])
def test_a_look_at_a_task_finds_convolutions_with_few_positions(network: Any, products: bool) -> None:
    task = tasks.task_of(network, tasks.images(6), evaluate=tasks.images(2))
    assert look_at(task, CPU, 20).faster_convolutions is products
    model = network()
    with found_by_passes(model) as found:
        model(tasks.images(1)[0][0])
    assert [one.in_channels for one in found] == [256] * products
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_outputs_may_be_changed_in_place_also_under_hooks(of_any_shape: None) -> None:
    torch.manual_seed(0)
    library = nn.Conv2d(3, 4, 3, padding=1)
    ours, images, seen = copy.deepcopy(library), torch.randn(2, 3, 4, 4), []
    use_faster_convolutions_(ours)
    for convolution in (library, ours):
        output = convolution(images)
        output.register_hook(seen.append)
        F.relu(output, inplace=True).square().sum().backward()
    torch.testing.assert_close(seen[1], seen[0])
    torch.testing.assert_close(ours.weight.grad, library.weight.grad)


def test_products_have_forward_derivatives_and_batched_gradients(of_any_shape: None) -> None:
    torch.manual_seed(0)
    images = torch.randn(1, 2, 3, 3)
    library = nn.Conv2d(2, 2, 2, padding=1)
    ours = copy.deepcopy(library)
    use_faster_convolutions_(ours)
    for derivative in (torch.func.jacfwd, torch.func.jacrev, torch.func.hessian):
        torch.testing.assert_close(derivative(ours)(images), derivative(library)(images))
    rows = torch.autograd.functional.jacobian(ours, images, vectorize=True)
    torch.testing.assert_close(rows, torch.func.jacrev(library)(images))


def test_the_backward_pass_takes_the_formats_of_the_forward_pass(of_any_shape: None) -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 3, 4, 4)
    library = nn.Conv2d(3, 4, 3)
    ours = copy.deepcopy(library)
    use_faster_convolutions_(ours)
    for convolution in (library, ours):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.autocast("cpu", enabled=False):
                output = convolution(images)
            output.square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, library.weight.grad)


def test_autocast_leaves_complex_convolutions_alone(of_any_shape: None) -> None:
    ours = nn.Conv2d(3, 4, 3, dtype=torch.complex64)
    use_faster_convolutions_(ours)
    images = torch.randn(2, 3, 4, 4, dtype=torch.complex64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = ours(images)
    torch.testing.assert_close(output, ours(images))
