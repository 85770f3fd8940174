"""THOR with the reference's factors, against trajectories of its GPU variant evaluated in float64."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.golden_files import golden_paths, load_npz
from tests.optimizers.thor_formulas import block_inverse, dense, embedding_step, layer_norm_step, precondition
from workbench.optim.thor.collection import patches, same_padding
from workbench.optim.thor.optimizer import Thor

PIECES = golden_paths("thor_pieces*.npz")
TRAJECTORIES = [path for path in golden_paths("thor_*.npz") if path not in PIECES]


class Recorded(nn.Module):
    """Convolutions, then dense layers; ReLU after every layer but the last."""

    def __init__(self, arch: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> None:
        super().__init__()
        self.order: list[str] = []
        for name, padding, stride in arch["convs"]:
            out, into, *kernel = shapes[f"{name}.weight"]
            bias = f"{name}.bias" in shapes
            layer = nn.Conv2d(into, out, (kernel[0], kernel[1]), stride=stride, padding=padding, bias=bias)
            self.add_module(name, layer)
            self.order.append(name)
        for name in arch["fcs"]:
            out, into = shapes[f"{name}.weight"]
            self.add_module(name, nn.Linear(into, out, bias=f"{name}.bias" in shapes))
            self.order.append(name)

    def forward(self, x: Tensor) -> Tensor:
        for position, name in enumerate(self.order):
            layer = getattr(self, name)
            if isinstance(layer, nn.Linear) and x.dim() > 2:
                x = x.flatten(1)
            x = layer(x)
            if position < len(self.order) - 1:
                x = F.relu(x)
        return x


@pytest.mark.parametrize("path", TRAJECTORIES, ids=lambda path: path.stem)
def test_the_weights_follow_the_reference(path: Path) -> None:
    meta, arrays = load_npz(path)
    config = meta["config"]
    net = Recorded(meta["arch"], meta["shapes"]).double()
    parameters = dict(net.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(arrays[f"traj/{name}"][0]))
    optimizer = Thor(
        net,
        torch.tensor(config["lr"], dtype=torch.float64),
        torch.tensor(config["damping"], dtype=torch.float64),
        config["momentum"],
        config["weight_decay"],
        config["loss_scale"],
        config["batch_size"],
        config["nesterov"],
        lambda asked: asked.name in meta["decay_applied"],
        enable_clip_grad=config["clip"],
        frequency=config["frequency"],
        factors="mindspore",
    )
    assert not [entry for entry in optimizer.first_order if not entry.name.endswith(".bias")]

    for step, second_order in enumerate(meta["second_order_step"]):
        x, y = torch.from_numpy(arrays["x"][step]).double(), torch.from_numpy(arrays["y"][step])
        loss = F.cross_entropy(net(x), y)
        (loss * meta["sens"]).backward()
        for name, parameter in parameters.items():
            if f"grad/{name}" in arrays:
                assert_close(parameter.grad, arrays[f"grad/{name}"][step], f"gradient of {name} in step {step}")
        optimizer.step()
        assert optimizer.columns()["thor.refreshed"] == second_order
        assert optimizer.columns()["thor.damping"] == pytest.approx(config["damping"][step])
        if step == 0:
            _compare_factors(optimizer, arrays, meta)
        optimizer.zero_grad()
        for name, parameter in parameters.items():
            assert_close(parameter, arrays[f"traj/{name}"][step + 1], f"{name} after {step + 1} steps")
        assert loss.item() == pytest.approx(meta["losses"][step], rel=1e-6)


def _compare_factors(optimizer: Thor, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    engine = optimizer.preconditioner
    ratio = (meta["config"]["batch_size"] / meta["config"]["loss_scale"]) ** 2
    for layer in engine.layers:
        name = f"{layer.name}.weight"
        if f"A0/{name}" in arrays:
            a = dense(engine.blocks, layer.a, engine.blocks.factors)
            g = dense(engine.blocks, layer.g, engine.blocks.factors)
            assert_close(a, in_blocks(arrays[f"A0/{name}"]), f"A of {name}")
            assert_close(g / ratio, in_blocks(arrays[f"G0/{name}"]), f"G of {name}")


def in_blocks(factor: np.ndarray, size: int = 128) -> np.ndarray:
    """Return a recorded factor without what lies off its diagonal blocks, which no step uses and no layer keeps."""
    block = np.arange(len(factor)) // size
    return np.where(block[:, None] == block, factor, 0.0)


def assert_close(actual: Tensor | None, expected: np.ndarray, what: str) -> None:
    # The files hold float64, some of it rounded to float32.
    tolerance = 1e-6 if expected.dtype == np.float32 else 1e-9
    np.testing.assert_allclose(actual.detach().numpy(), expected, rtol=tolerance, atol=tolerance / 10, err_msg=what)


@pytest.mark.parametrize("path", PIECES, ids=lambda path: path.stem)
def test_blocks_are_inverted_as_recorded(path: Path) -> None:
    meta, arrays = load_npz(path)
    for case in (case for case in meta["cases"] if "index" in case):
        a, g, gradient, out = (
            torch.from_numpy(arrays[f"block/{case['index']}/{key}"]).double() for key in ("A", "G", "g", "out")
        )  # damped already
        found = precondition(gradient, block_inverse(a, 0.0), block_inverse(g, 0.0))
        torch.testing.assert_close(found, out, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("path", PIECES, ids=lambda path: path.stem)
def test_embedding_and_layer_norm_are_scaled_as_recorded(path: Path) -> None:
    meta, arrays = load_npz(path)
    values = {key: torch.from_numpy(value) for key, value in arrays.items()}
    tokens, dout = values["embedding/ids"].reshape(-1), values["embedding/dout"]
    counts = torch.bincount(tokens, minlength=len(values["embedding/A_counts"])).double()
    torch.testing.assert_close(counts, values["embedding/A_counts"])
    g = dout.T @ dout / len(dout)
    torch.testing.assert_close(g, values["embedding/G"], rtol=1e-9, atol=1e-12)
    batch_size = meta["batch_size"]
    arguments = (values["embedding/grad"], counts, g * batch_size**2, meta["damping"], batch_size)
    exact, reference = values["embedding/out_with_true_inverse"], values["embedding/out_reference_gpu"]
    torch.testing.assert_close(embedding_step(*arguments), exact)
    torch.testing.assert_close(embedding_step(*arguments, product="reference"), reference)
    scaled = layer_norm_step(values["layernorm/grad"], meta["damping"], meta["batch_size"])
    torch.testing.assert_close(scaled, values["layernorm/out"])


@pytest.mark.parametrize("path", PIECES, ids=lambda path: path.stem)
def test_the_optimizer_takes_the_recorded_step_of_an_embedding(path: Path) -> None:
    meta, arrays = load_npz(path)
    values = {key: torch.from_numpy(value) for key, value in arrays.items()}
    rows, features = values["embedding/grad"].shape
    table = nn.Embedding(rows, features).double()
    before = table.weight.detach().clone()
    optimizer = Thor(table, 1.0, meta["damping"], 0.0, batch_size=meta["batch_size"], factors="mindspore")
    (table(values["embedding/ids"]).reshape(-1, features) * values["embedding/dout"]).sum().backward()
    table.weight.grad.copy_(values["embedding/grad"])
    optimizer.step()
    torch.testing.assert_close(before - table.weight.detach(), values["embedding/out_reference_gpu"])


@pytest.mark.parametrize("path", PIECES, ids=lambda path: path.stem)
def test_same_patches_are_cut_as_recorded(path: Path) -> None:
    meta, arrays = load_npz(path)
    images = torch.from_numpy(arrays["im2col/x"])
    for case in (case for case in meta["cases"] if "im2col" in case):
        k, stride = case["kernel"], case["stride"]
        top, bottom = same_padding(images.shape[2], k, stride)
        left, right = same_padding(images.shape[3], k, stride)
        found = patches(images, (k, k), (stride, stride), padding=(left, right, top, bottom))
        torch.testing.assert_close(found, torch.from_numpy(arrays[f"im2col/{case['im2col']}/out"]))
