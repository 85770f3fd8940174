from __future__ import annotations

import copy
import io
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from tests.kit.configurations import freezing
from workbench.core import devices
from workbench.optim.adam_offload.optimizer import AdamOffload
from workbench.optim.muon.optimizer import Muon
from workbench.optim.row_wise import RowWiseAdam
from workbench.optim.schedule_free import ScheduleFreeAdamW
from workbench.training import Boosted, apply
from workbench.training.precision import Precision, cast_model_


def conv_net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))


def in_o3(net: nn.Module) -> Boosted:
    return apply({"amp": {"level": "O3", "dtype": "bfloat16"}}, net, SGD(net.parameters(), lr=0.1), level="O0")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_o2_keeps_master_weights_and_batch_norm_in_float32(dtype: str) -> None:
    net = conv_net()
    precision = Precision("O2", dtype, "cpu")
    cast_model_(net, precision)
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    with precision.autocast():
        out = net(torch.randn(2, 1, 8, 8))
    assert out.dtype == getattr(torch, dtype)
    assert net[1].running_mean.dtype == torch.float32


@pytest.mark.parametrize("keep", [None, True])
def test_o3_casts_the_weights_and_gives_float32_back(keep: bool | None) -> None:
    net = conv_net()
    precision = Precision("O3", "bfloat16", "cpu", keep)
    cast_model_(net, precision)
    cast_model_(net, precision)
    assert net[0].weight.dtype == torch.bfloat16
    assert net[1].weight.dtype == (torch.float32 if keep else torch.bfloat16)
    with precision.autocast():
        out = net(torch.randn(2, 1, 8, 8))
    assert out.dtype == torch.float32
    out.sum().backward()
    assert net[0].weight.grad is not None


@pytest.mark.parametrize("kind", [Adagrad, RMSprop])
def test_squares_that_vanish_in_float16_are_told(kind: type[Optimizer]) -> None:
    net = nn.Linear(2, 2)
    with pytest.warns(UserWarning, match=f"{kind.__name__} keeps squares of float16 gradients in float16"):
        apply({"amp": {"level": "O3"}}, net, kind(net.parameters(), lr=0.1), level="O0")  # type: ignore[call-arg]


