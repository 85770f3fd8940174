"""Folding a BatchNorm into the layer before it: exact against running both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from workbench.methods.less_bn.batch_norm_folding import affine_of, can_fold_into, fold_into_, has_learned_statistics

LAYERS: dict[str, tuple[Callable[[bool], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda bias: nn.Linear(4, 6, bias=bias), (5, 4)),
    "conv1d": (lambda bias: nn.Conv1d(4, 6, 3, padding=1, bias=bias), (2, 4, 7)),
    "conv2d": (lambda bias: nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=bias), (2, 4, 7, 7)),
    "conv2d grouped": (lambda bias: nn.Conv2d(4, 6, 3, groups=2, bias=bias), (2, 4, 7, 7)),
    "conv2d reflected": (lambda bias: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect", bias=bias), (2, 4, 7, 7)),
    "conv3d": (lambda bias: nn.Conv3d(4, 6, 2, bias=bias), (2, 4, 4, 4, 4)),
    "transposed": (lambda bias: nn.ConvTranspose2d(4, 6, 3, stride=2, bias=bias), (2, 4, 5, 5)),
    "transposed grouped": (lambda bias: nn.ConvTranspose2d(4, 6, 3, groups=2, bias=bias), (2, 4, 5, 5)),
}
NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def trained_norm(dimensions: int, channels: int, affine: bool = True) -> nn.Module:
    norm = NORMS[dimensions](channels, affine=affine)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.2, 3.0)
    norm.num_batches_tracked.fill_(5)
    if affine:
        nn.init.uniform_(norm.weight, -1.5, 1.5)
        nn.init.normal_(norm.bias)
    return norm.eval()


@pytest.mark.parametrize(("bias", "affine"), [(True, True), (False, False)], ids=["bias, affine", "neither"])
@pytest.mark.parametrize("kind", LAYERS)
def test_folded_layer_equals_layer_then_norm(kind: str, bias: bool, affine: bool) -> None:
    build, shape = LAYERS[kind]
    layer, x = build(bias), torch.randn(shape)
    norm = trained_norm(len(shape), 6, affine)
    expected = norm(layer(x))
    weight = layer.weight
    fold_into_(layer, norm)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    assert layer.weight is weight  # the optimizer's object stays
    assert layer.bias.requires_grad


def test_statistics_count_as_learned_once_a_batch_was_seen_or_they_moved() -> None:
    norm = nn.BatchNorm2d(3)
    assert not has_learned_statistics(norm)
    nn.init.uniform_(norm.weight)
    assert not has_learned_statistics(norm)
    norm(torch.randn(2, 3, 4, 4))
    assert has_learned_statistics(norm)
    loaded = nn.BatchNorm2d(3)
    loaded.running_var[1] = 2.0
    assert has_learned_statistics(loaded)
    assert not has_learned_statistics(nn.BatchNorm2d(3, track_running_stats=False))


def test_layers_that_cannot_take_a_norm_up_are_refused() -> None:
    norm = trained_norm(4, 6)
    assert not can_fold_into(nn.ReLU(), norm)
    assert not can_fold_into(nn.Conv2d(2, 5, 1), norm)
    assert not can_fold_into(nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 6, 1)), norm)
    with pytest.raises(ValueError, match="cannot fold a BatchNorm of 6 channels into ReLU"):
        fold_into_(nn.ReLU(), norm)
    with pytest.raises(ValueError, match="without running statistics"):
        affine_of(nn.BatchNorm2d(6, track_running_stats=False))