class Casting(nn.Module):
    """Computes a layer in float32, whatever its weights are in."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x.float())


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(4, 4), nn.Conv1d(4, 4, 1), nn.LSTM(4, 4), nn.LayerNorm(4), nn.BatchNorm1d(4)],
    ids=lambda layer: type(layer).__name__,
)
def test_a_model_that_casts_by_itself_hears_of_the_level_that_casts_its_weights(layer: nn.Module) -> None:
    boosted = in_o3(Casting(copy.deepcopy(layer)))
    told = r"`amp.level` O3 casts the weights to bfloat16, which .*; where it casts by itself, set `amp.level` to O2 or"
    with pytest.raises(RuntimeError, match=told), boosted.autocast():
        boosted.model(torch.ones(4, 4))


def test_other_errors_under_o3_are_told_as_they_are() -> None:
    boosted = in_o3(nn.Linear(4, 4))
    with pytest.raises(RuntimeError, match=r"^mat1 and mat2 shapes"), boosted.autocast():
        boosted.model(torch.ones(4, 3))


def test_o3_keeps_complex_numbers_whole() -> None:
    net = nn.Linear(2, 2)
    net.register_buffer("turns", torch.tensor([1j, -1j]))
    net.register_parameter("spectrum", nn.Parameter(torch.tensor([2j, 3.0])))
    cast_model_(net, Precision("O3", "bfloat16", "cpu"))
    assert net.weight.dtype == torch.bfloat16
    assert net.get_buffer("turns").tolist() == [1j, -1j]
    assert net.get_parameter("spectrum").tolist() == [2j, 3.0]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_an_lstm_is_trained_in_float16_or_refused_before_anything_is_trained() -> None:
    net, before = nn.LSTM(2, 2), torch.get_rng_state()
    try:
        boosted = apply({"amp": {"level": "O2"}}, net, SGD(net.parameters(), lr=0.1, fused=True), level="O0")
    except RuntimeError as refused:
        assert str(refused).startswith("this processor computes no LSTM in float16; set `amp.dtype` to bfloat16")  # noqa: PT017  # some do
    else:
        with boosted.autocast():
            assert boosted.model(torch.zeros(1, 1, 2))[0].isfinite().all()
    assert torch.equal(torch.get_rng_state(), before)
    projecting = nn.LSTM(2, 2, proj_size=1)  # which torch computes by itself
    boosted = apply({"amp": {"level": "O2"}}, projecting, SGD(projecting.parameters(), lr=0.1, fused=True), level="O0")
    with boosted.autocast():
        boosted.backward(boosted.model(torch.zeros(1, 1, 2))[0].float().sum())
    assert boosted.step().applied


def test_a_cast_model_is_saved_whole() -> None:
    boosted, x, file = in_o3(nn.Linear(2, 2)), torch.randn(3, 2), io.BytesIO()
    torch.save(boosted.model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), boosted.model(x))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((Adagrad, {}), (Adagrad, {"fused": True}), (Adam, {}), (Adam, {"fused": True}), (AdamW, {"amsgrad": True})),
        *((AdamOffload, {}), (ScheduleFreeAdamW, {}), (Muon, {}), (RowWiseAdam, {})),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else ", ".join(value) or "plain",
)
@pytest.mark.parametrize(
    ("level", "freezes"), [("O3", True), ("O2 with low batch norms", False)], ids=["weights, freezing", "norms"]
)
def test_an_optimizer_that_has_a_state_goes_on_when_weights_are_cast(
    kind: type[Optimizer], options: dict[str, Any], level: str, freezes: bool
) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)), torch.randn(8, 4)
    optimizer = kind(net.parameters(), 0.01, **options)  # type: ignore[arg-type]  # every one takes a rate there
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    amp = {"level": "O3"} if level == "O3" else {"level": "O2", "keep_batchnorm_fp32": False}
    config = freezing(2, steps=4) if freezes else {"boost": {"mode": "disable_all"}}
    config["amp"] = {**amp, "dtype": "bfloat16"}
    boosted = apply(config, net, optimizer, level="O0")
    losses = []
    for _ in range(3):
        with boosted.autocast():
            losses.append(boosted.model(x).float().square().mean())
        boosted.backward(losses[-1])
        boosted.step()
    assert losses[-1] < losses[0]


def test_a_batch_norm_that_is_cast_takes_float32_as_well() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    amp = {"level": "O2", "dtype": "bfloat16", "keep_batchnorm_fp32": False}
    boosted = apply({"boost": {"mode": "disable_all"}, "amp": amp}, net, SGD(net.parameters(), lr=0.1), level="O0")
    with boosted.autocast():
        loss = boosted.model(torch.randn(8, 4)).float().square().mean()
    boosted.backward(loss)
    boosted.step()
    assert net[0].running_mean.dtype == torch.bfloat16


def test_o2_without_float32_batch_norm_casts_only_batch_norm() -> None:
    net = conv_net()
    cast_model_(net, Precision("O2", "bfloat16", "cpu", keep_batchnorm_fp32=False))
    assert (net[0].weight.dtype, net[1].weight.dtype) == (torch.float32, torch.bfloat16)


@pytest.mark.parametrize(
    ("dtype", "fast", "times"), [("bfloat16", False, 1), ("bfloat16", True, 0), ("float16", False, 0)]
)
def test_a_processor_that_lacks_bfloat16_is_told_once(
    dtype: str, fast: bool, times: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(devices, "has_fast_bfloat16", lambda device: fast)
    monkeypatch.setattr(sys.modules["workbench.training.apply"], "_noted", set())  # the package's name is the function
    for _ in range(2):
        net = nn.Linear(2, 2)
        apply({"amp": {"level": "O2", "dtype": dtype}}, net, SGD(net.parameters(), lr=0.1), level="O0")
    assert caplog.text.count("bfloat16 is slower than float32 on this processor") == times
